/* The Whisper engine as a whole: on a scripted model of a few KB (tests/models/whisper_scripted,
 * made by tools/convert/whisper_scripted.py, whose docstring says what it answers), always; and on
 * tiny.en and real speech where `make models` has run, against what faster-whisper says. */
#include <dirent.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <unistd.h>
#include <cmocka.h>

#include <jansson.h>

#include "engine/whisper/whisper_row.h"
#include "media/resample.h"
#include "sanitizer.h"
#include "speech_rig.h"

#define RATE 16000

static const struct berth_engine_ops *const ops = &berth_engine_whisper;
static char source[1024];

/* --- a model and what it is asked --- */

static const struct berth_param with_words = {"word_timestamps", BERTH_PARAM_BOOL,
                                              {.boolean = true}};
static const struct berth_param without_times = {"without_timestamps", BERTH_PARAM_BOOL,
                                                 {.boolean = true}};

static enum berth_code whisper_open(struct rig *rig, const char *folder, const char *slots,
                                    struct berth_err *err)
{
    struct berth_key_value parameter = {.key = "slots", .value = slots};
    return rig_open(rig, ops, folder, &parameter, err);
}

static void whisper_must(struct rig *rig, const char *name, const char *slots)
{
    static char path[2048]; /* the spec borrows it */
    struct berth_err err = {0};
    (void)snprintf(path, sizeof(path), "%s/%s", source, name);
    if (whisper_open(rig, path, slots, &err) != BERTH_OK) {
        fail_msg("%s", err.msg);
    }
}

static void add_text(struct job *job, const char *name, const char *value)
{
    struct berth_param param = {.name = name, .kind = BERTH_PARAM_STRING, .value.string = value};
    if (value != NULL) {
        job_add(job, param);
    }
}

/* --- sounds --- */

static float *tone(double hertz, double level, size_t count)
{
    float *samples = berth_alloc((count + 1) * sizeof(*samples));
    assert_non_null(samples);
    for (size_t i = 0; i < count; i++) {
        samples[i] = (float)(level * sin(2 * M_PI * hertz * (double)i / RATE));
    }
    return samples;
}

/* A recording of .deps/speech, 16 bits and one channel, at 16 kHz; NULL: it is not there. */
static float *speech(const char *name, size_t *count)
{
    static float block[BERTH_RESAMPLE_PUSH_MAX];
    char path[2048];
    unsigned char head[44];
    struct berth_resampler *resampler = NULL;
    struct berth_err err = {0};
    (void)snprintf(path, sizeof(path), "%s/.deps/speech/%s.wav", source, name);
    FILE *file = fopen(path, "rb");
    if (file == NULL) {
        return NULL;
    }
    assert_int_equal(fread(head, 1, sizeof(head), file), sizeof(head));
    assert_memory_equal(head + 36, "data", 4);
    uint32_t rate = (uint32_t)head[24] | (uint32_t)head[25] << 8 | (uint32_t)head[26] << 16;
    assert_int_equal(berth_resampler_create(rate, RATE, &resampler, &err), BERTH_OK);
    size_t capacity = 1 << 20;
    float *out = berth_alloc(capacity * sizeof(*out));
    size_t written = 0;
    assert_non_null(out);
    for (;;) {
        int16_t raw[4096];
        size_t got = fread(raw, sizeof(*raw), BERTH_COUNT_OF(raw), file);
        for (size_t i = 0; i < got; i++) {
            block[i] = (float)raw[i] / 32768;
        }
        assert_true(written + berth_resampler_room(resampler, got) < capacity);
        written += berth_resampler_push(resampler, block, got, out + written);
        if (got < BERTH_COUNT_OF(raw)) {
            break;
        }
    }
    for (size_t more = 1; more > 0; written += more) {
        more = berth_resampler_flush(resampler, out + written, capacity - written);
    }
    fclose(file);
    berth_resampler_destroy(resampler);
    *count = written;
    return out;
}

static bool have_model(const char *name)
{
    char path[2048];
    (void)snprintf(path, sizeof(path), "%s/models/%s/1/decoder.onnx", source, name);
    if (access(path, R_OK) == 0) {
        return true;
    }
    print_message("skipped: no models/%s (make models)\n", name);
    return false;
}

/* --- the scripted model --- */

struct script_case {
    double hertz; /* 0: silence */
    double seconds;
    const char *language;
    const char *task;
    const char *prompt;
    bool plain; /* without timestamps */
    const char *text;
    const char *heard; /* language of the answer */
    size_t segments;
};

static const struct script_case script_cases[] = {
    {300, 3, NULL, NULL, NULL, false, "Guten Tag Welt", "de", 2},
    {5000, 3, NULL, NULL, NULL, false, "Bon jour monde", "fr", 2},
    {5000, 3, NULL, NULL, "never", false, "Bon jour monde", "fr", 2},
    {5000, 3, "fr", NULL, NULL, true, "Bon jour monde", "fr", 1},
    {300, 3, "German", NULL, "hum hum hum hum hum", true, "Guten Tag Welt", "de", 1},
    {300, 3, NULL, "translate", NULL, false, "Good day world", "de", 2},
    {300, 3, "de", "translate", NULL, true, "Good day world", "de", 1},
    {0, 30, NULL, NULL, NULL, false, "", "en", 0},
    {0, 30, "de", NULL, NULL, true, "", "de", 0},
    {300, 0.05, "de", NULL, NULL, false, "Guten Tag Welt", "de", 2},
    {300, 0.005, "de", NULL, NULL, false, "", "de", 0},
    {300, 0.005, NULL, NULL, NULL, false, "", "", 0},
    {300, 65, NULL, NULL, NULL, true, "Guten Tag Welt Guten Tag Welt Guten Tag Welt", "de", 3},
};

