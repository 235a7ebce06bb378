/* test_process_worker.c - the process worker under the controller's thread: a real child process,
 * which is this program again, with the null engine; and children that die, lie or say nothing.
 *
 * Nothing is asserted about how long anything takes.
 */
#include "worker_rig.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include "model/config_tree.h"
#include "repo/model_config.h"
#include "worker/worker_protocol.h"

/* The child of this process, or 0 while there is none. */
static pid_t child_pid(void)
{
    pid_t found = 0;
    DIR *tasks = opendir("/proc/self/task");
    assert_non_null(tasks);
    for (struct dirent *entry = readdir(tasks); entry != NULL && found == 0;
         entry = readdir(tasks)) {
        char path[300], line[64] = "";
        snprintf(path, sizeof(path), "/proc/self/task/%s/children", entry->d_name);
        FILE *file = entry->d_name[0] == '.' ? NULL : fopen(path, "r");
        if (file != NULL && fgets(line, sizeof(line), file) != NULL) {
            found = (pid_t)strtol(line, NULL, 10);
        }
        if (file != NULL) {
            fclose(file);
        }
    }
    closedir(tasks);
    return found;
}

static void kill_child(void)
{
    pid_t pid = child_pid();
    if (pid > 0) {
        kill(pid, SIGKILL);
    }
}

static pid_t wait_for_child(pid_t other)
{
    pid_t pid = child_pid();
    while (pid == 0 || pid == other) {
        usleep(1000);
        pid = child_pid();
    }
    return pid;
}

/* Until `finals` answers are there, whether or not a child had begun what it was to. A killed child
 * costs a pause, so none is killed twice for the same. */
static void kill_until_answered(struct client *client, size_t finals)
{
    for (unsigned pauses = 100; client->finals < finals; pauses *= 2) {
        kill_child();
        for (unsigned i = 0; i < pauses && client->finals < finals; i++) {
            usleep(1000);
            client_take(client);
        }
    }
    assert_int_equal(client->finals, finals);
}

/* `limits`: a program, and times after which something is a failure. */
static void stand_open_with(struct stand *stand, const struct berth_worker_options *limits)
{
    struct berth_err err = {0};
    struct berth_worker_options options = *limits;
    stand_begin(stand);
    options.device = "cpu:0";
    options.run_threads = options.load_threads = 2;
    options.engine_threads = 1;
    options.slabs = stand->slabs;
    options.bytes_budget = 1 << 26;
    assert_int_equal(berth_worker_process_create(&options, &stand->worker, &err), BERTH_OK);
    stand_start(stand);
}

static void stand_open(struct stand *stand)
{
    stand_open_with(stand, &(struct berth_worker_options){0});
}

static void stand_end(struct stand *stand)
{
    stand_close(stand);
    assert_int_equal(child_pid(), 0);
}

static struct berth_model *model_put(struct stand *stand, const char *name, const char *config)
{
    struct berth_err err = {0};
    struct berth_version_policy policy;
    struct berth_model_spec *spec = berth_spec_create();
    struct berth_model_config text = {.text = config, .length = strlen(config), .label = name,
                                      .json = true};
    assert_non_null(spec);
    spec->name = berth_arena_strdup(&spec->arena, name);
    spec->folder = spec->folder_version = spec->task = "";
    spec->version = 1;
    assert_int_equal(berth_model_config_read(&text, spec, &policy, &err), BERTH_OK);
    return stand_put(stand, spec);
}

static float value_next; /* so that no two requests say the same */

static const char *const echo_config =
    "{\"backend\": \"null\", \"max_batch_size\": 8, \"dynamic_batching\": {}}";

static struct berth_request *ask(struct stand *stand, struct client *client,
                                 struct berth_model *model, size_t floats)
{
    struct berth_err err = {0};
    struct berth_request *request = request_make(stand, client, model, floats, value_next++);
    assert_int_equal(berth_sched_submit(stand->sched, request, &err), BERTH_OK);
    return request; /* the caller's reference */
}

static void ask_only(struct stand *stand, struct client *client, struct berth_model *model,
                     size_t floats)
{
    berth_request_release(ask(stand, client, model, floats));
}

/* Inside the message and past it, in common, large and private memory. */
static void answers_are_the_same_bytes(void **state)
{
    static const size_t floats[] = {1, 4, 2048, 2049, 20000, 1 << 20};
    struct stand stand;
    struct client client;
    stand_open(&stand);
    client_open(&client);
    struct berth_model *model = model_put(&stand, "echo", echo_config);
    for (size_t i = 0; i < BERTH_COUNT_OF(floats); i++) {
        ask_only(&stand, &client, model, floats[i]);
        client_wait(&client, i + 1);
        assert_int_equal(client.last.code, BERTH_OK);
        assert_int_equal(client.matches, i + 1);
    }
    berth_queue_finish(&client.queue);
    stand_end(&stand);
}

static void many_requests_leave_nothing(void **state)
{
    struct stand stand;
    struct client client;
    stand_open(&stand);
    client_open(&client);
    struct berth_model *model = model_put(&stand, "echo", echo_config);
    ask_only(&stand, &client, model, 4);
    client_wait(&client, 1);
    size_t fds = count_fds();
    for (size_t i = 0; i < 1000; i++) {
        ask_only(&stand, &client, model, i % 10 == 0 ? 5000 : 4);
    }
    client_wait(&client, 1001);
    assert_int_equal(client.ok, 1001);
    assert_int_equal(client.matches, 1001);
    assert_int_equal(count_fds(), fds);
    berth_queue_finish(&client.queue);
    stand_end(&stand);
}

static void steps_give_all_parts(void **state)
{
    struct stand stand;
    struct client client;
    stand_open(&stand);
    client_open(&client);
    struct berth_model *model =
        model_put(&stand, "steps", "{\"backend\": \"null\", \"max_batch_size\": 8, \"parameters\": "
                                   "{\"steps\": {\"string_value\": \"5\"}}}");
    for (size_t i = 0; i < 40; i++) {
        ask_only(&stand, &client, model, i % 2 == 0 ? 4 : 3000);
    }
    client_wait(&client, 40);
    assert_int_equal(client.ok, 40);
    assert_int_equal(client.parts, 200);
    assert_int_equal(client.matches, 200);
    berth_queue_finish(&client.queue);
    stand_end(&stand);
}

