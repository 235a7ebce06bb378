/* whisper.c - the engine: rows of different ages share decoder calls (run mode STEPS).
 *
 * An instance has slots (requests) and as many lanes (places in the decoder's caches). A request
 * takes a lane only when the encoder has its window, and gives it back when the window is decoded,
 * so the lanes that are decoded lie close together at the front: a decoder call runs lanes 0 to B-1
 * for the smallest bucket B that holds them, and what lies between is stepped along and ignored.
 * When a bucket would get smaller, the last lane moves into a hole (5 ms, a step or two).
 *
 * One call at a time: an alignment or a prompt first (short, and they end or begin a row), then
 * encoding, then decoding. Windows that wait are encoded before the next decoder step, because a
 * step costs nearly the same for one row as for two: the fuller it is, the more speech a second
 * (about a tenth more than by turns). Nobody starves: a row that is encoded takes part in decoding
 * before it has another window, so a step waits for each other slot once at most; the first pass
 * over a long file, which has many slices, takes turns with decoding. Windows are encoded one by
 * one: on a CPU a batch of them takes as long and would be one long call.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "engine/engines.h"
#include "engine/speech.h"
#include "engine/whisper/graphs.h"
#include "engine/whisper/whisper_row.h"

#define SLOTS_DEFAULT 8
#define SLOTS_MAX (BERTH_STEP_EVENTS_MAX / 2) /* a row has two events a step at most */
#define SLOT_NONE UINT32_MAX
#define PEAK_FRAMES 6000 /* of one slice of the first pass: about 50 ms */
#define STEP_MAX 4       /* longest prompt stepped with the others */
#define WORKSPACE_BYTES (48U << 20) /* of an encoder call, and an instance beside its caches */
#define PATH_BYTES_MAX 4096

struct berth_engine_model {
    struct berth_whisper_config config;
    struct berth_tokens *tokens;
    struct berth_graphs *graphs;
    struct berth_whisper_base base;
    struct berth_ort_meter meter;
    uint32_t slot_count;
    uint64_t bytes; /* but for sessions and instances */
    _Atomic uint64_t instance_bytes;
};

struct berth_instance {
    struct berth_engine_model *model;
    uint64_t bytes;
    struct berth_mel *mel;
    struct berth_align *align; /* NULL where the model has no word times */
    struct berth_lanes *lanes;
    float *window;  /* (bins, 3000): the one being encoded */
    float *logits;  /* (slots, at least 2; vocab) */
    struct berth_whisper_row *rows; /* by slot */
    uint32_t *owners;               /* by lane: its slot, or SLOT_NONE */
    int64_t *ids;                   /* by lane */
    int64_t *wanted;
    uint32_t encoding; /* slot whose window is between two pieces, or SLOT_NONE */
    uint32_t piece;
    uint64_t tickets;
    bool decode_next; /* a slice of a long file's first pass was just done */
};

/* --- the model --- */

static enum berth_code load_tokens(const struct berth_model_spec *spec, struct berth_tokens **out,
                                   struct berth_err *err);

static enum berth_code start(const struct berth_engine_env *env, struct berth_err *err)
{
    return berth_ort_start(env->threads, err);
}