/* All cases at once on as many slots, or fewer than there are cases. */
static void run_scripts(const char *folder, const char *slots, size_t at_once)
{
    static struct job jobs[BERTH_COUNT_OF(script_cases)];
    struct rig rig;
    whisper_must(&rig, folder, slots);
    assert_int_equal(rig.spec->run_mode, BERTH_RUN_STEPS);
    assert_string_equal(rig.spec->task, "automatic-speech-recognition");
    assert_true(ops->model_bytes(rig.model) > 0);
    memset(jobs, 0, sizeof(jobs));
    for (size_t i = 0; i < BERTH_COUNT_OF(jobs); i++) {
        const struct script_case *c = &script_cases[i];
        jobs[i].count = (size_t)(c->seconds * RATE);
        jobs[i].samples = tone(c->hertz, 0.3, jobs[i].count);
        add_text(&jobs[i], "language", c->language);
        add_text(&jobs[i], "task", c->task);
        add_text(&jobs[i], "prompt", c->prompt);
        if (c->plain) {
            job_add(&jobs[i], without_times);
        }
    }
    for (size_t first = 0; first < BERTH_COUNT_OF(jobs); first += at_once) {
        size_t left = BERTH_COUNT_OF(jobs) - first;
        jobs_run(&rig, jobs + first, left < at_once ? left : at_once);
    }
    for (size_t i = 0; i < BERTH_COUNT_OF(jobs); i++) {
        const struct script_case *c = &script_cases[i];
        const struct answer *answer = &jobs[i].answer;
        if (answer->code != BERTH_OK || strcmp(berth_buf_text(&answer->text), c->text) != 0 ||
            strcmp(answer->language, c->heard) != 0 || answer->segment_count != c->segments) {
            fail_msg("%s, case %zu: '%s' in '%s', %zu segments", folder, i,
                     berth_buf_text(&answer->text), answer->language, answer->segment_count);
        }
        assert_string_equal(berth_buf_text(&answer->deltas), c->text);
        assert_true(fabs(answer->seconds - c->seconds) < 1e-4);
    }
    jobs_drop(jobs, BERTH_COUNT_OF(jobs));
    rig_close(&rig);
}

static void test_scripted_own(void **state)
{
    run_scripts("tests/models/whisper_scripted/berth", "16", 16);
    run_scripts("tests/models/whisper_scripted/berth", "6", 6);
    run_scripts("tests/models/whisper_scripted/berth", "1", 1);
}

static void test_scripted_merged(void **state)
{
    run_scripts("tests/models/whisper_scripted", "5", 5);
}

/* A folder of links to a model's files, but for `without`. */
static void link_folder(const char *name, const char *without, char *folder)
{
    char from[2048];
    char to[4096];
    (void)snprintf(from, sizeof(from), "%s/%s", source, name);
    memcpy(folder, "/tmp/berth_whisper_XXXXXX", 26);
    assert_non_null(mkdtemp(folder));
    DIR *list = opendir(from);
    assert_non_null(list);
    for (struct dirent *entry = readdir(list); entry != NULL; entry = readdir(list)) {
        char path[4096];
        if (strchr(entry->d_name, '.') == entry->d_name || strcmp(entry->d_name, without) == 0 ||
            strchr(entry->d_name, '.') == NULL) {
            continue;
        }
        (void)snprintf(path, sizeof(path), "%s/%s", from, entry->d_name);
        (void)snprintf(to, sizeof(to), "%s/%s", folder, entry->d_name);
        assert_int_equal(symlink(path, to), 0);
    }
    closedir(list);
}

static void write_file(const char *folder, const char *name, const char *text)
{
    char path[4096];
    (void)snprintf(path, sizeof(path), "%s/%s", folder, name);
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(text, 1, strlen(text), file), strlen(text));
    fclose(file);
}

static void remove_folder(const char *folder)
{
    char path[4096];
    DIR *list = opendir(folder);
    assert_non_null(list);
    for (struct dirent *entry = readdir(list); entry != NULL; entry = readdir(list)) {
        if (entry->d_name[0] != '.') {
            (void)snprintf(path, sizeof(path), "%s/%s", folder, entry->d_name);
            unlink(path);
        }
    }
    closedir(list);
    rmdir(folder);
}

/* decoder_model and decoder_with_past_model instead of the merged one. */
static void test_scripted_pair(void **state)
{
    char folder[32];
    struct rig rig;
    struct berth_err err = {0};
    static struct job job;
    link_folder("tests/models/whisper_scripted", "decoder_model_merged.onnx", folder);
    if (whisper_open(&rig, folder, "2", &err) != BERTH_OK) {
        fail_msg("%s", err.msg);
    }
    memset(&job, 0, sizeof(job));
    job.count = 3 * RATE;
    job.samples = tone(5000, 0.3, job.count);
    add_text(&job, "prompt", "never");
    jobs_run(&rig, &job, 1);
    assert_string_equal(berth_buf_text(&job.answer.text), "Bon jour monde");
    assert_string_equal(job.answer.language, "fr");
    jobs_drop(&job, 1);
    rig_close(&rig);
    remove_folder(folder);
}