static void errors_come_home(void **state)
{
    struct stand stand;
    struct client client;
    stand_open(&stand);
    client_open(&client);
    struct berth_model *failing =
        model_put(&stand, "failing",
                  "{\"backend\": \"null\", \"max_batch_size\": 8, "
                  "\"parameters\": {\"fail_run\": {\"string_value\": \"no luck\"}}}");
    struct berth_model *broken =
        model_put(&stand, "broken",
                  "{\"backend\": \"null\", \"max_batch_size\": 8, "
                  "\"parameters\": {\"fail_load\": {\"string_value\": \"no load\"}}}");
    struct berth_model *unknown = model_put(&stand, "unknown", "{\"backend\": \"nothing\"}");
    ask_only(&stand, &client, failing, 4);
    client_wait(&client, 1);
    assert_non_null(strstr(client.last.msg, "no luck"));
    ask_only(&stand, &client, broken, 4);
    client_wait(&client, 2);
    assert_non_null(strstr(client.last.msg, "no load"));
    ask_only(&stand, &client, unknown, 4);
    client_wait(&client, 3);
    assert_non_null(strstr(client.last.msg, "needs engine 'nothing'"));
    assert_int_equal(client.ok, 0);
    berth_queue_finish(&client.queue);
    stand_end(&stand);
}

static void parameters_cross(void **state)
{
    struct stand stand;
    struct client client;
    struct berth_err err = {0};
    stand_open(&stand);
    client_open(&client);
    struct berth_model *model = model_put(&stand, "echo", echo_config);
    struct berth_param params[2] = {
        {.name = "null_fail", .kind = BERTH_PARAM_STRING, .value.string = "because \xff"},
        {.name = "null_sleep_ms", .kind = BERTH_PARAM_INT, .value.integer = 1}};
    static char text[70000];
    memset(text, 'x', sizeof(text) - 1);
    for (size_t i = 0; i < 2; i++) {
        params[0].value.string = i == 0 ? "because \xff" : text;
        struct berth_request *request = request_make(&stand, &client, model, 4, value_next++);
        request->params = (struct berth_params){.items = params, .count = 2};
        assert_int_equal(berth_sched_submit(stand.sched, request, &err), BERTH_OK);
        berth_request_release(request);
        client_wait(&client, i + 1);
        if (i == 0) {
            assert_non_null(strstr(client.last.msg, "because"));
        } else {
            assert_int_equal(client.last.code, BERTH_TOO_LARGE);
        }
    }
    ask_only(&stand, &client, model, 4);
    client_wait(&client, 3);
    assert_int_equal(client.ok, 1);
    berth_queue_finish(&client.queue);
    stand_end(&stand);
}

static void cancel_reaches_the_child(void **state)
{
    static const char *const configs[2] = {
        "{\"backend\": \"null\", \"max_batch_size\": 8, \"parameters\": "
        "{\"sleep_ms\": {\"string_value\": \"1000000\"}}}",
        "{\"backend\": \"null\", \"max_batch_size\": 8, \"parameters\": "
        "{\"steps\": {\"string_value\": \"1000000\"}, \"step_ms\": {\"string_value\": \"1\"}}}"};
    struct stand stand;
    struct client client;
    stand_open(&stand);
    client_open(&client);
    for (size_t i = 0; i < 2; i++) {
        struct berth_model *model = model_put(&stand, i == 0 ? "run" : "step", configs[i]);
        struct berth_request *request = ask(&stand, &client, model, 4);
        wait_until_running(&stand, 1);
        usleep(20000);
        pid_t pid = child_pid();
        berth_sched_cancel(stand.sched, request);
        client_wait(&client, i + 1);
        assert_int_equal(client.last.code, BERTH_CANCELLED);
        berth_request_release(request);
        wait_until_running(&stand, 0); /* the child gave it back, and lives */
        assert_int_equal(child_pid(), pid);
    }
    berth_queue_finish(&client.queue);
    stand_end(&stand);
}

/* Killed in a load, a run and a step: one answer each; then it serves again. */
static void a_killed_child_is_replaced(void **state)
{
    static const char *const configs[3] = {
        "{\"backend\": \"null\", \"max_batch_size\": 8, \"parameters\": "
        "{\"sleep_ms\": {\"string_value\": \"1000000\"}}}",
        "{\"backend\": \"null\", \"max_batch_size\": 4, \"parameters\": {\"steps\": "
        "{\"string_value\": \"1000000\"}, \"step_ms\": {\"string_value\": \"1\"}}}",
        "{\"backend\": \"null\", \"max_batch_size\": 8, \"parameters\": "
        "{\"sleep_ms_load\": {\"string_value\": \"1000000\"}}}"};
    struct stand stand;
    struct client client;
    stand_open(&stand);
    client_open(&client);
    struct berth_model *echo = model_put(&stand, "echo", echo_config);
    size_t finals = 0;
    for (size_t i = 0; i < 3; i++) {
        char name[16];
        snprintf(name, sizeof(name), "m%zu", i);
        struct berth_model *model = model_put(&stand, name, configs[i]);
        pid_t pid = wait_for_child(0);
        ask_only(&stand, &client, model, 4);
        if (i == 2) {
            while (berth_model_state(model) != BERTH_STATE_LOADING) {
                usleep(1000);
            }
            usleep(50000); /* so that its child most likely has it */
        } else {
            wait_until_running(&stand, 1);
        }
        kill_until_answered(&client, ++finals);
        assert_int_equal(client.last.code, BERTH_UNAVAILABLE);
        wait_for_child(pid);
        do {
            ask_only(&stand, &client, echo, 4);
            client_wait(&client, ++finals); /* UNAVAILABLE: one was killed before it was up */
            assert_true(client.last.code == BERTH_OK || client.last.code == BERTH_UNAVAILABLE);
        } while (client.last.code != BERTH_OK);
    }
    berth_queue_finish(&client.queue);
    stand_end(&stand);
}

