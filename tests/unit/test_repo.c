/* Tests of the model repository: names, versions, policies, folders of both kinds, broken ones. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/buf.h"
#include "base/log.h"
#include "base/mem.h"
#include "repo/repo.h"

static char root[64];

/* --- helpers --- */

static void path_of(char out[512], const char *name)
{
    snprintf(out, 512, "%s/%s", root, name);
}

static void make_folder(const char *name)
{
    char path[512];
    path_of(path, name);
    for (char *at = path + strlen(root) + 1; *at != '\0'; at++) {
        if (*at == '/') {
            *at = '\0';
            assert_true(mkdir(path, 0755) == 0 || errno == EEXIST);
            *at = '/';
        }
    }
    assert_true(mkdir(path, 0755) == 0 || errno == EEXIST);
}

static void make_file(const char *name, const char *text)
{
    char path[512];
    char folder[512];
    snprintf(folder, sizeof(folder), "%s", name);
    char *slash = strrchr(folder, '/');
    if (slash != NULL) {
        *slash = '\0';
        make_folder(folder);
    }
    path_of(path, name);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

static int setup(void **state)
{
    (void)state;
    berth_log_set_level(BERTH_LOG_ERROR);
    snprintf(root, sizeof(root), "/tmp/berth-repo-XXXXXX");
    return mkdtemp(root) == NULL ? -1 : 0;
}

static int teardown(void **state)
{
    char command[128];
    (void)state;
    snprintf(command, sizeof(command), "rm -rf -- '%s'", root);
    return system(command) == 0 ? 0 : -1;
}

static struct berth_repo *opened(void)
{
    struct berth_repo *repo = NULL;
    struct berth_err err = {0};
    if (berth_repo_open(root, &repo, &err) != BERTH_OK) {
        fail_msg("%s", err.msg);
    }
    return repo;
}

/* What a scan found: "name/version engine; name/version !CODE; ..." */
static void scan(char *out, size_t bytes)
{
    struct berth_repo *repo = opened();
    struct berth_repo_job job = {.kind = BERTH_REPO_SCAN};
    size_t at = 0;
    berth_repo_run(repo, &job);
    assert_int_equal(job.err.code, BERTH_OK);
    out[0] = '\0';
    for (size_t i = 0; i < job.found_count; i++) {
        const struct berth_repo_found *found = &job.found[i];
        at += (size_t)snprintf(out + at, bytes - at, "%s%s/%llu %s%s", i == 0 ? "" : "; ",
                               found->name, (unsigned long long)found->version,
                               found->spec == NULL ? "!" : "",
                               found->spec == NULL ? berth_code_name(found->err.code)
                                                   : found->spec->engine);
        assert_true(at < bytes);
    }
    berth_repo_job_finish(&job);
    berth_repo_close(repo);
}

static void read_one(const char *name, const char *config, struct berth_repo_job *job)
{
    struct berth_repo *repo = opened();
    *job = (struct berth_repo_job){.kind = BERTH_REPO_READ, .name = name, .config_json = config};
    berth_repo_run(repo, job);
    berth_repo_close(repo);
}

/* --- tests --- */

static void judges_names(void **state)
{
    static const struct {
        const char *name;
        size_t length;
        bool good;
    } cases[] = {
        {"identity", 8, true},
        {"whisper-tiny.en", 15, true},
        {"a b:c", 5, true},
        {"\xE6\xA8\xA1\xE5\x9E\x8B", 6, true},
        {"..a", 3, false},
        {"", 0, false},
        {".", 1, false},
        {"..", 2, false},
        {".hidden", 7, false},
        {"a/b", 3, false},
        {"/a", 2, false},
        {"a\\b", 3, false},
        {"a\0b", 3, false},
        {"a\nb", 3, false},
        {"a\x7F", 2, false},
        {"a\xC2\x85", 3, false},
        {"a\xC2\xA0", 3, true},
        {"\xFF", 1, false},
        {"\xC0\xAF", 2, false},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct berth_err err = {0};
        enum berth_code code = berth_repo_check_name(cases[i].name, cases[i].length, &err);
        if ((code == BERTH_OK) != cases[i].good) {
            fail_msg("case %zu", i);
        }
    }
    char name[256];
    memset(name, 'n', sizeof(name));
    assert_int_equal(berth_repo_check_name(name, 255, NULL), BERTH_OK);
    assert_int_equal(berth_repo_check_name(name, 256, NULL), BERTH_INVALID);
}

static void finds_models_sorted(void **state)
{
    char found[1024];
    (void)state;
    scan(found, sizeof(found));
    assert_string_equal(found, "");
    make_file("b/config.pbtxt", "backend: 'identity'");
    make_folder("b/1");
    make_file("a/1/model.onnx", "x");
    make_file("d/config.json", "{\"model_type\": \"whisper\"}");
    make_file("d/encoder_model.onnx", "x");
    make_file("c/1/config.json", "{\"model_type\": \"whisper\"}");
    make_file(".hidden/1/model.onnx", "x");
    make_file("not-a-folder", "x");
    make_file("e/config.pbtxt", "platform: 'onnxruntime_onnx'");
    make_folder("e/3");
    make_file("f/config.pbtxt", "backend: 'null'"); /* needs no files, so no version either */
    make_file("g/config.pbtxt", "default_model_filename: 'net.onnx'");
    make_folder("g/1");
    make_file("h/config.pbtxt", "backend: 'python'");
    make_folder("h/1");
    scan(found, sizeof(found));
    assert_string_equal(found, "a/1 onnx; b/1 null; c/1 whisper; d/1 whisper; e/3 onnx; f/1 null; "
                               "g/1 onnx; h/1 python");
}

/* What config.json calls the model: its type, else its architecture. */
static void tells_the_engine_by_config_json(void **state)
{
    static const struct {
        const char *json;
        const char *found;
    } cases[] = {
        {"{\"model_type\": \"parakeet_tdt\"}", "a/1 parakeet"},
        {"{\"model_type\": \"parakeet_rnnt\"}", "a/1 parakeet"},
        {"{\"model_type\": \"parakeet_ctc\"}", "a/1 parakeet"},
        {"{\"architectures\": [\"ParakeetForTDT\"]}", "a/1 parakeet"},
        {"{\"architectures\": [\"ParakeetForRNNT\"]}", "a/1 parakeet"},
        {"{\"architectures\": [\"ParakeetForCTC\"]}", "a/1 parakeet"},
        {"{\"architectures\": [\"WhisperForConditionalGeneration\"]}", "a/1 whisper"},
        {"{\"model_type\": \"mine\", \"architectures\": [\"ParakeetForTDT\"]}", "a/1 parakeet"},
        {"{\"model_type\": 5, \"architectures\": [\"ParakeetForCTC\"]}", "a/1 parakeet"},
        {"{\"model_type\": \"whisper\", \"architectures\": [\"ParakeetForTDT\"]}", "a/1 whisper"},
        {"{\"architectures\": [\"Mine\", \"ParakeetForTDT\"]}", "a/1 parakeet"},
        {"{\"architectures\": [7, null, {}, \"ParakeetForTDT\"]}", "a/1 parakeet"},
        {"{\"model_type\": \"bert\", \"architectures\": [\"BertModel\"]}", "a/1 bert"},
        {"{\"architectures\": [\"BertModel\"]}", "a/1 !INVALID"},
        {"{\"architectures\": [\"ParakeetForTDTs\"]}", "a/1 !INVALID"},
        {"{\"architectures\": []}", "a/1 !INVALID"},
        {"{\"architectures\": \"ParakeetForTDT\"}", "a/1 !INVALID"},
        {"{\"architectures\": {\"0\": \"ParakeetForTDT\"}}", "a/1 !INVALID"},
        {"[\"ParakeetForTDT\"]", "a/1 !INVALID"},
        {"{}", "a/1 !INVALID"},
    };
    (void)state;
    for (size_t i = 0; i < BERTH_COUNT_OF(cases); i++) {
        char found[256];
        make_file("a/config.json", cases[i].json);
        scan(found, sizeof(found));
        assert_string_equal(found, cases[i].found);
    }
}

static void broken_models_leave_the_rest(void **state)
{
    char found[1024];
    (void)state;
    make_file("a/1/model.onnx", "x");
    make_file("b/config.pbtxt", "max_batch_size: 'many'");
    make_folder("b/2");
    make_folder("c");                                  /* no version */
    make_folder("d/1");                                /* nothing in it */
    make_folder("e/1");
    make_folder("e/config.pbtxt");                     /* a folder, not a file */
    make_file("f/config.pbtxt", "name: 'g'");
    make_folder("f/1");
    make_file("g/config.pbtxt", "platform: 'ensemble' ensemble_scheduling { }");
    make_folder("g/1");
    make_file("h/config.pbtxt", "backend: 'null' version_policy { specific { versions: 7 } }");
    make_folder("h/1");
    make_file("i/config.json", "{\"model_type\": 5}");
    make_file("j/config.json", "not json");
    make_file("l/config.json", "{\"model_type\": \"whisper\\u0000\"}");
    make_file("z/1/model.onnx", "x");
    char path[512];
    make_folder("k/1");
    path_of(path, "k/config.pbtxt");
    assert_int_equal(mkfifo(path, 0644), 0); /* opening it must not hang */
    scan(found, sizeof(found));
    assert_string_equal(found,
                        "a/1 onnx; b/2 !INVALID; c/1 !INVALID; d/1 !INVALID; e/1 !INVALID; "
                        "f/1 !INVALID; g/1 !UNSUPPORTED; h/1 !INVALID; i/1 !INVALID; j/1 !INVALID; "
                        "k/1 !INVALID; l/1 !INVALID; z/1 onnx");
    static const char *const faults[][2] = {
        {"b", "b/config.pbtxt:1:1: 'max_batch_size' must be"},
        {"d", "no model.onnx and no model_type in a config.json"},
        {"i", "no model.onnx and no model_type in a config.json"},
        {"j", "j/config.json: line 1: "},
        {"l", "l/config.json: line 1: a NUL in the text of 'model_type'"},
    };
    for (size_t i = 0; i < sizeof(faults) / sizeof(faults[0]); i++) {
        struct berth_repo_job job;
        read_one(faults[i][0], NULL, &job);
        assert_int_equal(job.err.code, BERTH_OK);
        assert_int_equal(job.found_count, 1);
        assert_non_null(strstr(job.found[0].err.msg, faults[i][1]));
        berth_repo_job_finish(&job);
    }
}

static void follows_the_version_policy(void **state)
{
    static const struct {
        const char *policy;
        const char *found;
    } cases[] = {
        {"", "m/20 null"},
        {"version_policy { latest { } }", "m/20 null"},
        {"version_policy { latest { num_versions: 2 } }", "m/3 null; m/20 null"},
        {"version_policy { latest { num_versions: 9 } }", "m/1 null; m/3 null; m/20 null"},
        {"version_policy { all { } }", "m/1 null; m/3 null; m/20 null"},
        {"version_policy { specific { versions: [3, 5, 1] } }", "m/1 null; m/3 null"},
    };
    static const char *const folders[] = {"m/1",   "m/3",   "m/20", "m/0",  "m/007",
                                          "m/1a",  "m/-2",  "m/+4", "m/x",  "m/1.5",
                                          "m/.5",  "m/99999999999999999999"};
    (void)state;
    for (size_t i = 0; i < sizeof(folders) / sizeof(folders[0]); i++) {
        make_folder(folders[i]);
    }
    make_file("m/30", "a file is no version");
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char found[256];
        char text[256];
        snprintf(text, sizeof(text), "backend: 'null' %s", cases[i].policy);
        make_file("m/config.pbtxt", text);
        scan(found, sizeof(found));
        assert_string_equal(found, cases[i].found);
    }
}