static void test_words(void **state)
{
    static struct job job;
    struct rig rig;
    whisper_must(&rig, "tests/models/whisper_scripted/berth", "2");
    memset(&job, 0, sizeof(job));
    job.count = 3 * RATE;
    job.samples = tone(300, 0.3, job.count);
    job_add(&job, with_words);
    jobs_run(&rig, &job, 1);
    assert_string_equal(berth_buf_text(&job.answer.words), " Guten| Tag| Welt|");
    for (size_t i = 1; i < job.answer.word_count; i++) {
        assert_true(job.answer.word_times[i][0] >= job.answer.word_times[i - 1][1]);
    }
    assert_true(job.answer.word_times[2][2] > 0.9);
    jobs_drop(&job, 1);
    rig_close(&rig);
}

/* --- what is refused --- */

static const struct {
    struct berth_param param;
    enum berth_code code;
    const char *field;
} refusals[] = {
    {{"language", BERTH_PARAM_STRING, {.string = "elvish"}}, BERTH_INVALID, "language"},
    {{"language", BERTH_PARAM_STRING, {.string = "ja"}}, BERTH_UNSUPPORTED, "language"},
    {{"task", BERTH_PARAM_STRING, {.string = "sing"}}, BERTH_INVALID, "task"},
    {{"temperature", BERTH_PARAM_REAL, {.real = -0.1}}, BERTH_INVALID, "temperature"},
    {{"temperature", BERTH_PARAM_REAL, {.real = 2.1}}, BERTH_INVALID, "temperature"},
    {{"temperature", BERTH_PARAM_REAL, {.real = NAN}}, BERTH_INVALID, "temperature"},
    {{"temperature", BERTH_PARAM_INT, {.integer = 2}}, BERTH_OK, NULL},
    {{"beam_size", BERTH_PARAM_INT, {.integer = 5}}, BERTH_UNSUPPORTED, "beam_size"},
    {{"beam_size", BERTH_PARAM_INT, {.integer = 1}}, BERTH_OK, NULL},
    {{"word_timestamps", BERTH_PARAM_BOOL, {.boolean = true}}, BERTH_UNSUPPORTED,
     "word_timestamps"},
};

static void test_refusals(void **state)
{
    struct rig rig;
    float *samples = tone(300, 0.3, 800);
    whisper_must(&rig, "tests/models/whisper_scripted", "2");
    for (size_t i = 0; i < BERTH_COUNT_OF(refusals); i++) {
        static struct job job;
        memset(&job, 0, sizeof(job));
        job.samples = samples;
        job.count = 800;
        job_add(&job, refusals[i].param);
        jobs_run(&rig, &job, 1);
        if (job.answer.code != refusals[i].code) {
            fail_msg("case %zu: %s", i, berth_code_name(job.answer.code));
        }
        if (refusals[i].field != NULL) {
            assert_string_equal(job.answer.field, refusals[i].field);
        }
        answer_drop(&job.answer);
    }
    berth_free(samples);
    rig_close(&rig);
}

/* A model for English only: another language, or a translation, is a typed error. */
static void test_english_only(void **state)
{
    static const struct {
        const char *name, *value;
        enum berth_code code;
    } cases[] = {{"language", "de", BERTH_UNSUPPORTED}, {"language", "en", BERTH_OK},
                 {"language", "English", BERTH_OK},     {"task", "translate", BERTH_UNSUPPORTED},
                 {"task", "transcribe", BERTH_OK},      {"language", "xx", BERTH_INVALID}};
    char folder[32];
    struct rig rig;
    struct berth_err err = {0};
    float *samples = tone(300, 0.3, 100);
    link_folder("tests/models/whisper_scripted/berth", "generation_config.json", folder);
    write_file(folder, "generation_config.json", "{\"is_multilingual\": false}");
    if (whisper_open(&rig, folder, "1", &err) != BERTH_OK) {
        fail_msg("%s", err.msg);
    }
    for (size_t i = 0; i < BERTH_COUNT_OF(cases); i++) {
        static struct job job;
        memset(&job, 0, sizeof(job));
        job.samples = samples;
        job.count = 100;
        add_text(&job, cases[i].name, cases[i].value);
        jobs_run(&rig, &job, 1);
        assert_int_equal(job.answer.code, cases[i].code);
        if (cases[i].code != BERTH_OK) {
            assert_string_equal(job.answer.field, cases[i].name);
        } else {
            assert_string_equal(job.answer.language, "en");
        }
        answer_drop(&job.answer);
    }
    berth_free(samples);
    rig_close(&rig);
    remove_folder(folder);
}