/* Kills at any moment under load: every request has one answer, OK or UNAVAILABLE. */
static void kills_at_any_moment(void **state)
{
    struct stand stand;
    struct client client;
    stand_open(&stand);
    client_open(&client);
    struct berth_model *models[3] = {
        model_put(&stand, "echo", echo_config),
        model_put(&stand, "steps", "{\"backend\": \"null\", \"max_batch_size\": 8, \"parameters\": "
                                   "{\"steps\": {\"string_value\": \"3\"}}}"),
        model_put(&stand, "slow", "{\"backend\": \"null\", \"max_batch_size\": 8, \"parameters\": "
                                  "{\"sleep_ms\": {\"string_value\": \"2\"}}}")};
    size_t asked = 0;
    for (size_t round = 0; round < 15; round++) {
        for (size_t i = 0; i < 30; i++) {
            ask_only(&stand, &client, models[(asked + i) % 3], i % 5 == 0 ? 4000 : 4);
        }
        asked += 30;
        usleep((useconds_t)(round * 1500));
        pid_t pid = child_pid();
        if (pid > 0) {
            kill(pid, SIGKILL);
        }
        client_take(&client);
    }
    client_wait(&client, asked);
    size_t ok = client.ok;
    for (size_t i = 0; i < 3; i++) {
        struct berth_err *last = &client.last;
        do { /* the last kill may still be on its way */
            ask_only(&stand, &client, models[i], 4);
            client_wait(&client, ++asked);
            assert_true(last->code == BERTH_OK || last->code == BERTH_UNAVAILABLE);
        } while (last->code != BERTH_OK);
    }
    assert_true(client.ok >= ok + 3);
    berth_queue_finish(&client.queue);
    stand_end(&stand);
}

/* A child that stops taking messages is replaced once nobody waits for one of them: one that it has
 * taken from its socket, and a batch that its socket has no room for. */
static void a_child_that_hangs_is_replaced(void **state)
{
    static const char *const configs[2] = {
        echo_config,
        "{\"backend\": \"null\", \"max_batch_size\": 256, \"dynamic_batching\": "
        "{\"preferred_batch_size\": [256], \"max_queue_delay_microseconds\": 100000000}}"};
    static const size_t counts[2] = {1, 256};
    for (size_t i = 0; i < 2; i++) {
        struct stand stand;
        struct client client;
        static struct berth_request *requests[256];
        stand_open_with(&stand, &(struct berth_worker_options){
                                    .hang_ns_max = 50 * BERTH_NS_PER_MS});
        client_open(&client);
        struct berth_model *echo = model_put(&stand, "echo", echo_config);
        struct berth_model *model = model_put(&stand, "hung", configs[i]);
        for (size_t n = 0; n < counts[i]; n++) { /* loads it */
            ask_only(&stand, &client, model, 4);
        }
        client_wait(&client, counts[i]);
        pid_t pid = wait_for_child(0);
        kill(pid, SIGSTOP);
        for (size_t n = 0; n < counts[i]; n++) {
            requests[n] = ask(&stand, &client, model, 2048);
        }
        wait_until_running(&stand, counts[i]);
        for (size_t n = 0; n < counts[i]; n++) {
            berth_sched_cancel(stand.sched, requests[n]);
            berth_request_release(requests[n]);
        }
        client_wait(&client, 2 * counts[i]);
        assert_int_equal(client.last.code, BERTH_CANCELLED);
        wait_for_child(pid);
        ask_only(&stand, &client, echo, 4);
        client_wait(&client, 2 * counts[i] + 1);
        assert_int_equal(client.last.code, BERTH_OK);
        berth_queue_finish(&client.queue);
        stand_end(&stand);
    }
}

/* Stopped in the middle of a load that is still waited for: the end of the server ends it. */
static void a_server_ends_though_its_child_hangs(void **state)
{
    struct stand stand;
    struct client client;
    stand_open_with(&stand, &(struct berth_worker_options){
                                    .hang_ns_max = 50 * BERTH_NS_PER_MS});
    client_open(&client);
    struct berth_model *echo = model_put(&stand, "echo", echo_config);
    struct berth_model *cold = model_put(&stand, "cold", echo_config);
    ask_only(&stand, &client, echo, 4);
    client_wait(&client, 1);
    kill(wait_for_child(0), SIGSTOP);
    ask_only(&stand, &client, cold, 4);
    while (berth_model_state(cold) != BERTH_STATE_LOADING) {
        usleep(1000);
    }
    berth_sched_destroy(stand.sched);
    stand.sched = NULL;
    client_wait(&client, 2);
    assert_int_equal(client.last.code, BERTH_UNAVAILABLE);
    berth_queue_finish(&client.queue);
    stand_end(&stand);
}

/* Steps fail, and mostly the drops of their rows too, for want of memory: the rows go home, nothing
 * of them is looked at afterwards, and the model, or its next copy, serves on. */
static void drops_without_memory(void **state)
{
    struct stand stand;
    struct client client;
    struct berth_request *requests[2];
    stand_open(&stand);
    client_open(&client);
    struct berth_model *model =
        model_put(&stand, "step", "{\"backend\": \"null\", \"max_batch_size\": 4, \"parameters\": "
                                  "{\"steps\": {\"string_value\": \"1000000\"}, "
                                  "\"step_ms\": {\"string_value\": \"30\"}}}");
    for (size_t i = 0; i < 2; i++) {
        requests[i] = ask(&stand, &client, model, 4);
    }
    wait_until_running(&stand, 2);
    usleep(100000);
    berth_mem_fail_at(1, true);
    client_wait(&client, 2);
    assert_int_equal(client.last.code, BERTH_UNAVAILABLE);
    wait_until_running(&stand, 0);
    berth_mem_fail_at(0, false);
    for (size_t i = 0; i < 2; i++) {
        berth_request_release(requests[i]);
    }
    struct berth_err last = {.code = BERTH_UNAVAILABLE};
    for (size_t asked = 2; last.code != BERTH_CANCELLED;) { /* its child may end only now */
        struct berth_request *request = ask(&stand, &client, model, 4);
        usleep(100000);
        berth_sched_cancel(stand.sched, request);
        client_wait(&client, ++asked);
        last = client.last;
        berth_request_release(request);
    }
    berth_queue_finish(&client.queue);
    stand_end(&stand);
}

