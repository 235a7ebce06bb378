/* fuzz_outline.c - whether a container is cut short, of any bytes and of containers that are built
 * here, so that the truth is known.
 *
 * Any bytes: what is judged lies in memory that ends where it ends; what came is less than what was
 * promised; and a file and its beginnings agree: once a part is said to be missing, it is missing
 * until as many bytes have come as were promised. A first byte 0xB0 to 0xB4 builds a container of
 * that kind instead, from three bytes for each of its elements: whole, it is not cut, and cut at
 * any byte it is cut exactly where the size of the element that the cut falls into had been read.
 */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "media/outline.h"

#define BUILD_FIRST 0xB0
#define KINDS 5
#define ELEMENTS_MAX 32
#define BYTES_MAX (ELEMENTS_MAX * 600)
#define LENGTHS_MAX 256 /* beginnings of one input that are judged */

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length);

enum kind { BOXES, SEGMENT, PAGES, CHUNKS, OBJECTS };

/* From `start` on `size` bytes are promised, which is known once the file is `known` long. */
struct element {
    size_t start, known;
    uint64_t size;
};

struct container {
    uint8_t bytes[BYTES_MAX];
    size_t length;
    struct element elements[ELEMENTS_MAX];
    size_t count;
    size_t silent; /* a file at least as long is never cut; 0: no such length */
};

static const uint8_t asf[16] = {0x30, 0x26, 0xB2, 0x75, 0x8E, 0x66, 0xCF, 0x11,
                                0xA6, 0xD9, 0x00, 0xAA, 0x00, 0x62, 0xCE, 0x6C};
static const uint8_t properties[16] = {0xA1, 0xDC, 0xAB, 0x8C, 0x47, 0xA9, 0xCF, 0x11,
                                       0x8E, 0xE4, 0x00, 0xC0, 0x0C, 0x20, 0x53, 0x65};

static bool judge(const uint8_t *bytes, size_t length, struct berth_outline *out)
{
    static uint8_t *room; /* kept: what is judged stands at its end */
    static size_t room_bytes;
    if (room == NULL || length > room_bytes) {
        free(room);
        room_bytes = length < BYTES_MAX ? BYTES_MAX : length;
        room = malloc(room_bytes);
        BERTH_ASSERT(room != NULL);
    }
    uint8_t *copy = room + room_bytes - length;
    memcpy(copy, bytes, length);
    *out = (struct berth_outline){0};
    bool cut = berth_outline_is_cut(
        &(struct berth_media_input){.bytes = copy, .length = length}, out);
    BERTH_ASSERT(!cut || (out->what != NULL && out->came < out->promised && out->came <= length));
    return cut;
}

/* --- any bytes --- */

/* A longer file may turn out to be none of that container: an Ogg page's mark that was not whole,
 * ASF's word that its sizes mean nothing. */
static bool may_turn(const uint8_t *bytes, size_t length, const struct berth_outline *before)
{
    return (memcmp(bytes, "OggS", 4) == 0 && before->came < 4) ||
           (memcmp(bytes, asf, 8) == 0 &&
            memmem(bytes, length, properties, sizeof(properties)) != NULL);
}

static void judge_beginnings(const uint8_t *bytes, size_t length)
{
    struct berth_outline whole, part;
    bool whole_cut = judge(bytes, length, &whole);
    size_t step = length / LENGTHS_MAX + 1;
    for (size_t n = length % step; n < length; n += step) {
        if (!judge(bytes, n, &part)) {
            continue;
        }
        uint64_t start = n - part.came;
        bool all_came = part.promised <= length - start;
        if (whole_cut && length - whole.came == start) { /* of Ogg's pages more becomes known */
            BERTH_ASSERT(whole.promised >= part.promised && strcmp(whole.what, part.what) == 0);
            BERTH_ASSERT(whole.promised == part.promised || memcmp(bytes, "OggS", 4) == 0);
        } else if (whole_cut) {
            BERTH_ASSERT(all_came && length - whole.came >= start + part.promised);
        } else {
            BERTH_ASSERT(all_came || may_turn(bytes, length, &part));
        }
    }
}

/* --- containers of our own --- */

static void put(struct container *to, const void *bytes, size_t length)
{
    BERTH_ASSERT(length <= BYTES_MAX - to->length);
    memcpy(to->bytes + to->length, bytes, length);
    to->length += length;
}

static void fill(struct container *to, size_t length)
{
    BERTH_ASSERT(length <= BYTES_MAX - to->length);
    memset(to->bytes + to->length, 0x5A, length);
    to->length += length;
}

static void put_number(struct container *to, uint64_t value, size_t width)
{
    for (size_t i = width; i > 0; i--) {
        uint8_t byte = (uint8_t)(value >> (i - 1) * 8);
        put(to, &byte, 1);
    }
}

static void promise(struct container *to, size_t start, size_t known, uint64_t size)
{
    to->elements[to->count++] = (struct element){.start = start, .known = known, .size = size};
}

