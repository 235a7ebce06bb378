/* json.c - see json.h.
 *
 * While a text is read, each allocation of jansson's is written down and nothing is freed. When one
 * fails, a jump leaves jansson, which holds no lock and no state of its own, and all that was
 * written down is freed; when all went well, only what jansson wanted freed is. At other times its
 * memory is malloc's, so that free() takes what it gives. Rejected: a parser of our own; an arena,
 * whose owner all users of a json_t would have to know.
 */
#include "base/json.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json_text.h"
#include "base/mem.h"

#define POINTERS_FIRST 64

struct pointers {
    void **items; /* first, until it is full */
    size_t count;
    size_t capacity;
    void *first[POINTERS_FIRST];
};

struct reading {
    json_t *root;
    jmp_buf out_of_memory;
    struct pointers allocated;
    struct pointers freed; /* by jansson; each is among the allocated */
};

static _Thread_local struct reading *reading; /* of this thread, now; or NULL */

static bool load(struct reading *here, const char *text, size_t length, size_t flags,
                 json_error_t *where);
static void name_nul(const char *text, size_t length, json_error_t *where);
static void setup(void);
static void *allocate(size_t bytes);
static void release(void *memory);
static void pointers_init(struct pointers *pointers);
static void pointers_finish(struct pointers *pointers);
static bool pointers_add(struct pointers *pointers, void *memory);
static void free_all(const struct pointers *pointers);

enum berth_code berth_json_read(const char *text, size_t length, size_t flags, json_t **out,
                                json_error_t *where)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    struct reading here;
    enum berth_code code = BERTH_OK;
    pthread_once(&once, setup);
    pointers_init(&here.allocated);
    pointers_init(&here.freed);
    if (!load(&here, text, length, flags, where)) {
        free_all(&here.allocated);
        snprintf(where->text, sizeof(where->text), "out of memory");
        code = BERTH_UNAVAILABLE;
    } else {
        free_all(&here.freed);
        if (here.root == NULL) {
            code = BERTH_INVALID;
            name_nul(text, length, where);
        } else {
            *out = here.root;
        }
    }
    pointers_finish(&here.allocated);
    pointers_finish(&here.freed);
    return code;
}

/* false: out of memory; nothing else may be said of what jansson was at. */
static bool load(struct reading *here, const char *text, size_t length, size_t flags,
                 json_error_t *where)
{
    if (setjmp(here->out_of_memory) != 0) {
        reading = NULL;
        return false;
    }
    reading = here;
    here->root = json_loadb(text, length, flags & ~(size_t)JSON_ALLOW_NUL, where);
    reading = NULL;
    return true;
}

/* Jansson lets no NUL into a string, and says what of its own would allow it; who reads a file or
 * sends a body wants to know where it is. */
static void name_nul(const char *text, size_t length, json_error_t *where)
{
    enum json_error_code code = json_error_code(where);
    struct berth_json_value root;
    const char *what = NULL;
    size_t position = 0;
    char path[100];
    if ((code == json_error_null_character || code == json_error_null_byte_in_key) &&
        berth_json_check(text, length, &root, &what, &position) == BERTH_OK &&
        berth_json_find_nul(&root, path, sizeof(path))) {
        snprintf(where->text, sizeof(where->text) - 1, "a NUL in the text of '%s'", path);
    }
}

static void setup(void)
{
    json_set_alloc_funcs(allocate, release);
}

static void *allocate(size_t bytes)
{
    void *memory = berth_alloc_for_free(bytes);
    if (reading != NULL && (memory == NULL || !pointers_add(&reading->allocated, memory))) {
        free(memory); /* lib-owned */
        longjmp(reading->out_of_memory, 1);
    }
    return memory;
}

static void release(void *memory)
{
    if (reading == NULL) {
        free(memory); /* lib-owned */
    } else if (memory != NULL && !pointers_add(&reading->freed, memory)) {
        longjmp(reading->out_of_memory, 1);
    }
}

static void pointers_init(struct pointers *pointers)
{
    pointers->items = pointers->first;
    pointers->count = 0;
    pointers->capacity = POINTERS_FIRST;
}

static void pointers_finish(struct pointers *pointers)
{
    if (pointers->items != pointers->first) {
        berth_free(pointers->items);
    }
}

static bool pointers_add(struct pointers *pointers, void *memory)
{
    if (pointers->count == pointers->capacity) {
        size_t bytes;
        if (!berth_mul_size(pointers->capacity, 2 * sizeof(void *), &bytes)) {
            return false;
        }
        void **items = berth_alloc(bytes);
        if (items == NULL) {
            return false;
        }
        memcpy(items, pointers->items, pointers->count * sizeof(void *));
        pointers_finish(pointers);
        pointers->items = items;
        pointers->capacity *= 2;
    }
    pointers->items[pointers->count++] = memory;
    return true;
}

static void free_all(const struct pointers *pointers)
{
    for (size_t i = 0; i < pointers->count; i++) {
        free(pointers->items[i]); /* lib-owned */
    }
}