static enum berth_code describe(struct berth_model_spec *spec, struct berth_err *err)
{
    struct berth_tokens *tokens = NULL;
    struct berth_whisper_config config = {0};
    uint64_t graph_bytes = 0;
    uint32_t slot_count = SLOTS_DEFAULT;
    enum berth_code code = berth_graphs_find(spec->folder_version, &graph_bytes, err);
    if (code == BERTH_OK) {
        code = berth_speech_slots(spec, SLOTS_MAX, &slot_count, err);
    }
    if (code == BERTH_OK) {
        code = load_tokens(spec, &tokens, err);
    }
    if (code == BERTH_OK) {
        code = berth_whisper_config_read(spec->folder_version, tokens, &config, err);
    }
    if (code == BERTH_OK) {
        code = berth_speech_describe(spec, err);
    }
    if (code == BERTH_OK) {
        code = berth_speech_slots_keep(spec, slot_count, err);
    }
    if (code == BERTH_OK) {
        uint64_t row = (uint64_t)config.decoder_layers * 2 * config.width * sizeof(float) *
                       (config.frames + config.positions);
        spec->task = "automatic-speech-recognition";
        spec->run_mode = BERTH_RUN_STEPS;
        spec->batch_size_max = 0; /* audio has no batch dimension; rows join by steps */
        /* Weights are kept twice, the second time packed for the multiplications. */
        spec->bytes_estimate = 2 * graph_bytes + (slot_count + 1) * row + WORKSPACE_BYTES;
        spec->completed = true;
    }
    berth_whisper_config_finish(&config);
    berth_tokens_destroy(tokens);
    return code;
}

static enum berth_code model_attach(const struct berth_model_spec *spec, struct berth_span weights,
                                    struct berth_engine_model **out, struct berth_err *err)
{
    struct berth_engine_model *model = berth_alloc(sizeof(*model));
    enum berth_code code = BERTH_OK;
    if (model == NULL) {
        return berth_fail(err, BERTH_UNAVAILABLE, "no memory for the model");
    }
    model->slot_count = SLOTS_DEFAULT;
    code = berth_speech_slots(spec, SLOTS_MAX, &model->slot_count, err);
    if (code == BERTH_OK) {
        code = load_tokens(spec, &model->tokens, err);
    }
    if (code == BERTH_OK) {
        code = berth_whisper_config_read(spec->folder_version, model->tokens, &model->config, err);
    }
    if (code == BERTH_OK) {
        code = berth_graphs_open(spec->folder_version, &model->config, &model->meter,
                                 &model->graphs, err);
    }
    if (code == BERTH_OK) {
        model->base = (struct berth_whisper_base){
            .config = &model->config, .tokens = model->tokens,
            .align = berth_graphs_align(model->graphs),
            .step_max = berth_graphs_batch(model->graphs) ? STEP_MAX : 1};
        model->bytes = sizeof(*model) + berth_tokens_bytes(model->tokens) +
                       model->config.arena.bytes_used;
        *out = model;
    } else {
        berth_graphs_close(model->graphs);
        berth_whisper_config_finish(&model->config);
        berth_tokens_destroy(model->tokens);
        berth_free(model);
    }
    return code;
}

static void model_detach(struct berth_engine_model *model)
{
    if (model == NULL) {
        return;
    }
    berth_graphs_close(model->graphs);
    berth_whisper_config_finish(&model->config);
    berth_tokens_destroy(model->tokens);
    berth_free(model);
}

static uint64_t model_bytes(const struct berth_engine_model *model)
{
    return model->bytes + atomic_load(&model->meter.bytes_used) +
           atomic_load(&model->instance_bytes);
}

static uint32_t slots(const struct berth_engine_model *model)
{
    return model->slot_count;
}

static enum berth_code load_tokens(const struct berth_model_spec *spec, struct berth_tokens **out,
                                   struct berth_err *err)
{
    char path[PATH_BYTES_MAX];
    if (snprintf(path, sizeof(path), "%s/tokenizer.json", spec->folder_version) >=
        (int)sizeof(path)) {
        return berth_fail(err, BERTH_INVALID, "the path of tokenizer.json is too long");
    }
    return berth_tokens_load(path, out, err);
}

/* --- an instance --- */

static void *take(struct berth_instance *instance, size_t bytes)
{
    void *memory = berth_alloc(bytes);
    instance->bytes += memory == NULL ? 0 : bytes;
    return memory;
}