static void add_box(struct container *to, const uint8_t three[3])
{
    static const char types[][5] = {"ftyp", "moov", "mdat", "moof", "free", "uuid", "wide", "styp"};
    size_t start = to->length, head = three[0] % 2 == 0 ? 8 : 16, body = three[1];
    put_number(to, head == 8 ? head + body : 1, 4);
    put(to, types[three[0] / 2 % 8], 4);
    if (head == 16) {
        put_number(to, head + body, 8);
    }
    fill(to, body);
    promise(to, start, start + head, head + body);
}

/* The only one, and the head before it, of which nothing is promised. */
static void add_segment(struct container *to, const uint8_t three[3])
{
    size_t width = three[0] % 8 + 1, body = three[1] + 256u * (three[2] % 2);
    bool open = three[0] / 8 % 4 == 0;
    uint64_t largest = (UINT64_C(1) << 7 * width) - 1; /* means an open size */
    if (to->count > 0) {
        return;
    }
    body = body < largest ? body : (size_t)largest - 1;
    put_number(to, 0x1A45DFA3, 4);
    put_number(to, 0x80u | (three[2] & 0x3F), 1);
    fill(to, three[2] & 0x3F);
    put_number(to, 0x18538067, 4);
    put_number(to, (UINT64_C(1) << 7 * width) | (open ? largest : body), width);
    fill(to, body);
    promise(to, to->length - body, to->length - body, open ? 0 : body);
}

static void add_page(struct container *to, const uint8_t three[3])
{
    uint8_t head[27] = "OggS", table[255];
    size_t start = to->length, count = three[0] % 16, body = 0;
    head[26] = (uint8_t)count;
    for (size_t i = 0; i < count; i++) {
        table[i] = i % 2 == 0 ? three[1] % 32 : three[2] % 16;
        body += table[i];
    }
    put(to, head, sizeof(head));
    put(to, table, count);
    fill(to, body);
    promise(to, start, start + 1, sizeof(head) + count + body);
}

static void add_chunk(struct container *to, const uint8_t three[3])
{
    static const char types[][5] = {"desc", "data", "pakt", "free"};
    size_t body = three[1] + 256u * (three[2] % 2);
    if (to->count == 0) {
        put(to, "caff\0\1\0\0", 8);
    }
    put(to, types[three[0] % 4], 4);
    put_number(to, body, 8);
    promise(to, to->length, to->length, body);
    fill(to, body);
}

/* The first has the file's properties in it, or not. */
static void add_object(struct container *to, const uint8_t three[3])
{
    size_t start = to->length, body = three[1];
    bool first = to->count == 0, tells = first && three[0] % 2 == 1;
    size_t size = 24 + body + (tells ? 104 : 0);
    put(to, first ? asf : (const uint8_t *)"0123456789abcdef", 16);
    put_number(to, __builtin_bswap64(size), 8);
    if (tells) {
        put(to, properties, sizeof(properties));
        fill(to, 72);
        put_number(to, three[0] / 2 % 2 == 1 ? 0x03000000 : 0x02000000, 4);
        to->silent = three[0] / 2 % 2 == 1 ? to->length - 3 : 0;
        fill(to, 12);
    }
    fill(to, body);
    promise(to, start, start + 24, size);
}

/* Should a cut to n bytes be seen, and as what? */
static bool truth(const struct container *container, enum kind kind, size_t n,
                  struct berth_outline *out)
{
    if (n < 8 || (container->silent > 0 && n >= container->silent)) {
        return false;
    }
    for (size_t i = 0; i < container->count; i++) {
        const struct element *element = &container->elements[i];
        if (n < element->known || n - element->start >= element->size) {
            continue;
        }
        out->promised = element->size;
        out->came = n - element->start;
        if (kind == PAGES && out->came < 27) {
            out->promised = 27;
        } else if (kind == PAGES && out->came < 27u + container->bytes[element->start + 26]) {
            out->promised = 27u + container->bytes[element->start + 26];
        }
        return true;
    }
    return false;
}

static void judge_built(enum kind kind, const uint8_t *bytes, size_t length)
{
    static void (*const add[KINDS])(struct container *to, const uint8_t three[3]) = {
        add_box, add_segment, add_page, add_chunk, add_object};
    static struct container container;
    struct berth_outline want, got;
    container.length = container.count = container.silent = 0;
    for (; length >= 3 && container.count < ELEMENTS_MAX; bytes += 3, length -= 3) {
        add[kind](&container, bytes);
    }
    size_t step = container.length / LENGTHS_MAX + 1;
    for (size_t n = container.length % step; n <= container.length; n += step) {
        bool cut = truth(&container, kind, n, &want);
        BERTH_ASSERT(judge(container.bytes, n, &got) == cut);
        BERTH_ASSERT(!cut || (got.promised == want.promised && got.came == want.came));
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length)
{
    if (length > 0 && bytes[0] >= BUILD_FIRST && bytes[0] < BUILD_FIRST + KINDS) {
        judge_built((enum kind)(bytes[0] - BUILD_FIRST), bytes + 1, length - 1);
    } else {
        judge_beginnings(bytes, length);
    }
    return 0;
}