/* What is wrong with which file: its name is in the error. */
static void test_bad_folders(void **state)
{
    static char too_many[200000];
    size_t at = (size_t)snprintf(too_many, sizeof(too_many), "{\"suppress_tokens\":[0");
    for (size_t i = 0; i < 65536; i++) {
        memcpy(too_many + at + 2 * i, ",0", 2);
    }
    memcpy(too_many + at + 2 * 65536, "]}", 3);
    static const struct {
        const char *file, *text; /* NULL: missing */
        enum berth_code code;
    } cases[] = {
        {"decoder.onnx", NULL, BERTH_UNSUPPORTED},
        {"encoder_0.onnx", NULL, BERTH_UNSUPPORTED},
        {"tokenizer.json", NULL, BERTH_NOT_FOUND},
        {"config.json", NULL, BERTH_NOT_FOUND},
        {"decoder.onnx", "no graph", BERTH_INVALID},
        {"encoder_0.onnx", "", BERTH_INVALID},
        {"tokenizer.json", "{", BERTH_INVALID},
        {"tokenizer.json", "{\"model\":{\"type\":\"BPE\\u0000\"}}", BERTH_INVALID},
        {"tokenizer.json", "{\"added_tokens\":[{\"content\":\"\\u0000\"}]}", BERTH_INVALID},
        {"config.json", "[]", BERTH_INVALID},
        {"config.json", "{\"model_type\":\"bert\"}", BERTH_UNSUPPORTED},
        {"config.json", "{\"architectures\":[\"BertModel\",7]}", BERTH_UNSUPPORTED},
        {"config.json", "{\"architectures\":[\"WhisperForConditionalGeneration\"]}", BERTH_INVALID},
        {"config.json", "{\"model_type\":\"whisper\\u0000\"}", BERTH_INVALID},
        {"config.json", "{\"model_type\":\"whisper\",\"vocab_size\":0}", BERTH_INVALID},
        {"generation_config.json", "{", BERTH_INVALID},
        {"generation_config.json", "[]", BERTH_INVALID},
        {"generation_config.json", "{\"lang_to_id\":{\"<|en|>\\u0000\":301}}", BERTH_INVALID},
        {"generation_config.json", too_many, BERTH_TOO_LARGE},
        {"generation_config.json", "{\"eos_token_id\":99999999}", BERTH_INVALID},
        {"generation_config.json", "{\"no_timestamps_token_id\":1}", BERTH_INVALID},
        {"generation_config.json", "{\"no_timestamps_token_id\":2147483647}", BERTH_INVALID},
        {"generation_config.json", "{\"no_timestamps_token_id\":4294967605}", BERTH_INVALID},
        {"generation_config.json",
         "{\"is_multilingual\":true,\"lang_to_id\":{\"<|en|>\":301},\"task_to_id\":"
         "{\"transcribe\":4294967601,\"translate\":304}}",
         BERTH_INVALID},
        {"generation_config.json", "{\"is_multilingual\":true,\"lang_to_id\":{}}", BERTH_INVALID},
    };
    for (size_t i = 0; i < BERTH_COUNT_OF(cases); i++) {
        char folder[32];
        struct rig rig;
        struct berth_err err = {0};
        link_folder("tests/models/whisper_scripted/berth", cases[i].file, folder);
        if (cases[i].text != NULL) {
            write_file(folder, cases[i].file, cases[i].text);
        }
        enum berth_code code = whisper_open(&rig, folder, "1", &err);
        if (code != cases[i].code || strstr(err.msg, cases[i].file) == NULL) {
            fail_msg("%s '%.99s': %s %s", cases[i].file, cases[i].text == NULL ? "" : cases[i].text,
                     berth_code_name(code), err.msg);
        }
        rig_close(&rig);
        remove_folder(folder);
    }
}

/* --- trying again at a higher temperature --- */

/* Feeds a row made-up logits until its window is decided: attempt `sure` and later ones are
 * confident, those before are not. */
static void run_attempts(struct berth_whisper_row *row, uint32_t sure, uint32_t *attempts)
{
    static float logits[1 << 16];
    const struct berth_whisper_config *config = row->base->config;
    struct berth_err err = {0};
    berth_whisper_row_begin(row);
    *attempts = 0;
    for (size_t guard = 0; row->stage == BERTH_WHISPER_DECODE && guard < 1000; guard++) {
        struct berth_whisper_attempt *attempt = &row->attempt;
        *attempts = attempt->index + 1;
        for (uint32_t i = 0; i < config->vocab; i++) {
            logits[i] = 0;
        }
        logits[config->no_speech] = -30;
        /* times 0.00 and 1.00 around three words; the later attempt, the surer */
        int32_t next = (int32_t)('a' - '!' + attempt->token_count);
        next = attempt->token_count == 0   ? config->first_time
               : attempt->token_count == 4 ? config->first_time + 50
               : attempt->token_count == 5 ? config->eot
                                           : next;
        logits[next] = attempt->index >= sure ? 30.0F : 6.0F + (float)attempt->index / 10;
        attempt->fed++;
        assert_int_equal(berth_whisper_row_take(row, logits, &err), BERTH_OK);
    }
    assert_int_equal(row->stage, BERTH_WHISPER_END);
}