/* A child whose device is lost to it ends by itself, and another one serves. */
static void a_lost_child_is_replaced(void **state)
{
    struct stand stand;
    struct client client;
    size_t asked = 0;
    setenv("BERTH_TEST_LOST", "1", 1);
    stand_open(&stand);
    client_open(&client);
    struct berth_model *model = model_put(&stand, "echo", echo_config);
    pid_t pid = wait_for_child(0);
    do {
        ask_only(&stand, &client, model, 4);
        client_wait(&client, ++asked);
        unsetenv("BERTH_TEST_LOST"); /* not before: the child may not have had it yet */
        assert_true(client.last.code == BERTH_OK || client.last.code == BERTH_UNAVAILABLE);
    } while (child_pid() == pid || client.last.code != BERTH_OK);
    berth_queue_finish(&client.queue);
    stand_end(&stand);
}

static void a_child_has_no_files_of_ours(void **state)
{
    struct stand stand;
    struct client client;
    stand_open(&stand);
    client_open(&client);
    ask_only(&stand, &client, model_put(&stand, "echo", echo_config), 4);
    client_wait(&client, 1);
    for (int fd = 0; fd < 2; fd++) {
        char path[64], target[64] = "";
        snprintf(path, sizeof(path), "/proc/%d/fd/%d", (int)wait_for_child(0), fd);
        assert_true(readlink(path, target, sizeof(target) - 1) > 0);
        assert_string_equal(target, "/dev/null");
    }
    berth_queue_finish(&client.queue);
    stand_end(&stand);
}

/* Idle when its child died: the next request loads it again and is none the wiser. */
static void an_idle_model_comes_back(void **state)
{
    struct stand stand;
    struct client client;
    stand_open(&stand);
    client_open(&client);
    struct berth_model *model = model_put(&stand, "echo", echo_config);
    for (size_t i = 0; i < 5; i++) {
        ask_only(&stand, &client, model, 4);
        client_wait(&client, i + 1);
        assert_int_equal(client.last.code, BERTH_OK);
        pid_t pid = wait_for_child(0);
        kill(pid, SIGKILL);
        while (berth_model_state(model) == BERTH_STATE_WARM) {
            usleep(1000);
        }
    }
    berth_queue_finish(&client.queue);
    stand_end(&stand);
}

/* A program that is not there, one that ends at once, one that never says it is ready. */
static void a_child_that_does_not_start(void **state)
{
    static const char *const programs[3] = {"/does/not/exist", "/bin/false", NULL};
    for (size_t i = 0; i < 3; i++) {
        struct stand stand;
        struct client client;
        if (i == 2) {
            setenv("BERTH_TEST_CHILD", "silent", 1);
        }
        stand_open_with(&stand, &(struct berth_worker_options){
                                    .program = programs[i],
                                    .start_ns_max = i == 2 ? 50 * BERTH_NS_PER_MS : 0});
        client_open(&client);
        struct berth_model *model = model_put(&stand, "echo", echo_config);
        ask_only(&stand, &client, model, 4);
        client_wait(&client, 1);
        assert_int_equal(client.last.code, BERTH_UNAVAILABLE);
        unsetenv("BERTH_TEST_CHILD");
        berth_queue_finish(&client.queue);
        stand_end(&stand);
    }
}

static const struct {
    const char *lie;
    bool steps;
} lies[] = {
    {"garbage", false},    {"short", false},      {"hello", false},      {"version", false},
    {"unknown-id", false}, {"no-answers", false}, {"no-answers", true},  {"twice", false},
    {"row-99", false},     {"row-99", true},      {"alive", false},      {"alive", true},
    {"past-end", false},   {"bad-fd", false},     {"pipe", false},       {"cut-file", false},
    {"many-slots", false}, {"many-slots", true},  {"no-slots", true},    {"event", true},
    {"event", false},      {"exit", true},
};

static const char *const steps_config =
    "{\"backend\": \"null\", \"max_batch_size\": 8, \"parameters\": "
    "{\"steps\": {\"string_value\": \"2\"}}}";

/* Each lie: the request is answered with an error, and an honest child serves the next one. */
static void nothing_a_child_says_is_believed(void **state)
{
    for (size_t i = 0; i < BERTH_COUNT_OF(lies); i++) {
        struct stand stand;
        struct client client;
        setenv("BERTH_TEST_CHILD", lies[i].lie, 1);
        stand_open(&stand);
        client_open(&client);
        struct berth_model *model =
            model_put(&stand, "m", lies[i].steps ? steps_config : echo_config);
        ask_only(&stand, &client, model, 4);
        client_wait(&client, 1);
        if (client.last.code == BERTH_OK) {
            fail_msg("believed: %s", lies[i].lie);
        }
        unsetenv("BERTH_TEST_CHILD");
        for (size_t asked = 1; client.last.code != BERTH_OK;) {
            kill_child(); /* one more liar may have been started before */
            ask_only(&stand, &client, model, 4);
            client_wait(&client, ++asked);
        }
        assert_true(client.matches > 0);
        berth_queue_finish(&client.queue);
        stand_end(&stand);
    }
}

/* Well-formed, and not what the model promises: the request fails and says why; the child is none
 * the worse for it, and neither is the row after it. */
