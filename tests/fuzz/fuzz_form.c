/* fuzz_form.c - a form of OpenAI's audio API, from its parts to the request that is submitted.
 *
 * Input: a byte that chooses the route and how the body is cut, then parts, each ended by a NUL: a
 * byte that chooses the name, then the value, where 0xFF stands for a NUL. The form is put together
 * here, so that what should come of it is known: it is taken exactly if each part is good and they
 * go together, fed whole or in pieces; and the request says what the last part of each name said.
 * net/, the controller and the decoder are stand-ins. */
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Stand-ins, under their own names. */
#define berth_http_header fuzz_header
#define berth_http_content_length fuzz_content_length
#define berth_http_body fuzz_body
#define berth_http_take_body fuzz_take_body
#define berth_sched_judge fuzz_sched_judge
#define berth_catalog_find fuzz_catalog_find
#define berth_media_submit fuzz_media_submit
#define berth_call_pin fuzz_call_pin
#define berth_call_unpin fuzz_call_unpin
#define berth_call_fail fuzz_call_fail
#define berth_call_spec fuzz_call_spec
#define berth_call_submit fuzz_call_submit
#define berth_call_open_request fuzz_call_open_request
#include "api/openai.c"

#define PIECES_MAX 24
#define FRAMES 8
#define BOUNDARY "cut"
#define LONG 0xE0   /* all of the byte that chooses: the value is filled up to the limit, */
#define LONGER 0x10 /* or past it */

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length);

static const char *const names[] = {
    "file", "model", "response_format", "temperature", "stream", "timestamp_granularities[]",
    "timestamp_granularities", "language", "prompt", "include[]", "File", "temperature[]",
    "chunking_strategy", "chunking_strategy[type]"};
static const char *const errors[] = {
    "file", "model", "response_format", "temperature", "stream", "timestamp_granularities[]",
    "timestamp_granularities", "language", "prompt", "include[]", "chunking_strategy",
    "chunking_strategy[type]"};

struct piece {
    const char *name;
    char *value; /* owned; NUL behind it */
    size_t length;
};

static struct form {
    struct piece pieces[PIECES_MAX];
    size_t count;
    struct berth_buf body;
    bool translation, model_named;
} form;

static struct berth_slabs *slabs;
static struct berth_model *model, *deaf; /* "m", and "n", which takes no audio */
static struct berth_range body;
static bool submitted, decoding;
static char exchange[1];

/* --- stand-ins --- */

const char *fuzz_header(const struct berth_exchange *e, const char *name)
{
    if (strcmp(name, "Content-Type") == 0) {
        return "multipart/form-data; boundary=" BOUNDARY;
    }
    return strcmp(name, "Berth-Model") == 0 && form.model_named ? "m" : NULL;
}

int64_t fuzz_content_length(const struct berth_exchange *e)
{
    return -1;
}

const struct berth_range *fuzz_body(const struct berth_exchange *e)
{
    return &body;
}

struct berth_range fuzz_take_body(struct berth_exchange *e)
{
    struct berth_range taken = body;
    body = (struct berth_range){0};
    return taken;
}

enum berth_code fuzz_sched_judge(struct berth_sched *sched, struct berth_model *judged,
                                 uint64_t t_deadline_ns, struct berth_err *err)
{
    return BERTH_OK;
}

struct berth_model *fuzz_catalog_find(struct berth_catalog *catalog, const char *name,
                                      uint64_t version)
{
    return strcmp(name, "m") == 0   ? berth_model_retain(model)
           : strcmp(name, "n") == 0 ? berth_model_retain(deaf)
                                    : NULL;
}

enum berth_code fuzz_media_submit(struct berth_media *media, struct berth_media_job *job,
                                  struct berth_err *err)
{
    decoding = true;
    return BERTH_OK;
}

void fuzz_call_pin(struct berth_call *call)
{
}

void fuzz_call_unpin(struct berth_call *call)
{
}

void fuzz_call_fail(struct berth_call *call, const struct berth_err *err)
{
    BERTH_ASSERT(false); /* nothing is left that could be wrong with it */
}

enum berth_code fuzz_call_spec(struct berth_call *call, struct berth_model_spec **out,
                               struct berth_err *err)
{
    *out = berth_model_spec(call->model);
    return BERTH_OK;
}