static void test_retry(void **state)
{
    static const struct {
        double temperature; /* asked for */
        uint32_t sure, attempts;
        double decided;
    } cases[] = {{0, 0, 1, 0}, {0, 1, 2, 0.2}, {0, 5, 6, 1}, {0, 9, 6, 1}, {0.7, 9, 1, 0.7}};
    struct berth_whisper_config config = {0};
    struct berth_tokens *tokens = NULL;
    struct berth_err err = {0};
    char path[2048];
    (void)snprintf(path, sizeof(path), "%s/tests/models/whisper_scripted/tokenizer.json", source);
    assert_int_equal(berth_tokens_load(path, &tokens, &err), BERTH_OK);
    (void)snprintf(path, sizeof(path), "%s/tests/models/whisper_scripted", source);
    assert_int_equal(berth_whisper_config_read(path, tokens, &config, &err), BERTH_OK);
    struct berth_whisper_base base = {.config = &config, .tokens = tokens, .step_max = 4};
    for (size_t i = 0; i < BERTH_COUNT_OF(cases); i++) {
        static struct berth_whisper_row row;
        struct berth_request *request = berth_request_create(rig_slabs, 1 << 16);
        struct berth_param params[] = {
            {"language", BERTH_PARAM_STRING, {.string = "de"}},
            {"temperature", BERTH_PARAM_REAL, {.real = cases[i].temperature}}};
        uint32_t attempts = 0;
        assert_int_equal(
            berth_slabs_take(rig_slabs, 2 * RATE * sizeof(float), &request->media, &err), BERTH_OK);
        struct berth_tensor audio = {.name = "audio", .dtype = BERTH_DTYPE_FP32, .rank = 1,
                                     .dims = {2 * RATE}, .range = request->media};
        request->inputs = &audio;
        request->input_count = 1;
        request->params = (struct berth_params){.items = params, .count = 2};
        assert_int_equal(berth_whisper_row_init(&row, &base, request, &err), BERTH_OK);
        run_attempts(&row, cases[i].sure, &attempts);
        assert_int_equal(attempts, cases[i].attempts);
        assert_true(fabs(row.attempt.temperature - cases[i].decided) < 1e-9);
        assert_true(row.score.no_speech_prob < 0.01);
        if (cases[i].sure == 9 && cases[i].temperature == 0) { /* the best of all that failed */
            assert_true(row.kept.any && row.score.avg_logprob < -1);
            assert_true(row.score.avg_logprob == row.kept.score.avg_logprob);
        }
        berth_whisper_row_finish(&row);
        berth_request_release(request);
    }
    berth_whisper_config_finish(&config);
    berth_tokens_destroy(tokens);
}

/* --- leaving early, and running out of memory --- */

static void test_cancel(void **state)
{
    static struct job jobs[3];
    static struct berth_step_result result;
    struct rig rig;
    struct berth_err err = {0};
    size_t count = 40 * RATE;
    float *samples = tone(300, 0.3, count);
    whisper_must(&rig, "tests/models/whisper_scripted/berth", "3");
    for (size_t round = 0; round < 40; round++) { /* at every stage a row can be in */
        memset(jobs, 0, sizeof(jobs));
        for (size_t i = 0; i < 3; i++) {
            jobs[i].samples = samples;
            jobs[i].count = count;
            job_add(&jobs[i], with_words);
            assert_true(job_start(&rig, &jobs[i]));
        }
        bool ended = false;
        for (size_t k = 0; k < round && !ended; k++) {
            assert_int_equal(ops->step(rig.instance, 0, &result, &err), BERTH_OK);
            for (size_t e = 0; e < result.event_count; e++) {
                ended = ended || result.events[e].final;
                berth_part_destroy(result.events[e].part);
            }
        }
        if (!ended) {
            atomic_store(&jobs[0].request->cancelled, true);
            ops->drop(rig.instance, jobs[1].slot);
            assert_int_equal(ops->step(rig.instance, 0, &result, &err), BERTH_OK);
            assert_int_equal(result.event_count, 1);
            assert_true(result.events[0].final);
            assert_int_equal(result.events[0].slot, jobs[0].slot);
            assert_int_equal(result.events[0].err.code, BERTH_CANCELLED);
            assert_int_equal(result.live, 1);
        }
        for (uint32_t slot = 0; slot < 3; slot++) {
            ops->drop(rig.instance, slot);
            berth_request_release(jobs[slot].request);
        }
        assert_int_equal(ops->step(rig.instance, 0, &result, &err), BERTH_OK);
        assert_int_equal(result.live, 0);
    }
    berth_free(samples);
    rig_close(&rig);
}

/* Loads with the nth allocation failing; whatever happens, everything is given back. */
static bool load_short_of(uint64_t nth)
{
    char path[2048];
    struct rig rig;
    struct berth_err err = {0};
    (void)snprintf(path, sizeof(path), "%s/tests/models/whisper_scripted/berth", source);
    berth_mem_fail_at(nth, false);
    enum berth_code code = whisper_open(&rig, path, "2", &err);
    berth_mem_fail_at(0, false);
    rig_close(&rig);
    return code == BERTH_OK;
}