static void instance_destroy(struct berth_instance *instance)
{
    if (instance == NULL) {
        return;
    }
    for (uint32_t i = 0; instance->rows != NULL && i < instance->model->slot_count; i++) {
        berth_whisper_row_finish(&instance->rows[i]);
    }
    atomic_fetch_sub(&instance->model->instance_bytes, instance->bytes);
    berth_lanes_destroy(instance->lanes);
    berth_align_destroy(instance->align);
    berth_mel_destroy(instance->mel);
    berth_free(instance->window);
    berth_free(instance->logits);
    berth_free(instance->rows);
    berth_free(instance->owners);
    berth_free(instance->ids);
    berth_free(instance->wanted);
    berth_free(instance);
}

static enum berth_code make_parts(struct berth_instance *instance, struct berth_err *err)
{
    const struct berth_engine_model *model = instance->model;
    size_t count = model->slot_count;
    size_t logits = (count < 2 ? 2 : count) * model->config.vocab * sizeof(float);
    BERTH_TRY(berth_mel_create(model->config.mel_bins, &instance->mel, err));
    BERTH_TRY(berth_lanes_create(model->graphs, model->slot_count, &instance->lanes, err));
    if (model->base.align) {
        BERTH_TRY(berth_align_create(&instance->align, err));
    }
    instance->window =
        take(instance, (size_t)model->config.mel_bins * BERTH_MEL_WINDOW * sizeof(float));
    instance->logits = take(instance, logits);
    instance->rows = take(instance, count * sizeof(*instance->rows));
    instance->owners = take(instance, count * sizeof(*instance->owners));
    instance->ids = take(instance, count * sizeof(*instance->ids));
    instance->wanted = take(instance, count * sizeof(*instance->wanted));
    if (instance->window == NULL || instance->logits == NULL || instance->rows == NULL ||
        instance->owners == NULL || instance->ids == NULL || instance->wanted == NULL) {
        return berth_fail(err, BERTH_UNAVAILABLE, "no memory for an instance of %zu slots", count);
    }
    for (size_t i = 0; i < count; i++) {
        instance->owners[i] = SLOT_NONE;
    }
    instance->bytes += sizeof(*instance) + berth_mel_bytes(instance->mel) +
                       berth_lanes_bytes(instance->lanes) + berth_align_bytes(instance->align);
    return BERTH_OK;
}

static enum berth_code instance_create(struct berth_engine_model *model, uint32_t index,
                                       struct berth_instance **out, struct berth_err *err)
{
    struct berth_instance *instance = berth_alloc(sizeof(*instance));
    if (instance == NULL) {
        return berth_fail(err, BERTH_UNAVAILABLE, "no memory for an instance");
    }
    instance->model = model;
    instance->encoding = SLOT_NONE;
    enum berth_code code = make_parts(instance, err);
    atomic_fetch_add(&model->instance_bytes, instance->bytes);
    if (code == BERTH_OK) {
        *out = instance;
        instance = NULL;
    }
    instance_destroy(instance);
    return code;
}

static enum berth_code admit(struct berth_instance *instance, struct berth_row *rows,
                             size_t row_count, struct berth_err *err)
{
    uint32_t at = 0;
    for (size_t i = 0; i < row_count; i++) {
        while (at < instance->model->slot_count &&
               instance->rows[at].stage != BERTH_WHISPER_FREE) {
            at++;
        }
        if (at == instance->model->slot_count) {
            (void)berth_fail(&rows[i].err, BERTH_INTERNAL, "no free slot");
            continue;
        }
        struct berth_whisper_row *row = &instance->rows[at];
        if (berth_whisper_row_init(row, &instance->model->base, rows[i].request, &rows[i].err) ==
            BERTH_OK) {
            row->ticket = ++instance->tickets;
            rows[i].slot = at;
        }
    }
    return BERTH_OK;
}

/* --- rows and lanes --- */

static void release_lane(struct berth_instance *instance, struct berth_whisper_row *row)
{
    if (row->lane != BERTH_WHISPER_LANE_NONE) {
        berth_lanes_release(instance->lanes, row->lane);
        instance->owners[row->lane] = SLOT_NONE;
        row->lane = BERTH_WHISPER_LANE_NONE;
    }
}