static void reads_one_model(void **state)
{
    static const char *const bad_names[] = {"../m", ".", "..", "", ".git", "m/1", "a\\b"};
    struct berth_repo_job job;
    (void)state;
    make_file("m/config.pbtxt", "backend: 'null' max_batch_size: 4");
    make_file("m/1/weights", "12345");
    read_one("m", NULL, &job);
    assert_int_equal(job.found_count, 1);
    struct berth_model_spec *spec = job.found[0].spec;
    assert_non_null(spec);
    assert_string_equal(spec->name, "m");
    assert_int_equal(spec->version, 1);
    assert_int_equal(spec->batch_size_max, 4);
    assert_int_equal(spec->files_bytes, 5);
    assert_true(spec->files_stamp != 0);
    assert_non_null(strstr(spec->folder_version, "/m/1"));
    berth_repo_job_finish(&job);

    /* The load API's override stands in for the file. */
    read_one("m", "{\"backend\": \"null\", \"max_batch_size\": 16}", &job);
    assert_int_equal(job.found[0].spec->batch_size_max, 16);
    berth_repo_job_finish(&job);
    read_one("m", "{x", &job);
    assert_int_equal(job.err.code, BERTH_OK);
    assert_null(job.found[0].spec);
    assert_int_equal(job.found[0].err.code, BERTH_INVALID);
    assert_non_null(strstr(job.found[0].err.msg, "m/config (given)"));
    berth_repo_job_finish(&job);

    read_one("absent", NULL, &job);
    assert_int_equal(job.err.code, BERTH_NOT_FOUND);
    assert_int_equal(job.found_count, 0);
    berth_repo_job_finish(&job);
    for (size_t i = 0; i < sizeof(bad_names) / sizeof(bad_names[0]); i++) {
        read_one(bad_names[i], NULL, &job);
        assert_int_equal(job.err.code, BERTH_INVALID);
        berth_repo_job_finish(&job);
    }
}