/* Transcribes with the nth allocation failing: one final event, and everything is given back. */
static bool run_short_of(struct rig *rig, uint64_t nth, const float *samples, size_t count)
{
    static struct berth_step_result result;
    static struct job job;
    struct berth_err err = {0};
    bool good = false;
    memset(&job, 0, sizeof(job));
    job.samples = samples;
    job.count = count;
    job_add(&job, with_words);
    add_text(&job, "prompt", "hum hum hum hum hum hum");
    berth_mem_fail_at(nth, false);
    if (job_start(rig, &job)) {
        size_t finals = 0;
        do {
            assert_int_equal(ops->step(rig->instance, RIG_BUDGET_NS, &result, &err), BERTH_OK);
            for (size_t e = 0; e < result.event_count; e++) {
                finals += result.events[e].final ? 1 : 0;
                good = result.events[e].final && result.events[e].err.code == BERTH_OK;
                berth_part_destroy(result.events[e].part);
            }
        } while (result.live > 0);
        assert_int_equal(finals, 1);
    }
    berth_mem_fail_at(0, false);
    berth_request_release(job.request);
    return good;
}

static void test_no_memory_to_load(void **state)
{
    uint64_t calls = berth_mem_call_count();
    assert_true(load_short_of(0));
    calls = berth_mem_call_count() - calls;
    (void)load_short_of(1); /* by now ONNX Runtime has what it keeps for the process */
    uint64_t live = berth_mem_bytes_live();
    for (uint64_t nth = 2; nth <= calls; nth++) {
        (void)load_short_of(nth);
        assert_int_equal(berth_mem_bytes_live(), live);
    }
    assert_true(load_short_of(0));
}

static void test_no_memory_to_run(void **state)
{
    size_t count = RATE;
    float *samples = tone(300, 0.3, count);
    struct rig rig;
    whisper_must(&rig, "tests/models/whisper_scripted/berth", "2");
    assert_true(run_short_of(&rig, 0, samples, count));
    uint64_t calls = berth_mem_call_count();
    assert_true(run_short_of(&rig, 0, samples, count));
    calls = berth_mem_call_count() - calls;
    uint64_t live = berth_mem_bytes_live();
    for (uint64_t nth = 1; nth <= calls; nth++) {
        (void)run_short_of(&rig, nth, samples, count);
        assert_int_equal(berth_mem_bytes_live(), live);
    }
    assert_true(run_short_of(&rig, 0, samples, count));
    berth_free(samples);
    rig_close(&rig);
}

/* --- batched equals solo --- */

static bool same_buf(const struct berth_buf *a, const struct berth_buf *b)
{
    return a->length == b->length && memcmp(berth_buf_text(a), berth_buf_text(b), a->length) == 0;
}

/* Texts, times, tokens, words, all of it. */
static bool same_answer(const struct answer *a, const struct answer *b)
{
    return a->code == b->code && same_buf(&a->raw, &b->raw) && same_buf(&a->deltas, &b->deltas);
}

/* Seven neighbours: the same sound, loud, silent, long, with prompts, at a temperature. */
static void add_neighbours(struct job *jobs, const struct job *own, float *const sounds[3])
{
    for (size_t i = 1; i < 8; i++) {
        const float *sound = sounds[i % 3];
        jobs[i].samples = sound;
        jobs[i].count = (i == 3 ? 35 : 2 + i) * RATE;
        if (i == 4) {
            jobs[i].samples = own->samples;
            jobs[i].count = own->count;
        }
        if (i == 5) {
            add_text(&jobs[i], "prompt", "words that came before, more than are stepped");
        }
        if (i == 6) {
            struct berth_param hot = {"temperature", BERTH_PARAM_REAL, {.real = 0.9}};
            job_add(&jobs[i], hot);
        }
    }
}

/* With words only, or first without them. */
static void compare_company(const char *folder, const float *samples, size_t count, bool only_words)
{
    static struct job solo;
    static struct job jobs[8];
    float *const sounds[3] = {tone(440, 0.9, 35 * RATE), tone(0, 0, 35 * RATE),
                              tone(3000, 0.05, 35 * RATE)};
    struct rig rig;
    whisper_must(&rig, folder, "8");
    for (int words = only_words ? 1 : 0; words < 2; words++) {
        memset(&solo, 0, sizeof(solo));
        solo.samples = samples;
        solo.count = count;
        if (words == 1) {
            job_add(&solo, with_words);
        }
        struct job again = solo;
        jobs_run(&rig, &solo, 1);
        assert_int_equal(solo.answer.code, BERTH_OK);
        memset(jobs, 0, sizeof(jobs));
        jobs[0] = again;
        add_neighbours(jobs, &again, sounds);
        jobs_run(&rig, jobs, 8);
        assert_true(same_answer(&solo.answer, &jobs[0].answer));
        if (words == 0) {
            assert_true(same_answer(&solo.answer, &jobs[4].answer));
        }
        for (size_t i = 0; i < 8; i++) {
            assert_int_equal(jobs[i].answer.code, BERTH_OK);
            answer_drop(&jobs[i].answer);
        }
        answer_drop(&solo.answer);
    }
    for (size_t i = 0; i < 3; i++) {
        berth_free(sounds[i]);
    }
    rig_close(&rig);
}

static void test_company_scripted(void **state)
{
    float *samples = tone(300, 0.3, 65 * RATE);
    compare_company("tests/models/whisper_scripted/berth", samples, 65 * RATE, false);
    berth_free(samples);
}