enum berth_code fuzz_call_submit(struct berth_call *call, struct berth_err *err)
{
    submitted = true;
    return BERTH_OK;
}

enum berth_code fuzz_call_open_request(struct berth_call *call,
                                       void (*on)(struct berth_post *post), struct berth_err *err)
{
    call->request = berth_request_create(slabs, 1 << 20);
    BERTH_ASSERT(call->request != NULL);
    return BERTH_OK;
}

/* --- what is right --- */

static const char *last_of(const char *name, const char *otherwise)
{
    for (size_t i = form.count; i > 0; i--) {
        if (strcmp(form.pieces[i - 1].name, name) == 0) {
            return form.pieces[i - 1].value;
        }
    }
    return otherwise;
}

static size_t count_of(const char *name)
{
    size_t count = 0;
    for (size_t i = 0; i < form.count; i++) {
        count += strcmp(form.pieces[i].name, name) == 0;
    }
    return count;
}

static bool is_one_of(const char *value, const char *list) /* words between spaces */
{
    char word[64];
    snprintf(word, sizeof(word), " %s ", value);
    return strlen(value) < 32 && strchr(value, ' ') == NULL && strstr(list, word) != NULL;
}

/* [sign] digits [. digits] [e [sign] digits], with a digit before or behind the point. */
static bool is_decimal(const char *at)
{
    at += *at == '-' || *at == '+';
    size_t digits = strspn(at, "0123456789");
    at += digits;
    if (*at == '.') {
        size_t more_digits = strspn(at + 1, "0123456789");
        digits += more_digits;
        at += 1 + more_digits;
    }
    if (digits > 0 && (*at == 'e' || *at == 'E')) {
        at += 1 + (at[1] == '-' || at[1] == '+');
        digits = strspn(at, "0123456789");
        at += digits;
    }
    return digits > 0 && *at == '\0';
}

static bool is_server_vad(const struct piece *piece)
{
    static const char *const type_name[] = {"type"};
    struct berth_json_value root, type;
    const char *what;
    size_t position;
    if (berth_json_check(piece->value, piece->length, &root, &what, &position) != BERTH_OK) {
        return false;
    }
    berth_json_members(&root, type_name, 1, &type);
    return type.kind == BERTH_JSON_STRING && berth_json_equals(&type, "server_vad");
}

static bool is_good(const struct piece *piece)
{
    const char *value = piece->value;
    if (strcmp(piece->name, "file") == 0) {
        return piece->length > 0 && count_of("file") == 1;
    }
    if (piece->length > FIELD_MAX || strlen(value) != piece->length ||
        berth_utf8_valid_length(value, piece->length) != piece->length) {
        return false;
    }
    if (strcmp(piece->name, "model") == 0) {
        return strcmp(value, "m") == 0;
    }
    if (strcmp(piece->name, "response_format") == 0) {
        return is_one_of(value, " json text srt verbose_json vtt ");
    }
    if (strcmp(piece->name, "stream") == 0) {
        return is_one_of(value, " true True 1 false False 0 ");
    }
    if (strcmp(piece->name, "timestamp_granularities") == 0 ||
        strcmp(piece->name, "timestamp_granularities[]") == 0) {
        return is_one_of(value, " word segment ");
    }
    if (strcmp(piece->name, "include[]") == 0) {
        return value[0] == '\0';
    }
    if (strcmp(piece->name, "chunking_strategy") == 0) {
        return value[0] == '\0' || strcmp(value, "auto") == 0 || is_server_vad(piece);
    }
    if (strcmp(piece->name, "chunking_strategy[type]") == 0) {
        return strcmp(value, "server_vad") == 0;
    }
    double number = strtod(value, NULL);
    return strcmp(piece->name, "temperature") != 0 ||
           (is_decimal(value) && number >= 0 && number <= 1);
}