static uint64_t stamp_of(const char *name)
{
    struct berth_repo_job job;
    read_one(name, NULL, &job);
    assert_int_equal(job.found_count, 1);
    assert_non_null(job.found[0].spec);
    uint64_t stamp = job.found[0].spec->files_stamp;
    berth_repo_job_finish(&job);
    return stamp;
}

static void stamps_tell_changes(void **state)
{
    (void)state;
    make_file("m/config.pbtxt", "backend: 'null'");
    make_file("m/1/a", "1");
    make_file("m/1/sub/b", "22");
    uint64_t first = stamp_of("m");
    assert_true(stamp_of("m") == first);
    make_file("m/1/sub/b", "333"); /* another size */
    uint64_t second = stamp_of("m");
    assert_true(second != first);
    make_file("m/config.pbtxt", "backend: 'null' # more");
    uint64_t third = stamp_of("m");
    assert_true(third != second);
    make_file("m/1/c", "");
    assert_true(stamp_of("m") != third);
}

/* Links lead where they lead; loops end. */
static void follows_links(void **state)
{
    char found[256];
    char path[512];
    char target[512];
    (void)state;
    make_file(".blobs/model", "12345678");
    make_folder("m/1");
    path_of(path, "m/1/model.onnx");
    assert_int_equal(symlink("../../.blobs/model", path), 0);
    path_of(path, "m/1/loop");
    assert_int_equal(symlink(".", path), 0);
    path_of(path, "m/1/nowhere");
    assert_int_equal(symlink("nothing", path), 0);
    path_of(path, "linked");
    path_of(target, "m");
    assert_int_equal(symlink(target, path), 0);
    scan(found, sizeof(found));
    assert_string_equal(found, "linked/1 onnx; m/1 onnx");
}