static void drop(struct berth_instance *instance, uint32_t slot)
{
    if (slot >= instance->model->slot_count ||
        instance->rows[slot].stage == BERTH_WHISPER_FREE) {
        return;
    }
    release_lane(instance, &instance->rows[slot]);
    if (instance->encoding == slot) {
        instance->encoding = SLOT_NONE;
    }
    berth_whisper_row_finish(&instance->rows[slot]);
}

/* Ends a row with an error. */
static void fail_row(struct berth_instance *instance, uint32_t slot, const struct berth_err *why,
                     struct berth_step_result *out)
{
    struct berth_step_event *event = berth_step_event_add(out, slot);
    event->final = true;
    event->err = *why;
    drop(instance, slot);
}

static bool is_cancelled(const struct berth_whisper_row *row)
{
    return atomic_load_explicit(&row->request->cancelled, memory_order_relaxed);
}

static void end_cancelled(struct berth_instance *instance, struct berth_step_result *out)
{
    for (uint32_t i = 0; i < instance->model->slot_count; i++) {
        struct berth_whisper_row *row = &instance->rows[i];
        if (row->stage != BERTH_WHISPER_FREE && is_cancelled(row)) {
            struct berth_err why = {0};
            (void)berth_fail(&why, BERTH_CANCELLED, "cancelled while transcribing");
            fail_row(instance, i, &why, out);
        }
    }
}

/* After a row's stage may have changed: reports what is new, lets the lane go where it is done. A
 * part that there is no memory for is left out: the final one has everything. */
static void follow_row(struct berth_instance *instance, uint32_t slot,
                       struct berth_step_result *out)
{
    struct berth_whisper_row *row = &instance->rows[slot];
    struct berth_part *part = NULL;
    struct berth_err err = {0};
    if (row->lane != BERTH_WHISPER_LANE_NONE) {
        bool running = row->stage == BERTH_WHISPER_DECODE;
        berth_lanes_lengths(instance->lanes)[row->lane] = running ? (int32_t)row->attempt.fed : 0;
    }
    if (row->stage == BERTH_WHISPER_ENCODE || row->stage == BERTH_WHISPER_END) {
        release_lane(instance, row);
        row->ticket = ++instance->tickets; /* behind those who wait for the encoder */
    }
    if (berth_whisper_row_has_news(row) &&
        berth_whisper_row_part(row, false, &part, &err) == BERTH_OK) {
        berth_step_event_add(out, slot)->part = part;
    }
    if (row->stage != BERTH_WHISPER_END) {
        return;
    }
    err = (struct berth_err){0};
    if (berth_whisper_row_part(row, true, &part, &err) != BERTH_OK) {
        fail_row(instance, slot, &err, out);
        return;
    }
    struct berth_step_event *event = berth_step_event_add(out, slot);
    event->part = part;
    event->final = true;
    drop(instance, slot);
}

static void take_logits(struct berth_instance *instance, uint32_t slot, float *logits,
                        struct berth_step_result *out)
{
    struct berth_err err = {0};
    if (berth_whisper_row_take(&instance->rows[slot], logits, &err) != BERTH_OK) {
        fail_row(instance, slot, &err, out);
        return;
    }
    follow_row(instance, slot, out);
}

/* --- encoding --- */

/* The next slice of the pass for the loudest frame; frame `content` counts too. */
static void find_peak(struct berth_instance *instance, struct berth_whisper_row *row)
{
    size_t count = row->content + 1 - row->peak_done;
    count = count < PEAK_FRAMES ? count : PEAK_FRAMES;
    float peak = berth_mel_log(instance->mel, &row->audio, row->peak_done, count, NULL);
    row->peak = peak > row->peak ? peak : row->peak;
    row->peak_done += count;
    if (row->peak_done > row->content) {
        row->stage = BERTH_WHISPER_ENCODE;
    }
    row->ticket = ++instance->tickets;
}

