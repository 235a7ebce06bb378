/* Greedy decoding on the CPU: what the reference decodes from its own encoder outputs; and heads
 * that are made up, for the rules: durations, blanks, tokens at one frame, runs of a CTC token. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "engine/parakeet/cpu.h"
#include "parakeet_golden.h"

#define ROWS_MAX 8
#define CAPACITY 64
#define GOLDEN_CAPACITY 512

struct results {
    int32_t count[ROWS_MAX];
    int32_t steps[ROWS_MAX];
    int32_t token[ROWS_MAX * GOLDEN_CAPACITY];
    int32_t frame[ROWS_MAX * GOLDEN_CAPACITY];
    int32_t duration[ROWS_MAX * GOLDEN_CAPACITY];
    float probability[ROWS_MAX * GOLDEN_CAPACITY];
};

struct job {
    const struct berth_parakeet_config *config;
    const struct berth_parakeet_weights *weights;
    const float *projected;
    uint32_t rows, frames, capacity;
    int32_t lengths[ROWS_MAX];
    uint32_t stop[ROWS_MAX];
    uint32_t slice; /* steps of a call */
};

static struct berth_parakeet_device *device;

static uint32_t decode(const struct job *job, struct results *out)
{
    struct berth_parakeet_shape shape = {.rows = job->rows, .padded = {.frames = job->frames}};
    struct berth_parakeet_counts counts = {.frames = job->lengths};
    size_t bytes = berth_parakeet_cpu_decode_state_bytes(job->config, &shape);
    void *state = berth_alloc(bytes + 64);
    assert_non_null(state);
    memset(state, 0xA5, bytes + 64);
    memset(out, 0, sizeof(*out));
    struct berth_parakeet_decode_call call = {
        .config = job->config, .weights = job->weights, .projected = job->projected,
        .stop = job->stop, .state = (char *)state + 64 - (uintptr_t)state % 64,
        .tokens = {.count = out->count, .token = out->token, .frame = out->frame,
                   .duration = out->duration, .probability = out->probability,
                   .steps = out->steps, .capacity = job->capacity},
        .steps_max = job->slice, .begin = true};
    uint32_t calls = 1;
    while (!berth_parakeet_cpu_decode(device, &shape, &counts, &call)) {
        call.begin = false;
        assert_true(calls++ < 100000);
    }
    berth_free(state);
    return calls;
}

/* --- the reference's own encoder outputs --- */

struct nano {
    struct berth_parakeet_config config;
    struct berth_parakeet_weights weights;
    void *span;
    uint64_t bytes;
};

static enum berth_code sink_write(void *state, uint64_t offset, const void *source, size_t bytes,
                                  struct berth_err *err)
{
    memcpy((char *)state + offset, source, bytes);
    return BERTH_OK;
}

static void nano_open(struct nano *nano)
{
    struct berth_err err = {0};
    assert_int_equal(berth_parakeet_config_read(golden_model(), &nano->config, &err), BERTH_OK);
    nano->bytes = berth_parakeet_weights_bytes(&nano->config, BERTH_PARAKEET_F32);
    nano->span = berth_alloc(nano->bytes + 256);
    assert_non_null(nano->span);
    char *base = (char *)nano->span + 256 - (uintptr_t)nano->span % 256;
    struct berth_parakeet_sink sink = {.write = sink_write, .state = base};
    assert_int_equal(berth_parakeet_weights_read(&nano->config, BERTH_PARAKEET_F32, golden_model(),
                                                 &sink, &err),
                     BERTH_OK);
    berth_parakeet_weights_place(&nano->config, BERTH_PARAKEET_F32, base, &nano->weights);
}

static void check_golden(const struct results *got, uint32_t row, const struct golden *golden)
{
    assert_int_equal(got->count[row], golden->token_count);
    for (size_t i = 0; i < golden->token_count; i++) {
        size_t at = row * GOLDEN_CAPACITY + i;
        assert_int_equal(got->token[at], golden->tokens[i]);
        assert_int_equal(got->frame[at], golden->frames[i]);
        assert_int_equal(got->duration[at], golden->durations[i]);
        assert_true(got->probability[at] > 0.01F && got->probability[at] <= 1.0F);
    }
}