static struct berth_queue replies;
static int delivered;

static void on_reply(struct berth_post *post)
{
    struct berth_repo_job *job = BERTH_CONTAINER_OF(post, struct berth_repo_job, post);
    delivered++;
    assert_int_equal(job->err.code, BERTH_OK);
}

static void answers_by_post(void **state)
{
    enum { JOBS = 5 };
    (void)state;
    struct berth_err err = {0};
    struct berth_repo_job jobs[JOBS];
    make_file("m/config.pbtxt", "backend: 'null'");
    make_folder("m/1");
    assert_int_equal(berth_queue_init(&replies, 0, &err), BERTH_OK);
    struct berth_repo *repo = opened();
    for (size_t i = 0; i < JOBS; i++) {
        jobs[i] = (struct berth_repo_job){
            .post = {.deliver = on_reply}, .reply = &replies, .kind = BERTH_REPO_SCAN};
        berth_repo_submit(repo, &jobs[i]);
    }
    berth_repo_close(repo); /* finishes what was sent */
    struct berth_link taken;
    berth_list_init(&taken);
    berth_queue_take(&replies, &taken);
    for (struct berth_link *link = berth_list_pop(&taken); link != NULL;
         link = berth_list_pop(&taken)) {
        struct berth_post *post = BERTH_CONTAINER_OF(link, struct berth_post, link);
        post->deliver(post);
    }
    assert_int_equal(delivered, JOBS);
    for (size_t i = 0; i < JOBS; i++) {
        assert_int_equal(jobs[i].found_count, 1);
        berth_repo_job_finish(&jobs[i]);
    }
    berth_queue_finish(&replies);
}