static void make_window(struct berth_instance *instance, struct berth_whisper_row *row)
{
    float peak =
        berth_mel_log(instance->mel, &row->audio, row->seek, row->size, instance->window);
    if (row->content <= BERTH_MEL_WINDOW) { /* the window is all there is: no pass before */
        float last = berth_mel_log(instance->mel, &row->audio, row->content, 1, NULL);
        row->peak = peak > last ? peak : last;
    }
    berth_mel_scale(instance->mel, instance->window, row->size, row->peak);
}

static uint32_t free_lane(const struct berth_instance *instance)
{
    uint32_t lane = 0;
    while (instance->owners[lane] != SLOT_NONE) {
        lane++; /* there are as many lanes as slots */
    }
    return lane;
}

/* One piece of the encoder for the row whose window it is. */
static void encode_piece(struct berth_instance *instance, uint32_t slot,
                         struct berth_step_result *out)
{
    struct berth_whisper_row *row = &instance->rows[slot];
    struct berth_err err = {0};
    if (instance->encoding == SLOT_NONE) {
        instance->encoding = slot;
        instance->piece = 0;
        make_window(instance, row);
    }
    uint32_t lane = free_lane(instance);
    struct berth_encode encode = {.piece = instance->piece, .window = instance->window,
                                  .lane = lane, .cancelled = &row->request->cancelled};
    if (berth_lanes_encode(instance->lanes, &encode, &err) != BERTH_OK) {
        fail_row(instance, slot, &err, out);
        return;
    }
    instance->piece++;
    if (instance->piece == berth_graphs_pieces(instance->model->graphs)) {
        instance->encoding = SLOT_NONE;
        instance->owners[lane] = slot;
        row->lane = lane;
        berth_lanes_lengths(instance->lanes)[lane] = 0;
        berth_whisper_row_begin(row);
    }
}

/* --- decoding --- */

static uint32_t bucket_of(const struct berth_instance *instance, uint32_t count)
{
    uint32_t bucket = 1;
    while (bucket < count) {
        bucket *= 2;
    }
    return bucket < instance->model->slot_count ? bucket : instance->model->slot_count;
}

static bool is_decoding(const struct berth_instance *instance, uint32_t lane)
{
    uint32_t slot = instance->owners[lane];
    return slot != SLOT_NONE && instance->rows[slot].stage == BERTH_WHISPER_DECODE;
}

/* Lanes from 0 to the last that is decoded. */
static uint32_t decode_span(const struct berth_instance *instance)
{
    uint32_t span = instance->model->slot_count;
    while (span > 0 && !is_decoding(instance, span - 1)) {
        span--;
    }
    return span;
}

/* The span there would be with no hole before it. */
static uint32_t close_span(const struct berth_instance *instance)
{
    uint32_t left = 0;
    for (uint32_t i = 0; i < instance->model->slot_count; i++) {
        left += is_decoding(instance, i) ? 1 : 0;
    }
    uint32_t lane = 0;
    while (left > 0) {
        left -= instance->owners[lane] == SLOT_NONE || is_decoding(instance, lane) ? 1 : 0;
        lane++;
    }
    return lane;
}

/* Moves lanes forward where that makes the bucket smaller. */
static uint32_t compact(struct berth_instance *instance)
{
    uint32_t span = decode_span(instance);
    uint32_t target = bucket_of(instance, close_span(instance));
    while (span > target) {
        uint32_t from = span - 1;
        uint32_t to = free_lane(instance);
        berth_lanes_move(instance->lanes, from, to);
        instance->owners[to] = instance->owners[from];
        instance->owners[from] = SLOT_NONE;
        instance->rows[instance->owners[to]].lane = to;
        span = decode_span(instance);
    }
    return bucket_of(instance, span);
}