static void what_a_model_promises_is_looked_for(void **state)
{
    static const struct {
        const char *lie;
        const char *text;
        bool steps;
    } answers[] = {
        {"missing", "without output 'OUTPUT0'", false},
        {"wrong-type", "'OUTPUT0' in INT32 instead of FP32", false},
        {"wrong-name", "an output that is none of the model's", false},
        {"wrong-shape", "'OUTPUT0' in another shape", false},
        {"same-twice", "'OUTPUT0' twice", false},
        {"missing", "without output 'OUTPUT0'", true},
        {"nothing", "ended a row without an answer", true},
        {"cancels-row", "cancelled what somebody waits for", false},
        {"cancels-row", "cancelled what somebody waits for", true},
        {"cancels-all", "cancelled what somebody waits for", false},
        {"cancels-slot", "cancelled what somebody waits for", true},
    };
    for (size_t i = 0; i < BERTH_COUNT_OF(answers); i++) {
        struct stand stand;
        struct client client;
        setenv("BERTH_TEST_CHILD", answers[i].lie, 1);
        stand_open(&stand);
        client_open(&client);
        struct berth_model *model =
            model_put(&stand, "m", answers[i].steps ? steps_config : echo_config);
        pid_t pid = wait_for_child(0);
        for (size_t asked = 1; asked <= 3; asked++) {
            ask_only(&stand, &client, model, 4);
            client_wait(&client, asked);
            assert_int_equal(client.last.code, BERTH_INTERNAL);
            if (strstr(client.last.msg, answers[i].text) == NULL) {
                fail_msg("%s: %s", answers[i].lie, client.last.msg);
            }
        }
        assert_int_equal(client.parts, 3); /* the finals, which hold nothing */
        assert_int_equal(child_pid(), pid);
        assert_int_equal(berth_model_state(model), BERTH_STATE_WARM);
        unsetenv("BERTH_TEST_CHILD");
        berth_queue_finish(&client.queue);
        stand_end(&stand);
    }
}

/* The process was dead before it could have had the run: nobody need know. */
static void a_run_for_a_dead_child_is_begun_by_the_next(void **state)
{
    static const char *const configs[2] = {echo_config, steps_config};
    for (size_t i = 0; i < 2; i++) {
        struct stand stand;
        struct client client;
        size_t asked = 0;
        stand_open(&stand);
        client_open(&client);
        struct berth_model *model = model_put(&stand, "m", configs[i]);
        ask_only(&stand, &client, model, 4);
        client_wait(&client, ++asked);
        for (size_t round = 0; round < 3; round++) {
            siginfo_t info;
            pid_t pid = wait_for_child(0);
            kill(pid, SIGKILL);
            while (waitid(P_PID, (id_t)pid, &info, WEXITED | WNOWAIT) != 0 && errno == EINTR) {
            } /* dead; reaped soon, or already */
            for (size_t n = 0; n < 5; n++) {
                ask_only(&stand, &client, model, n % 2 == 0 ? 4 : 4000);
                usleep((useconds_t)(n * round * 500));
            }
            asked += 5;
            client_wait(&client, asked);
        }
        assert_int_equal(client.ok, asked);
        berth_queue_finish(&client.queue);
        stand_end(&stand);
    }
}

/* One that takes a load and says nothing more, and one whose loader waits for what never comes
 * while its main thread lives: both are replaced, and what waits is told. */
static void a_load_that_stands_still_ends(void **state)
{
    static const char *const waits =
        "{\"backend\": \"null\", \"max_batch_size\": 8, \"parameters\": "
        "{\"sleep_ms_load\": {\"string_value\": \"3600000\"}}}";
    for (size_t i = 0; i < 2; i++) {
        struct stand stand;
        struct client client;
        if (i == 0) {
            setenv("BERTH_TEST_CHILD", "deaf", 1);
        }
        stand_open_with(&stand,
                        &(struct berth_worker_options){.load_ns_max = 500 * BERTH_NS_PER_MS});
        client_open(&client);
        struct berth_model *echo = model_put(&stand, "echo", echo_config);
        struct berth_model *model = model_put(&stand, "m", i == 0 ? echo_config : waits);
        ask_only(&stand, &client, model, 4);
        client_wait(&client, 1);
        assert_int_equal(client.last.code, BERTH_UNAVAILABLE);
        if (strstr(client.last.msg, "hangs in a load") == NULL) {
            fail_msg("%s", client.last.msg);
        }
        unsetenv("BERTH_TEST_CHILD");
        for (size_t asked = 1; client.last.code != BERTH_OK;) {
            if (i == 0) {
                kill_child(); /* one more that is deaf may have been started before */
            }
            ask_only(&stand, &client, echo, 4);
            client_wait(&client, ++asked);
        }
        berth_queue_finish(&client.queue);
        stand_end(&stand);
    }
}

/* Half as long again as a load may stand still, but it does not. */
static bool a_slow_load_comes(uint64_t load_ms_max)
{
    struct stand stand;
    struct client client;
    char config[400];
    snprintf(config, sizeof(config),
             "{\"backend\": \"null\", \"max_batch_size\": 8, \"parameters\": {\"sleep_ms\": "
             "{\"string_value\": \"10\"}}, \"model_warmup\": [{\"name\": \"w\", "
             "\"batch_size\": 1, \"count\": %llu, \"inputs\": {\"INPUT0\": {\"data_type\": "
             "\"TYPE_FP32\", \"dims\": [4], \"zero_data\": true}}}]}",
             (unsigned long long)(load_ms_max * 3 / 2 / 10));
    stand_open_with(&stand, &(struct berth_worker_options){
                                .load_ns_max = load_ms_max * BERTH_NS_PER_MS});
    client_open(&client);
    struct berth_model *model = model_put(&stand, "slow", config);
    pid_t pid = wait_for_child(0);
    ask_only(&stand, &client, model, 4);
    client_wait(&client, 1);
    bool comes = client.last.code == BERTH_OK;
    if (comes) {
        assert_int_equal(child_pid(), pid);
    } else if (strstr(client.last.msg, "hangs in a load") == NULL) {
        fail_msg("%s", client.last.msg);
    }
    berth_queue_finish(&client.queue);
    stand_end(&stand);
    return comes;
}