static void test_golden(void **state)
{
    static const uint32_t slices[] = {1, 7, 100000};
    static struct results together;
    static struct results alone;
    static struct golden golden[GOLDEN_ARRAYS_COUNT];
    struct nano nano;
    float *values[GOLDEN_ARRAYS_COUNT];
    struct job job = {.rows = GOLDEN_ARRAYS_COUNT, .capacity = GOLDEN_CAPACITY};
    nano_open(&nano);
    const uint32_t wide = nano.config.prediction;
    for (int i = 0; i < GOLDEN_ARRAYS_COUNT; i++) {
        size_t count = 0;
        values[i] = golden_floats("projected", i, &count);
        golden_read(i, &golden[i]);
        job.lengths[i] = (int32_t)(count / wide);
        job.frames = count / wide > job.frames ? (uint32_t)(count / wide) : job.frames;
    }
    float *all = berth_alloc((size_t)job.rows * job.frames * wide * sizeof(float));
    assert_non_null(all);
    for (uint32_t i = 0; i < job.rows; i++) {
        memcpy(all + (size_t)i * job.frames * wide, values[i],
               (size_t)job.lengths[i] * wide * sizeof(float));
    }
    job.config = &nano.config;
    job.weights = &nano.weights;
    for (size_t s = 0; s < BERTH_COUNT_OF(slices); s++) {
        job.projected = all;
        job.slice = slices[s];
        decode(&job, &together);
        for (uint32_t i = 0; i < job.rows; i++) {
            check_golden(&together, i, &golden[i]);
        }
    }
    for (uint32_t i = 0; i < job.rows; i++) { /* alone, to the bit */
        struct job one = job;
        one.rows = 1;
        one.frames = (uint32_t)job.lengths[i];
        one.lengths[0] = job.lengths[i];
        one.projected = values[i];
        decode(&one, &alone);
        check_golden(&alone, 0, &golden[i]);
        assert_memory_equal(alone.probability, together.probability + i * GOLDEN_CAPACITY,
                            golden[i].token_count * sizeof(float));
        assert_int_equal(alone.steps[0], together.steps[i]);
        berth_free(values[i]);
    }
    berth_free(all);
    berth_free(nano.span);
}

/* --- made-up heads --- */

#define WIDE 16
#define VOCABULARY 5 /* tokens 0 to 3, blank 4 */
#define BLANK 4
#define OUTPUTS_MAX (VOCABULARY + 4)

/* A frame of class k has a one at k: column k of the head is what it says. */
struct made_up {
    struct berth_parakeet_config config;
    struct berth_parakeet_weights weights;
    float head[OUTPUTS_MAX * WIDE];
    float bias[OUTPUTS_MAX];
    float zeros[4 * WIDE * WIDE];
};

static void make_up(struct made_up *m, enum berth_parakeet_head head)
{
    memset(m, 0, sizeof(*m));
    m->config = (struct berth_parakeet_config){
        .head = head, .vocabulary = VOCABULARY, .blank = BLANK, .symbols_max = 3};
    uint32_t outputs = VOCABULARY;
    if (head == BERTH_PARAKEET_TDT) {
        static const uint32_t durations[] = {0, 1, 2, 4};
        memcpy(m->config.durations, durations, sizeof(durations));
        m->config.duration_count = 4;
        outputs += 4;
    }
    if (head != BERTH_PARAKEET_CTC) {
        m->config.prediction = WIDE;
        m->config.prediction_layers = 1;
        m->weights.embedding = m->zeros;
        m->weights.lstm[0] = (struct berth_parakeet_lstm){
            .input = {.weight = m->zeros, .in = WIDE, .out = 4 * WIDE},
            .state = {.weight = m->zeros, .in = WIDE, .out = 4 * WIDE}, .bias = m->zeros};
        m->weights.prediction_out = (struct berth_parakeet_linear){
            .weight = m->zeros, .bias = m->zeros, .in = WIDE, .out = WIDE};
    } else {
        m->config.hidden = WIDE;
    }
    m->weights.head = (struct berth_parakeet_linear){
        .weight = m->head, .bias = m->bias, .in = WIDE, .out = outputs};
}

/* Frames of that class say the token with the duration of that index. */
static void set_class(struct made_up *m, uint32_t class, uint32_t token, uint32_t duration)
{
    m->head[token * WIDE + class] = 8;
    if (m->config.head == BERTH_PARAKEET_TDT) {
        m->head[(VOCABULARY + duration) * WIDE + class] = 8;
    }
}

struct made_up_case {
    enum berth_parakeet_head head;
    const char *frames; /* a letter each, see below */
    const char *want;   /* token@frame+duration, blanks left out */
    int32_t steps;
};

/* Letters: a to d say tokens 0 to 3 and go on 1 (TDT), A to D go on 0, x blank with 2, X blank with
 * 0, 4 token 1 with 4. */
static const struct made_up_case cases[] = {
    {BERTH_PARAKEET_TDT, "abc", "0@0+1 1@1+1 2@2+1 ", 3},
    {BERTH_PARAKEET_TDT, "xxxxx", "", 3},
    {BERTH_PARAKEET_TDT, "XX", "", 2},
    {BERTH_PARAKEET_TDT, "A", "0@0+0 0@0+0 0@0+1 ", 3},
    {BERTH_PARAKEET_TDT, "Ab", "0@0+0 0@0+0 0@0+1 1@1+1 ", 4},
    {BERTH_PARAKEET_TDT, "4abcd", "1@0+4 3@4+1 ", 2},
    {BERTH_PARAKEET_TDT, "4a", "1@0+4 ", 1},
    {BERTH_PARAKEET_TDT, "", "", 0},
    {BERTH_PARAKEET_RNNT, "ax", "0@0+0 0@0+0 0@0+1 ", 4},
    {BERTH_PARAKEET_RNNT, "xx", "", 2},
    {BERTH_PARAKEET_CTC, "aaxabbxxc", "0@0+2 0@3+1 1@4+2 2@8+1 ", 9},
    {BERTH_PARAKEET_CTC, "xxx", "", 3},
};