static bool form_is_good(void)
{
    bool good = count_of("file") == 1 && (form.model_named || count_of("model") > 0);
    for (size_t i = 0; i < form.count; i++) {
        good = good && is_good(&form.pieces[i]);
    }
    bool named = count_of("timestamp_granularities") + count_of("timestamp_granularities[]") > 0;
    const char *format = last_of("response_format", "json");
    return good && (!named || strcmp(format, "verbose_json") == 0) &&
           (!is_one_of(last_of("stream", "0"), " true True 1 ") ||
            is_one_of(format, " json text "));
}

/* --- the form --- */

static void read_form(const uint8_t *bytes, size_t length)
{
    form.translation = bytes[0] % 2 == 1;
    form.model_named = bytes[0] / 2 % 2 == 1;
    bytes++;
    length--;
    bool was_long = false; /* one is enough */
    while (length >= 2 && form.count < PIECES_MAX) {
        const uint8_t *end = memchr(bytes + 1, '\0', length - 1);
        size_t used = end == NULL ? length : (size_t)(end - bytes);
        struct piece *piece = &form.pieces[form.count++];
        bool is_long = (bytes[0] & LONG) == LONG && !was_long;
        size_t limit = is_long ? FIELD_MAX + ((bytes[0] & LONGER) != 0) : 0;
        was_long = was_long || is_long;
        piece->name = names[(bytes[0] & 0x0F) % BERTH_COUNT_OF(names)];
        piece->length = used - 1 > limit ? used - 1 : limit;
        piece->value = berth_alloc(piece->length + 1);
        BERTH_ASSERT(piece->value != NULL);
        memset(piece->value, 'a', piece->length);
        for (size_t i = 1; i < used; i++) {
            piece->value[i - 1] = (char)(bytes[i] == 0xFF ? 0 : bytes[i]);
        }
        berth_buf_printf(&form.body, "--" BOUNDARY "\r\nContent-Disposition: form-data; name=\"%s\""
                         "\r\n\r\n", piece->name);
        berth_buf_append(&form.body, piece->value, piece->length);
        berth_buf_puts(&form.body, "\r\n");
        used += end != NULL;
        bytes += used;
        length -= used;
    }
    berth_buf_puts(&form.body, "--" BOUNDARY "--\r\n");
    BERTH_ASSERT(berth_buf_ok(&form.body));
}

static void form_finish(void)
{
    for (size_t i = 0; i < form.count; i++) {
        berth_free(form.pieces[i].value);
    }
    berth_buf_finish(&form.body);
    form = (struct form){0};
}

static const struct berth_param *param_of(const struct berth_request *request, const char *name)
{
    const struct berth_param *found = NULL;
    for (size_t i = 0; i < request->params.count; i++) {
        if (strcmp(request->params.items[i].name, name) == 0) {
            BERTH_ASSERT(found == NULL);
            found = &request->params.items[i];
        }
    }
    return found;
}

static void judge_text(const struct berth_request *request, const char *name)
{
    const struct berth_param *param = param_of(request, name);
    const char *want = last_of(name, "");
    BERTH_ASSERT((param != NULL) == (want[0] != '\0'));
    BERTH_ASSERT(param == NULL || (param->kind == BERTH_PARAM_STRING &&
                                   strcmp(param->value.string, want) == 0));
}

static void judge_request(const struct berth_request *request)
{
    const struct berth_param *words = param_of(request, "word_timestamps");
    const struct berth_param *heat = param_of(request, "temperature");
    const struct berth_param *task = param_of(request, "task");
    bool want_words = false;
    for (size_t i = 0; i < form.count; i++) {
        want_words = want_words || (strncmp(form.pieces[i].name, "timestamp", 9) == 0 &&
                                    strcmp(form.pieces[i].value, "word") == 0);
    }
    BERTH_ASSERT(words != NULL && words->value.boolean == want_words);
    BERTH_ASSERT(heat != NULL && heat->value.real == strtod(last_of("temperature", "0"), NULL));
    BERTH_ASSERT(task != NULL && strcmp(task->value.string,
                                        form.translation ? "translate" : "transcribe") == 0);
    judge_text(request, "language");
    judge_text(request, "prompt");
    BERTH_ASSERT(request->input_count == 1 && request->inputs[0].dims[0] == FRAMES);
}