/* A loader at idle priority may have no turn for long on a busy machine, and then it does stand
 * still: so it gets more time, and as much more to do. */
static void a_slow_load_is_let_be(void **state)
{
    uint64_t load_ms_max = 1000;
    while (!a_slow_load_comes(load_ms_max)) {
        load_ms_max *= 4;
        assert_true(load_ms_max <= 64000);
    }
}

/* A load, a run by descriptor and steps; all answered. */
static void ask_two(struct stand *stand, struct client *client, uint64_t fail_at, size_t *asked)
{
    static size_t names;
    char name[2][32];
    struct berth_request *requests[2];
    for (size_t i = 0; i < 2; i++) {
        snprintf(name[i], sizeof(name[i]), "m%zu", names++);
        struct berth_model *model =
            model_put(stand, name[i], i == 0 ? echo_config : steps_config);
        requests[i] = request_make(stand, client, model, i == 0 ? 4000 : 4, value_next++);
    }
    berth_mem_fail_at(fail_at, false);
    for (size_t i = 0; i < 2; i++) {
        struct berth_err err = {0};
        *asked += berth_sched_submit(stand->sched, requests[i], &err) == BERTH_OK;
    }
    client_wait(client, *asked);
    berth_mem_fail_at(0, false);
    berth_request_release(requests[0]);
    berth_request_release(requests[1]);
}

/* The n-th allocation of the server fails: each request has its answer, and the next is served. */
static void the_server_has_no_memory(void **state)
{
    struct stand stand;
    struct client client;
    size_t asked = 0;
    stand_open(&stand);
    client_open(&client);
    ask_two(&stand, &client, 0, &asked);
    assert_int_equal(client.ok, 2);
    for (uint64_t n = 1; n < 120; n++) {
        ask_two(&stand, &client, n, &asked);
    }
    size_t ok = client.ok;
    while (client.ok < ok + 2) { /* a child given up for want of memory is back soon */
        ask_two(&stand, &client, 0, &asked);
    }
    berth_queue_finish(&client.queue);
    stand_end(&stand);
}

/* The n-th allocation of the child fails: it says so for the one request, or ends. */
static void the_child_has_no_memory(void **state)
{
    for (uint64_t n = 1; n < 200; n += 11) {
        struct stand stand;
        struct client client;
        char number[24];
        size_t asked = 0;
        snprintf(number, sizeof(number), "%llu", (unsigned long long)n);
        setenv("BERTH_TEST_FAIL", number, 1);
        stand_open(&stand);
        client_open(&client);
        ask_two(&stand, &client, 0, &asked);
        unsetenv("BERTH_TEST_FAIL");
        size_t ok = client.ok;
        while (client.ok < ok + 2) {
            kill_child(); /* this one may fail at n once more */
            ask_two(&stand, &client, 0, &asked);
        }
        berth_queue_finish(&client.queue);
        stand_end(&stand);
    }
}

/* Everything comes back, also to a worker that is ended at once. */
static void destroy_gives_everything_back(void **state)
{
    struct berth_err err = {0};
    struct berth_queue replies;
    struct berth_slabs *slabs = NULL;
    struct berth_worker *worker = NULL;
    struct berth_worker_msg msgs[20];
    struct berth_slabs_options budget = {.bytes_budget = 1 << 20};
    assert_int_equal(berth_queue_init(&replies, 0, &err), BERTH_OK);
    assert_int_equal(berth_slabs_create(&budget, &slabs, &err), BERTH_OK);
    struct berth_worker_options options = {.device = "cpu:0", .slabs = slabs,
                                           .bytes_budget = 1 << 20};
    assert_int_equal(berth_worker_process_create(&options, &worker, &err), BERTH_OK);
    worker->replies = &replies;
    struct berth_model_spec *specs[20];
    for (size_t i = 0; i < 20; i++) {
        specs[i] = berth_spec_create();
        specs[i]->name = "m";
        specs[i]->engine = specs[i]->backend = "null";
        specs[i]->folder = specs[i]->folder_version = specs[i]->platform = "";
        specs[i]->task = specs[i]->default_model_filename = "";
        msgs[i] = (struct berth_worker_msg){
            .kind = i % 2 == 0 ? BERTH_WORKER_DESCRIBE : BERTH_WORKER_LOAD, .spec = specs[i],
            .load_id = i + 1};
        berth_worker_send(worker, &msgs[i]);
    }
    assert_true(berth_worker_fault_stop(worker)); /* as the controller does: its child may be up */
    berth_worker_destroy(worker);
    struct berth_link posts;
    size_t count = 0;
    berth_list_init(&posts);
    (void)berth_queue_take(&replies, &posts);
    while (!berth_list_empty(&posts)) {
        (void)berth_list_pop(&posts);
        count++;
    }
    assert_int_equal(count, 20);
    for (size_t i = 0; i < 20; i++) {
        berth_spec_release(specs[i]);
    }
    berth_slabs_destroy(slabs);
    berth_queue_finish(&replies);
}

/* ---- the child's side: liars ---- */

static struct berth_wire_writer out;
static struct berth_wire_message in;

static bool is_step; /* the message whose row it is */

static void say(void)
{
    if (berth_wire_send(3, &out, true) != BERTH_WIRE_OK) {
        exit(0);
    }
}

static void say_end(uint64_t id, enum berth_code code, uint32_t instances, uint32_t slots)
{
    berth_wire_begin(&out, BERTH_WIRE_DONE, id);
    berth_wire_put_err(&out, &(struct berth_err){.code = code, .msg = "so it is"});
    for (int i = 0; i < 3; i++) {
        berth_wire_put_u64(&out, UINT64_MAX);
    }
    berth_wire_put_u32(&out, instances);
    berth_wire_put_u32(&out, slots);
    berth_wire_put_u32(&out, 0);
    berth_wire_put_u32(&out, 0);
    say();
}