static void test_company_tiny(void **state)
{
    static const char *const models[] = {"whisper-tiny.en", "whisper-tiny.en-fp32"};
    size_t count = 0;
    float *samples = speech("clone-test", &count);
    if (samples == NULL || !have_model(models[0]) || !have_model(models[1])) {
        berth_free(samples);
        skip();
    }
    /* Under ThreadSanitizer one of them: what differs is ONNX Runtime's, which it does not see. */
    for (size_t i = 0; i < (TEST_TSAN ? 1 : BERTH_COUNT_OF(models)); i++) {
        char folder[256];
        (void)snprintf(folder, sizeof(folder), "models/%s/1", models[i]);
        compare_company(folder, samples, count, true);
    }
    berth_free(samples);
}

/* --- tiny.en and real speech --- */

static json_t *expected(const char *name)
{
    char path[2048];
    json_error_t error;
    (void)snprintf(path, sizeof(path), "%s/tests/data/expected/%s.json", source, name);
    json_t *root = json_load_file(path, 0, &error);
    assert_non_null(root);
    return root;
}

static void check_tokens(const struct answer *answer, const json_t *want)
{
    size_t at = 0;
    size_t index = 0;
    const json_t *segment = NULL;
    json_array_foreach(json_object_get(want, "segments"), index, segment)
    {
        const json_t *tokens = json_object_get(segment, "tokens");
        for (size_t i = 0; i < json_array_size(tokens); i++, at++) {
            assert_true(at < answer->token_count);
            assert_int_equal(answer->tokens[at], json_integer_value(json_array_get(tokens, i)));
        }
    }
    assert_int_equal(at, answer->token_count);
    assert_string_equal(berth_buf_text(&answer->text),
                        json_string_value(json_object_get(want, "text")));
    const json_t *first = json_array_get(json_object_get(want, "segments"), 0);
    const double *stats = answer->stats[0];
    double gap = stats[0] - json_real_value(json_object_get(first, "avg_logprob"));
    double silence = stats[2] - json_real_value(json_object_get(first, "no_speech_prob"));
    print_message("tokens %zu, log probability off by %.4f, no-speech by %.5f\n", at, gap, silence);
    assert_true(fabs(gap) < 0.002 && fabs(silence) < 0.001);
}

/* Starts and ends within 20 ms of faster-whisper's, on at least 97 % of the words. */
static void check_words(const struct answer *answer, const json_t *want)
{
    const json_t *words = json_object_get(want, "words");
    size_t near = 0;
    size_t count = json_array_size(words);
    char text[64];
    const char *at = berth_buf_text(&answer->words);
    assert_int_equal(answer->word_count, count);
    for (size_t i = 0; i < count; i++) {
        const json_t *word = json_array_get(words, i);
        size_t length = (size_t)(strchr(at, '|') - at);
        assert_true(length < sizeof(text));
        memcpy(text, at, length);
        text[length] = '\0';
        at += length + 1;
        assert_string_equal(text, json_string_value(json_object_get(word, "word")));
        double start = json_number_value(json_object_get(word, "start"));
        double end = json_number_value(json_object_get(word, "end"));
        near += fabs(answer->word_times[i][0] - start) < 0.0201 &&
                        fabs(answer->word_times[i][1] - end) < 0.0201
                    ? 1
                    : 0;
    }
    print_message("words within 20 ms: %zu of %zu\n", near, count);
    assert_true(near * 100 >= count * 97);
}

static void test_tiny_fp32(void **state)
{
    static const struct {
        const char *recording, *expected;
        bool plain, words;
    } cases[] = {{"two_cities", "two_cities.ts.float32", false, false},
                 {"two_cities", "two_cities.ts.float32", false, true},
                 {"two_cities", "two_cities.nots.float32", true, false},
                 {"clone-test", "clone-test.ts.float32", false, true}};
    static struct job jobs[BERTH_COUNT_OF(cases)];
    struct rig rig;
    if (!have_model("whisper-tiny.en-fp32")) {
        skip();
    }
    whisper_must(&rig, "models/whisper-tiny.en-fp32/1", "8");
    memset(jobs, 0, sizeof(jobs));
    for (size_t i = 0; i < BERTH_COUNT_OF(cases); i++) {
        jobs[i].samples = speech(cases[i].recording, &jobs[i].count);
        assert_non_null(jobs[i].samples);
        if (cases[i].plain) {
            job_add(&jobs[i], without_times);
        }
        if (cases[i].words) {
            job_add(&jobs[i], with_words);
        }
    }
    jobs_run(&rig, jobs, BERTH_COUNT_OF(cases));
    for (size_t i = 0; i < BERTH_COUNT_OF(cases); i++) {
        json_t *want = expected(cases[i].expected);
        if (cases[i].words) {
            check_words(&jobs[i].answer, want);
        } else {
            check_tokens(&jobs[i].answer, want);
        }
        json_decref(want);
    }
    jobs_drop(jobs, BERTH_COUNT_OF(jobs));
    rig_close(&rig);
}