/* The decoder is done: the body is overwritten first, for nothing may still stand in it. */
static void finish_decoding(struct berth_call *call)
{
    struct berth_media_job *job = &call->media;
    const char *file = last_of("file", "");
    BERTH_ASSERT(decoding && memcmp(berth_slabs_pointer(slabs, &job->in), file,
                                    (size_t)job->in.length) == 0);
    memset(berth_slabs_pointer(slabs, &call->request->body), '#',
           (size_t)call->request->body.length);
    BERTH_ASSERT(berth_slabs_take(slabs, FRAMES * sizeof(float), &job->out, NULL) == BERTH_OK);
    job->frame_count = FRAMES;
    job->post.deliver(&job->post);
    BERTH_ASSERT(submitted);
    judge_request(call->request);
}

/* Whole, or with what has come growing by 1 to 1021 bytes at a time. */
static enum berth_code feed(unsigned cut)
{
    static struct berth_api api;
    struct berth_err err = {0};
    struct berth_route route = {.pattern = form.translation ? "/v1/audio/translations"
                                                            : "/v1/audio/transcriptions"};
    struct berth_call call = {.api = &api, .exchange = (struct berth_exchange *)(void *)exchange,
                              .route = &route};
    api.options.slabs = slabs;
    submitted = decoding = false;
    berth_arena_init(&call.arena, 64u << 20);
    BERTH_ASSERT(berth_slabs_take(slabs, form.body.length, &body, &err) == BERTH_OK);
    memcpy(berth_slabs_pointer(slabs, &body), form.body.bytes, form.body.length);
    enum berth_code code = head(&call, &err);
    size_t step = cut == 0 ? 0 : cut * 4 + 1;
    step = form.body.length / 64 > step ? form.body.length / 64 : step; /* a long one in fewer */
    for (size_t at = step; code == BERTH_OK && cut > 0 && at < form.body.length; at += step) {
        code = more(&call, at, &err);
    }
    code = code == BERTH_OK ? end(&call, &err) : code;
    if (code == BERTH_OK) {
        finish_decoding(&call);
    } else {
        bool literal = err.field == NULL;
        for (size_t i = 0; i < BERTH_COUNT_OF(errors); i++) {
            literal = literal || strcmp(err.field, errors[i]) == 0;
        }
        BERTH_ASSERT(literal && err.code == code && err.msg[0] != '\0');
        bool include = err.field != NULL && strcmp(err.field, "include[]") == 0;
        BERTH_ASSERT(code == BERTH_INVALID || code == BERTH_TOO_LARGE || code == BERTH_NOT_FOUND ||
                     (code == BERTH_UNSUPPORTED && include));
    }
    berth_slabs_give(slabs, &body);
    berth_request_release(call.request);
    berth_model_release(call.model);
    berth_arena_finish(&call.arena);
    struct berth_slabs_stats stats;
    berth_slabs_stats(slabs, &stats);
    BERTH_ASSERT(stats.bytes_out == 0);
    return code;
}

static struct berth_model *make_model(const char *name, const char *task)
{
    struct berth_model_spec *spec = berth_spec_create();
    struct berth_model *made = berth_model_create(name, 1);
    BERTH_ASSERT(spec != NULL && made != NULL);
    spec->name = name;
    spec->task = task;
    berth_model_set_spec(made, spec);
    return made;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length)
{
    if (slabs == NULL) {
        struct berth_slabs_options options = {.bytes_budget = 64 << 20, .bytes_pool_max = 8 << 20};
        BERTH_ASSERT(berth_slabs_create(&options, &slabs, NULL) == BERTH_OK);
        model = make_model("m", "automatic-speech-recognition");
        deaf = make_model("n", "");
    }
    if (length == 0) {
        return 0;
    }
    read_form(bytes, length);
    bool good = form_is_good();
    bool plain = true; /* no value holds a delimiter of its own */
    for (size_t i = 0; i < form.count; i++) {
        plain = plain && memmem(form.pieces[i].value, form.pieces[i].length, "\n--" BOUNDARY,
                                sizeof("\n--" BOUNDARY) - 1) == NULL;
    }
    if (plain) {
        BERTH_ASSERT((feed(0) == BERTH_OK) == good);
        BERTH_ASSERT((feed(1u + bytes[0] / 4) == BERTH_OK) == good);
    }
    form_finish();
    return 0;
}