static void say_done(uint64_t id, uint32_t instances, uint32_t slots)
{
    say_end(id, BERTH_OK, instances, slots);
}

static void put_like(const char *name, uint32_t dtype, uint64_t bytes)
{
    berth_wire_put_text(&out, name);
    berth_wire_put_u32(&out, dtype);
    berth_wire_put_u32(&out, 2);
    berth_wire_put_u64(&out, 1);
    berth_wire_put_u64(&out, bytes / 4);
    berth_wire_put_u64(&out, bytes);
}

/* The head of an answer of the row, up to its one tensor's place. */
static void begin_answer(uint64_t id, uint32_t index, const char *name, uint32_t dtype,
                         uint64_t bytes)
{
    berth_wire_begin(&out, BERTH_WIRE_ANSWER, id);
    berth_wire_put_u32(&out, index);
    berth_wire_put_u32(&out, 0);
    berth_wire_put_u32(&out, BERTH_OK);
    berth_wire_put_u32(&out, 1);
    put_like(name, dtype, bytes);
}

static void put_inside(void)
{
    berth_wire_put_u32(&out, 0);
    berth_wire_put_u64(&out, 1);
    berth_wire_put_u64(&out, 2);
}

static void answer_inside(uint64_t id, uint32_t index, const char *name, uint32_t dtype)
{
    begin_answer(id, index, name, dtype, 16);
    put_inside();
    say();
}

/* An answer of a RUN's row, or a row's seat and its last event, with no tensor at all. */
static void answer_empty(uint64_t id, bool steps, bool has_part)
{
    berth_wire_begin(&out, BERTH_WIRE_ANSWER, id);
    for (int i = 0; i < (steps ? 3 : 4); i++) {
        berth_wire_put_u32(&out, 0); /* row 0, slot 0, OK, no tensors */
    }
    say();
    if (steps) {
        berth_wire_begin(&out, BERTH_WIRE_EVENT, id);
        berth_wire_put_u32(&out, 0);
        berth_wire_put_u32(&out, 1);
        berth_wire_put_u32(&out, has_part);
        for (int i = 0; i < (has_part ? 2 : 1); i++) {
            berth_wire_put_u32(&out, 0);
        }
        say();
    }
    say_done(id, 1, 1);
}

/* [4] where the model says [rows, -1]. */
static void answer_flat(uint64_t id)
{
    berth_wire_begin(&out, BERTH_WIRE_ANSWER, id);
    for (int i = 0; i < 4; i++) {
        berth_wire_put_u32(&out, i == 3);
    }
    berth_wire_put_text(&out, "OUTPUT0");
    berth_wire_put_u32(&out, BERTH_DTYPE_FP32);
    berth_wire_put_u32(&out, 1);
    berth_wire_put_u64(&out, 4);
    berth_wire_put_u64(&out, 16);
    put_inside();
    say();
    say_done(id, 1, 1);
}

static void answer_twice(uint64_t id)
{
    berth_wire_begin(&out, BERTH_WIRE_ANSWER, id);
    for (int i = 0; i < 3; i++) {
        berth_wire_put_u32(&out, 0);
    }
    berth_wire_put_u32(&out, 2);
    for (int i = 0; i < 2; i++) {
        put_like("OUTPUT0", BERTH_DTYPE_FP32, 16);
        put_inside();
    }
    say();
    say_done(id, 1, 1);
}

/* A row, one that has a slot, or the whole message: CANCELLED, which nobody asked for. */
static void cancel_unasked(uint64_t id, bool row, bool slot)
{
    static const struct berth_err cancelled = {.code = BERTH_CANCELLED, .msg = "so it is"};
    static const struct berth_err fine = {.code = BERTH_OK};
    berth_wire_begin(&out, BERTH_WIRE_ANSWER, id);
    berth_wire_put_u32(&out, 0);
    berth_wire_put_u32(&out, 0);
    berth_wire_put_err(&out, row ? &cancelled : &fine);
    if (!row && !is_step) {
        berth_wire_put_u32(&out, 1);
        put_like("OUTPUT0", BERTH_DTYPE_FP32, 16);
        put_inside();
    }
    say();
    if (slot) {
        berth_wire_begin(&out, BERTH_WIRE_EVENT, id);
        berth_wire_put_u32(&out, 0);
        berth_wire_put_u32(&out, 1);
        berth_wire_put_u32(&out, 0);
        berth_wire_put_err(&out, &cancelled);
        say();
    }
    say_end(id, row || slot ? BERTH_OK : BERTH_CANCELLED, 1, 1);
}

static void answer_by_fd(uint64_t id, int fd, uint64_t offset)
{
    begin_answer(id, 0, "OUTPUT0", BERTH_DTYPE_FP32, 400000);
    berth_wire_put_u32(&out, 1);
    if (fd >= 0) {
        berth_wire_put_fd(&out, fd);
    } else {
        berth_wire_put_u32(&out, 5);
    }
    berth_wire_put_u64(&out, offset);
    say();
}