/* Small letters and digits of one word; returns its length, 0 at the end. */
static size_t next_word(const char **at, char *out, size_t bytes)
{
    size_t length = 0;
    while (**at != '\0') {
        char c = *(*at)++;
        c = c >= 'A' && c <= 'Z' ? (char)(c + 32) : c;
        if ((c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '\'') {
            assert_true(length + 1 < bytes);
            out[length++] = c;
        } else if (length > 0) {
            break;
        }
    }
    out[length] = '\0';
    return length;
}

/* Levenshtein's distance in words, without case and punctuation; *count of the words wanted. */
static size_t word_edits(const char *got, const char *want, size_t *count)
{
    static char words[512][32];
    static size_t row[513];
    size_t got_count = 0;
    char word[32];
    while (next_word(&got, words[got_count], sizeof(words[0])) > 0) {
        assert_true(got_count + 1 < BERTH_COUNT_OF(words));
        got_count++;
    }
    for (size_t j = 0; j <= got_count; j++) {
        row[j] = j;
    }
    for (*count = 0; next_word(&want, word, sizeof(word)) > 0;) {
        size_t corner = row[0];
        row[0] = ++*count;
        for (size_t j = 1; j <= got_count; j++) {
            size_t swap = corner + (strcmp(words[j - 1], word) != 0 ? 1 : 0);
            corner = row[j];
            size_t best = row[j] + 1 < row[j - 1] + 1 ? row[j] + 1 : row[j - 1] + 1;
            row[j] = swap < best ? swap : best;
        }
    }
    return row[got_count];
}

static void test_tiny_int8(void **state)
{
    static struct job job;
    struct rig rig;
    size_t count = 0;
    if (!have_model("whisper-tiny.en")) {
        skip();
    }
    whisper_must(&rig, "models/whisper-tiny.en/1", "1");
    memset(&job, 0, sizeof(job));
    job.samples = speech("two_cities", &job.count);
    assert_non_null(job.samples);
    jobs_run(&rig, &job, 1);
    json_t *want = expected("two_cities.ts.float32");
    size_t edits = word_edits(berth_buf_text(&job.answer.text),
                              json_string_value(json_object_get(want, "text")), &count);
    print_message("int8: %zu word errors of %zu\n", edits, count);
    assert_true(edits * 100 <= count * 2);
    json_decref(want);
    jobs_drop(&job, 1);
    rig_close(&rig);
}

/* Silence and rubbish through the real model: an answer with no text. */
static void test_tiny_silence(void **state)
{
    static struct job jobs[3];
    struct rig rig;
    float *rubbish = tone(0, 0, 3 * RATE);
    if (!have_model("whisper-tiny.en")) {
        berth_free(rubbish);
        skip();
    }
    whisper_must(&rig, "models/whisper-tiny.en/1", "4");
    memset(jobs, 0, sizeof(jobs));
    for (size_t i = 0; i < 3 * RATE; i += 3) {
        rubbish[i] = i % 2 == 0 ? NAN : -INFINITY;
    }
    jobs[0] = (struct job){.samples = rubbish, .count = 3 * RATE};
    jobs[1] = (struct job){.samples = rubbish, .count = RATE / 20};
    jobs[2] = (struct job){.samples = rubbish, .count = 0};
    job_add(&jobs[0], with_words);
    jobs_run(&rig, jobs, 3);
    assert_int_equal(jobs[2].answer.code, BERTH_INVALID); /* not silence: nothing */
    answer_drop(&jobs[2].answer);
    for (size_t i = 0; i < 2; i++) {
        assert_int_equal(jobs[i].answer.code, BERTH_OK);
        assert_string_equal(berth_buf_text(&jobs[i].answer.text), "");
        assert_int_equal(jobs[i].answer.segment_count, 0);
        assert_int_equal(jobs[i].answer.parts, 1);
        answer_drop(&jobs[i].answer);
    }
    berth_free(rubbish);
    rig_close(&rig);
}

static int set_up(void **state)
{
    struct berth_err err = {0};
    struct berth_slabs_options options = {.bytes_budget = 1 << 28};
    const char *root = getenv("BERTH_SOURCE");
    (void)snprintf(source, sizeof(source), "%s", root == NULL ? "." : root);
    if (berth_slabs_create(&options, &rig_slabs, &err) != BERTH_OK) {
        return -1;
    }
    struct berth_engine_env env = {.slabs = rig_slabs, .threads = 2};
    return ops->start(&env, &err) == BERTH_OK ? 0 : -1;
}

static int tear_down(void **state)
{
    struct berth_slabs_stats stats;
    ops->finish();
    berth_slabs_stats(rig_slabs, &stats);
    berth_slabs_destroy(rig_slabs);
    return stats.bytes_out == 0 ? 0 : -1;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_scripted_own),     cmocka_unit_test(test_scripted_merged),
        cmocka_unit_test(test_scripted_pair),    cmocka_unit_test(test_words),
        cmocka_unit_test(test_refusals),         cmocka_unit_test(test_english_only),
        cmocka_unit_test(test_bad_folders),      cmocka_unit_test(test_retry),
        cmocka_unit_test(test_cancel),
        cmocka_unit_test(test_no_memory_to_load),
        cmocka_unit_test(test_no_memory_to_run), cmocka_unit_test(test_company_scripted),
        cmocka_unit_test(test_company_tiny),     cmocka_unit_test(test_tiny_fp32),
        cmocka_unit_test(test_tiny_int8),        cmocka_unit_test(test_tiny_silence),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