static void needs_a_folder(void **state)
{
    char path[512];
    struct berth_err err = {0};
    struct berth_repo *repo = NULL;
    (void)state;
    path_of(path, "nothing");
    assert_int_equal(berth_repo_open(path, &repo, &err), BERTH_NOT_FOUND);
    make_file("file", "x");
    path_of(path, "file");
    assert_int_equal(berth_repo_open(path, &repo, &err), BERTH_INVALID);
    berth_repo_close(NULL);
}

static void survives_failing_allocations(void **state)
{
    (void)state;
    make_file("a/1/model.onnx", "x");
    make_file("b/config.pbtxt", "backend: 'null' version_policy { all { } }");
    make_folder("b/1");
    make_folder("b/2");
    make_file("c/config.json", "{\"model_type\": \"whisper\"}");
    struct berth_repo *repo = opened();
    uint64_t live = berth_mem_bytes_live();
    bool clean = false;
    for (uint64_t nth = 1; !clean; nth++) {
        struct berth_repo_job job = {.kind = BERTH_REPO_SCAN};
        uint64_t calls = berth_mem_call_count();
        berth_mem_fail_at(nth, false);
        berth_repo_run(repo, &job);
        clean = berth_mem_call_count() - calls < nth;
        berth_mem_fail_at(0, false);
        assert_true(!clean || (job.err.code == BERTH_OK && job.found_count == 4));
        for (size_t i = 0; i < job.found_count; i++) {
            assert_true(job.found[i].spec != NULL || job.found[i].err.code != BERTH_OK);
        }
        berth_repo_job_finish(&job);
        assert_int_equal(berth_mem_bytes_live(), live);
        assert_true(nth < 10000);
    }
    berth_repo_close(repo);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(judges_names),
        cmocka_unit_test_setup_teardown(finds_models_sorted, setup, teardown),
        cmocka_unit_test_setup_teardown(tells_the_engine_by_config_json, setup, teardown),
        cmocka_unit_test_setup_teardown(broken_models_leave_the_rest, setup, teardown),
        cmocka_unit_test_setup_teardown(follows_the_version_policy, setup, teardown),
        cmocka_unit_test_setup_teardown(reads_one_model, setup, teardown),
        cmocka_unit_test_setup_teardown(stamps_tell_changes, setup, teardown),
        cmocka_unit_test_setup_teardown(follows_links, setup, teardown),
        cmocka_unit_test_setup_teardown(answers_by_post, setup, teardown),
        cmocka_unit_test_setup_teardown(needs_a_folder, setup, teardown),
        cmocka_unit_test_setup_teardown(survives_failing_allocations, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