static void lie_about_row(const char *lie, uint64_t id)
{
    int ends[2];
    int fd = memfd_create("lie", MFD_CLOEXEC);
    if (strcmp(lie, "unknown-id") == 0) {
        answer_inside(id + 77, 0, "OUTPUT0", BERTH_DTYPE_FP32);
    } else if (strcmp(lie, "no-answers") == 0) {
        say_done(id, 1, 1);
    } else if (strcmp(lie, "twice") == 0) {
        answer_inside(id, 0, "OUTPUT0", BERTH_DTYPE_FP32);
        answer_inside(id, 0, "OUTPUT0", BERTH_DTYPE_FP32);
    } else if (strcmp(lie, "row-99") == 0) {
        answer_inside(id, 99, "OUTPUT0", BERTH_DTYPE_FP32);
    } else if (strcmp(lie, "wrong-type") == 0) {
        answer_inside(id, 0, "OUTPUT0", BERTH_DTYPE_INT32);
        say_done(id, 1, 1);
    } else if (strcmp(lie, "wrong-name") == 0) {
        answer_inside(id, 0, "OTHER", BERTH_DTYPE_FP32);
        say_done(id, 1, 1);
    } else if (strcmp(lie, "missing") == 0 || strcmp(lie, "nothing") == 0) {
        answer_empty(id, is_step, strcmp(lie, "missing") == 0);
    } else if (strcmp(lie, "wrong-shape") == 0) {
        answer_flat(id);
    } else if (strcmp(lie, "same-twice") == 0) {
        answer_twice(id);
    } else if (strncmp(lie, "cancels-", 8) == 0) {
        cancel_unasked(id, strcmp(lie, "cancels-row") == 0, strcmp(lie, "cancels-slot") == 0);
    } else if (strcmp(lie, "alive") == 0) {
        berth_wire_begin(&out, BERTH_WIRE_ALIVE, id); /* of a run */
        say();
    } else if (strcmp(lie, "past-end") == 0 && ftruncate(fd, 500000) == 0) {
        answer_by_fd(id, fd, UINT64_MAX - 100);
    } else if (strcmp(lie, "bad-fd") == 0) {
        answer_by_fd(id, -1, 0);
    } else if (strcmp(lie, "pipe") == 0 && pipe(ends) == 0) {
        answer_by_fd(id, ends[0], 0);
        say_done(id, 1, 1);
    } else if (strcmp(lie, "cut-file") == 0 && ftruncate(fd, 1000) == 0) {
        answer_by_fd(id, fd, 0);
        say_done(id, 1, 1);
    } else if (strcmp(lie, "event") == 0) {
        berth_wire_begin(&out, BERTH_WIRE_EVENT, id);
        for (uint32_t i = 0; i < 4; i++) {
            berth_wire_put_u32(&out, i == 0 ? 3 : 0); /* a slot nobody is in */
        }
        say();
    } else {
        exit(1);
    }
}

static int liar_main(const char *lie)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (berth_wire_receive(3, &in, true) != BERTH_WIRE_OK) {
        return 0;
    }
    if (strcmp(lie, "silent") == 0) {
        pause();
    }
    berth_wire_begin(&out, strcmp(lie, "hello") == 0 ? BERTH_WIRE_HELLO : BERTH_WIRE_READY, 0);
    berth_wire_put_text(&out, strcmp(lie, "version") == 0 ? "0.0.0" : BERTH_VERSION);
    if (strcmp(lie, "garbage") == 0) {
        memset(out.bytes, 0xA5, out.length);
    }
    out.length = strcmp(lie, "short") == 0 ? 3 : out.length;
    say();
    while (berth_wire_receive(3, &in, true) == BERTH_WIRE_OK) {
        if (in.kind == BERTH_WIRE_LOAD && strcmp(lie, "deaf") != 0) {
            uint32_t slots = strcmp(lie, "many-slots") == 0 ? 1000000
                             : strcmp(lie, "no-slots") == 0 ? 0
                                                            : 8;
            say_done(in.id, strcmp(lie, "many-slots") == 0 ? 1000 : 1, slots);
        } else if (in.kind == BERTH_WIRE_RUN || in.kind == BERTH_WIRE_STEP) {
            is_step = in.kind == BERTH_WIRE_STEP;
        } else if (in.kind == BERTH_WIRE_ROW) {
            lie_about_row(lie, in.id);
        } else if (in.kind == BERTH_WIRE_UNLOAD) {
            say_done(in.id, 0, 0);
        }
        berth_wire_close(&in);
    }
    return 0;
}

static void *lose_soon(void *argument)
{
    usleep(200000);
    berth_engines_lose();
    return NULL;
}

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "worker") == 0) {
        const char *lie = getenv("BERTH_TEST_CHILD");
        const char *fail = getenv("BERTH_TEST_FAIL");
        berth_log_set_level(BERTH_LOG_ERROR);
        if (lie != NULL) {
            return liar_main(lie);
        }
        if (fail != NULL) {
            berth_mem_fail_at(strtoull(fail, NULL, 10), false);
        }
        pthread_t thread;
        if (getenv("BERTH_TEST_LOST") != NULL &&
            pthread_create(&thread, NULL, lose_soon, NULL) == 0) {
            pthread_detach(thread);
        }
        int status = berth_worker_host_main(argc, argv);
        return status == 0 && berth_mem_bytes_live() != 0 ? 77 : status;
    }
    berth_log_set_level(BERTH_LOG_ERROR);
    if (argc > 1) {
        cmocka_set_test_filter(argv[1]);
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(answers_are_the_same_bytes),
        cmocka_unit_test(many_requests_leave_nothing),
        cmocka_unit_test(steps_give_all_parts),
        cmocka_unit_test(errors_come_home),
        cmocka_unit_test(parameters_cross),
        cmocka_unit_test(cancel_reaches_the_child),
        cmocka_unit_test(a_killed_child_is_replaced),
        cmocka_unit_test(kills_at_any_moment),
        cmocka_unit_test(an_idle_model_comes_back),
        cmocka_unit_test(a_child_that_hangs_is_replaced),
        cmocka_unit_test(a_server_ends_though_its_child_hangs),
        cmocka_unit_test(drops_without_memory),
        cmocka_unit_test(a_lost_child_is_replaced),
        cmocka_unit_test(a_child_has_no_files_of_ours),
        cmocka_unit_test(a_child_that_does_not_start),
        cmocka_unit_test(nothing_a_child_says_is_believed),
        cmocka_unit_test(what_a_model_promises_is_looked_for),
        cmocka_unit_test(a_run_for_a_dead_child_is_begun_by_the_next),
        cmocka_unit_test(a_load_that_stands_still_ends),
        cmocka_unit_test(a_slow_load_is_let_be),
        cmocka_unit_test(the_server_has_no_memory),
        cmocka_unit_test(the_child_has_no_memory),
        cmocka_unit_test(destroy_gives_everything_back),
    };
    return cmocka_run_group_tests_name("process_worker", tests, NULL, NULL);
}