/* Runs one step of lanes [lane, lane + rows) and hands every row that decodes its logits. */
static void decode_lanes(struct berth_instance *instance, uint32_t lane, uint32_t rows,
                         struct berth_step_result *out)
{
    struct berth_err err = {0};
    bool ran[SLOTS_MAX] = {false};
    for (uint32_t i = 0; i < rows; i++) {
        ran[i] = is_decoding(instance, lane + i);
        uint32_t slot = instance->owners[lane + i];
        instance->ids[i] =
            ran[i] ? instance->rows[slot].attempt.next : instance->model->config.eot;
        instance->wanted[i] = i;
    }
    struct berth_decode decode = {.lane = lane, .rows = rows, .steps = 1, .ids = instance->ids,
                                  .wanted = instance->wanted, .wanted_count = rows,
                                  .logits = instance->logits};
    enum berth_code code = berth_lanes_decode(instance->lanes, &decode, &err);
    for (uint32_t i = 0; i < rows; i++) {
        uint32_t slot = instance->owners[lane + i];
        if (!ran[i]) {
            continue;
        }
        if (code != BERTH_OK) {
            fail_row(instance, slot, &err, out);
            continue;
        }
        instance->rows[slot].attempt.fed++;
        take_logits(instance, slot, instance->logits + (size_t)i * instance->model->config.vocab,
                    out);
    }
}

static void decode_step(struct berth_instance *instance, struct berth_step_result *out)
{
    if (berth_graphs_batch(instance->model->graphs)) {
        decode_lanes(instance, 0, compact(instance), out);
        return;
    }
    for (uint32_t lane = 0; lane < instance->model->slot_count; lane++) {
        if (is_decoding(instance, lane)) {
            decode_lanes(instance, lane, 1, out);
        }
    }
}

/* A prompt as a whole: logits of the start token and of the last one. */
static void run_prompt(struct berth_instance *instance, uint32_t slot,
                       struct berth_step_result *out)
{
    struct berth_whisper_row *row = &instance->rows[slot];
    struct berth_whisper_attempt *attempt = &row->attempt;
    const int64_t wanted[] = {attempt->sot_at, attempt->feed_count - 1};
    struct berth_err err = {0};
    struct berth_decode decode = {.lane = row->lane, .rows = 1, .steps = attempt->feed_count,
                                  .ids = attempt->feed, .wanted = wanted, .wanted_count = 2,
                                  .logits = instance->logits};
    berth_lanes_lengths(instance->lanes)[row->lane] = 0;
    if (berth_lanes_decode(instance->lanes, &decode, &err) != BERTH_OK) {
        fail_row(instance, slot, &err, out);
        return;
    }
    berth_whisper_row_take_start(row, instance->logits);
    attempt->fed = attempt->feed_count;
    row->stage = BERTH_WHISPER_DECODE;
    take_logits(instance, slot, instance->logits + instance->model->config.vocab, out);
}

static void align_chunk(struct berth_instance *instance, uint32_t slot,
                        struct berth_step_result *out)
{
    struct berth_whisper_row *row = &instance->rows[slot];
    struct berth_whisper_alignment *alignment = &row->alignment;
    struct berth_err err = {0};
    uint32_t left = alignment->count - alignment->done;
    struct berth_realign realign = {
        .lane = row->lane, .length = alignment->done,
        .steps = left < BERTH_WHISPER_CHUNK ? left : BERTH_WHISPER_CHUNK,
        .ids = alignment->ids + alignment->done};
    enum berth_code code = berth_lanes_realign(instance->lanes, &realign, &err);
    if (code == BERTH_OK) {
        code = berth_whisper_row_align(row, instance->align, &realign.logits, &realign.scores,
                                       &err);
    }
    berth_ort_value_clear(&realign.logits);
    berth_ort_value_clear(&realign.scores);
    if (code != BERTH_OK) {
        fail_row(instance, slot, &err, out);
        return;
    }
    follow_row(instance, slot, out);
}

/* --- what is done next --- */