static uint32_t class_of(char letter)
{
    static const char letters[] = "abcdABCDxX4";
    const char *found = strchr(letters, letter);
    assert_non_null(found);
    return (uint32_t)(found - letters);
}

static void make_classes(struct made_up *m)
{
    for (uint32_t i = 0; i < 4; i++) {
        set_class(m, i, i, 1);
        set_class(m, 4 + i, i, 0);
    }
    set_class(m, 8, BLANK, 2);
    set_class(m, 9, BLANK, 0);
    set_class(m, 10, 1, 3);
}

static void test_rules(void **state)
{
    static struct made_up m;
    static struct results got;
    for (size_t i = 0; i < BERTH_COUNT_OF(cases); i++) {
        const struct made_up_case *c = &cases[i];
        float frames[16 * WIDE] = {0};
        char said[256] = "";
        struct job job = {.config = &m.config, .weights = &m.weights, .projected = frames,
                          .rows = 1, .frames = 16, .capacity = CAPACITY, .slice = 2};
        make_up(&m, c->head);
        make_classes(&m);
        job.lengths[0] = (int32_t)strlen(c->frames);
        for (size_t f = 0; c->frames[f] != '\0'; f++) {
            frames[f * WIDE + class_of(c->frames[f])] = 1;
        }
        decode(&job, &got);
        for (int32_t t = 0; t < got.count[0]; t++) {
            size_t used = strlen(said);
            snprintf(said + used, sizeof(said) - used, "%d@%d+%d ", got.token[t], got.frame[t],
                     got.duration[t]);
            double want = exp(8) / (exp(8) + VOCABULARY - 1);
            assert_true(fabs(got.probability[t] - want) < 1e-5);
        }
        if (strcmp(said, c->want) != 0 || got.steps[0] != c->steps) {
            fail_msg("case %zu: '%s', %d steps", i, said, got.steps[0]);
        }
    }
}

/* All logits equal: the first token, the first duration. */
static void test_ties(void **state)
{
    static struct made_up m;
    static struct results got;
    float frames[2 * WIDE] = {0};
    struct job job = {.config = &m.config, .weights = &m.weights, .projected = frames, .rows = 1,
                      .frames = 2, .capacity = CAPACITY, .slice = 100, .lengths = {2}};
    make_up(&m, BERTH_PARAKEET_TDT);
    decode(&job, &got);
    assert_int_equal(got.count[0], 6); /* three at each frame */
    assert_int_equal(got.token[0], 0);
    assert_int_equal(got.duration[0], 0);
    assert_true(fabsf(got.probability[0] - 1.0F / VOCABULARY) < 1e-6F);
}

/* Rows that are stopped, empty or full, beside one that goes on; values that are no numbers. */
static void test_ends(void **state)
{
    static struct made_up m;
    static struct results got;
    float frames[4 * 8 * WIDE] = {0};
    struct job job = {.config = &m.config, .weights = &m.weights, .projected = frames, .rows = 4,
                      .frames = 8, .capacity = 10, .slice = 3, .lengths = {8, 8, 0, 8}};
    make_up(&m, BERTH_PARAKEET_TDT);
    make_classes(&m);
    for (size_t f = 0; f < 8; f++) {
        frames[(0 * 8 + f) * WIDE + class_of('A')] = 1; /* would say 24 */
        frames[(1 * 8 + f) * WIDE + class_of('b')] = 1;
        frames[(3 * 8 + f) * WIDE + class_of('c')] = f == 3 ? NAN : 1;
    }
    job.stop[1] = 1;
    decode(&job, &got);
    assert_int_equal(got.count[0], 10);
    assert_int_equal(got.count[1], 0);
    assert_int_equal(got.count[2], 0);
    assert_int_equal(got.count[3], -1); /* the row is given up */
    for (size_t i = 0; i < BERTH_COUNT_OF(m.head); i++) {
        m.head[i] = NAN;
    }
    decode(&job, &got);
    assert_int_equal(got.count[0], -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_golden), cmocka_unit_test(test_rules), cmocka_unit_test(test_ties),
        cmocka_unit_test(test_ends)};
    struct berth_err err = {0};
    if (berth_parakeet_cpu.open("cpu:0", 2, &device, &err) != BERTH_OK) {
        return 1;
    }
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    berth_parakeet_cpu.close(device);
    return failed;
}