/* The slot with the lowest ticket in a stage, or SLOT_NONE. */
static uint32_t first_in(const struct berth_instance *instance, enum berth_whisper_stage stage)
{
    uint32_t found = SLOT_NONE;
    for (uint32_t i = 0; i < instance->model->slot_count; i++) {
        const struct berth_whisper_row *row = &instance->rows[i];
        if (row->stage == stage &&
            (found == SLOT_NONE || row->ticket < instance->rows[found].ticket)) {
            found = i;
        }
    }
    return found;
}

static uint32_t count_in(const struct berth_instance *instance, enum berth_whisper_stage stage)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < instance->model->slot_count; i++) {
        count += instance->rows[i].stage == stage ? 1 : 0;
    }
    return count;
}

/* Whose turn it is at the encoder: a window under way goes on, else the oldest of those who wait.
 */
static uint32_t next_to_encode(const struct berth_instance *instance)
{
    if (instance->encoding != SLOT_NONE) {
        return instance->encoding;
    }
    uint32_t peak = first_in(instance, BERTH_WHISPER_PEAK);
    uint32_t encode = first_in(instance, BERTH_WHISPER_ENCODE);
    if (peak == SLOT_NONE || encode == SLOT_NONE) {
        return peak == SLOT_NONE ? encode : peak;
    }
    return instance->rows[peak].ticket < instance->rows[encode].ticket ? peak : encode;
}

/* One call of the model, or a slice of features. */
static void act(struct berth_instance *instance, struct berth_step_result *out)
{
    uint32_t ended = first_in(instance, BERTH_WHISPER_END);
    uint32_t align = first_in(instance, BERTH_WHISPER_ALIGN);
    uint32_t prompt = first_in(instance, BERTH_WHISPER_PROMPT);
    uint32_t encode = next_to_encode(instance);
    bool decoding = count_in(instance, BERTH_WHISPER_DECODE) > 0;
    bool peak = encode != SLOT_NONE && instance->rows[encode].stage == BERTH_WHISPER_PEAK;
    out->steps++;
    if (ended != SLOT_NONE) { /* audio shorter than a frame */
        follow_row(instance, ended, out);
    } else if (align != SLOT_NONE) {
        align_chunk(instance, align, out);
    } else if (prompt != SLOT_NONE) {
        run_prompt(instance, prompt, out);
    } else if (decoding && (encode == SLOT_NONE || (peak && instance->decode_next))) {
        decode_step(instance, out);
        instance->decode_next = false;
    } else if (peak) {
        find_peak(instance, &instance->rows[encode]);
        instance->decode_next = true;
    } else if (encode != SLOT_NONE) {
        encode_piece(instance, encode, out);
    }
}

static uint32_t live_count(const struct berth_instance *instance)
{
    return instance->model->slot_count - count_in(instance, BERTH_WHISPER_FREE);
}

static enum berth_code step(struct berth_instance *instance, uint64_t budget_ns,
                            struct berth_step_result *out, struct berth_err *err)
{
    uint64_t t_start_ns = berth_clock_now_ns();
    out->event_count = 0;
    out->steps = 0;
    do {
        end_cancelled(instance, out);
        if (out->event_count > 0 || live_count(instance) == 0) {
            break;
        }
        act(instance, out);
    } while (out->event_count == 0 && berth_clock_now_ns() - t_start_ns < budget_ns);
    out->live = live_count(instance);
    return BERTH_OK;
}

const struct berth_engine_ops berth_engine_whisper = {
    .name = "whisper",
    .parameters = (const char *const[]){"slots", NULL},
    .start = start,
    .finish = berth_ort_finish,
    .describe = describe,
    .model_attach = model_attach,
    .model_detach = model_detach,
    .model_bytes = model_bytes,
    .instance_create = instance_create,
    .instance_destroy = instance_destroy,
    .admit = admit,
    .step = step,
    .drop = drop,
    .slots = slots,
};
