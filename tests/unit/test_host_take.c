/* test_host_take.c - what a worker process makes of its server's messages: each is taken whole or
 * not at all, and in each state of what it is about as P13's table says. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#include <cmocka.h>

#include "host_rig.h"

#include "base/clock.h"
#include "base/log.h"

static struct berth_slabs *slabs;
static struct host_rig rig;
static struct berth_wire_writer writer;
static int config_fd;
static size_t bytes_at_start;
static uint64_t id_next, token_next; /* both count on, whatever is said */

#define STEPS 8 /* load id */

static void put_load(uint64_t load_id)
{
    host_rig_put_load(&writer, id_next++, token_next++, load_id);
    berth_wire_put_fd(&writer, config_fd);
}

static void put_unload(uint64_t load_id)
{
    berth_wire_begin(&writer, BERTH_WIRE_UNLOAD, id_next++);
    berth_wire_put_u64(&writer, load_id);
}

/* Of two rows. */
static void put_run(uint64_t load_id, uint32_t instance)
{
    berth_wire_begin(&writer, BERTH_WIRE_RUN, id_next++);
    berth_wire_put_u64(&writer, load_id);
    berth_wire_put_u32(&writer, instance);
    berth_wire_put_u32(&writer, 2);
}

/* Of one row, with two drops. */
static void put_step(uint64_t load_id, uint32_t instance, uint32_t drop)
{
    berth_wire_begin(&writer, BERTH_WIRE_STEP, id_next++);
    berth_wire_put_u64(&writer, load_id);
    berth_wire_put_u32(&writer, instance);
    berth_wire_put_u32(&writer, 1);
    berth_wire_put_u64(&writer, 1000);
    berth_wire_put_u32(&writer, 2);
    berth_wire_put_u32(&writer, 5);
    berth_wire_put_u32(&writer, drop);
}

static void put_row_of(uint64_t id, uint32_t index, int64_t floats)
{
    struct berth_err err = {0};
    struct berth_param param = {.name = "p", .kind = BERTH_PARAM_STRING, .value.string = "text"};
    struct berth_request *request = berth_request_create(slabs, 0);
    const char *wanted[] = {"OUT"};
    assert_non_null(request);
    assert_int_equal(berth_slabs_take(slabs, (size_t)floats * 4, &request->body, &err), BERTH_OK);
    struct berth_tensor input = {.name = "IN", .dtype = BERTH_DTYPE_FP32, .rank = 1,
                                 .dims = {floats}, .range = request->body};
    request->inputs = &input;
    request->input_count = 1;
    request->outputs_wanted = wanted;
    request->output_wanted_count = 1;
    request->params = (struct berth_params){.items = &param, .count = 1};
    berth_wire_begin(&writer, BERTH_WIRE_ROW, id);
    berth_wire_put_u64(&writer, token_next++);
    berth_wire_put_u32(&writer, index);
    berth_wire_put_u32(&writer, 0);
    berth_wire_put_u32(&writer, 1);
    berth_wire_put_request(&writer, request);
    berth_request_release(request);
}

static void put_row(uint64_t id, uint32_t index)
{
    put_row_of(id, index, 4);
}

static void put_row_that_does_not_come(uint64_t id, uint32_t index)
{
    berth_wire_begin(&writer, BERTH_WIRE_ROW, id);
    berth_wire_put_u64(&writer, token_next++);
    berth_wire_put_u32(&writer, index);
    berth_wire_put_u32(&writer, 1);
    berth_wire_put_u32(&writer, 0);
}

static void put_word(enum berth_wire_kind kind, uint64_t about)
{
    berth_wire_begin(&writer, kind, about);
}

/* One good conversation. Message 1 loads, 3 runs, 4 steps. */
#define SCRIPT_LENGTH 10

static void put_script(size_t at)
{
    switch (at) {
    case 0:
        put_load(HOST_RUNS);
        break;
    case 1:
        put_load(STEPS);
        break;
    case 2:
        put_run(HOST_RUNS, 0);
        break;
    case 3:
        put_row(3, 0);
        break;
    case 4:
        put_word(BERTH_WIRE_CANCEL, 3);
        break;
    case 5:
        put_row_that_does_not_come(3, 1);
        break;
    case 6:
        put_word(BERTH_WIRE_RELEASE, 3);
        break;
    case 7:
        put_step(STEPS, 0, 6);
        break;
    case 8:
        put_row(4, 0);
        break;
    default:
        put_unload(STEPS);
        break;
    }
}

static bool say(size_t length)
{
    return host_rig_take(&rig, writer.bytes, length, writer.fd_count == 0 ? -1 : config_fd);
}

static void must_say(void)
{
    if (!say(writer.length)) {
        fail_msg("%s", rig.host.fault.msg);
    }
}

static void begin_play(void)
{
    host_rig_init(&rig, slabs);
    id_next = token_next = 1;
}

/* All before the message at `count`, which is left in the writer. */
static void play(size_t count)
{
    begin_play();
    for (size_t i = 0; i < count; i++) {
        put_script(i);
        must_say();
    }
    if (count < SCRIPT_LENGTH) {
        put_script(count);
    }
}

static void end_play(void)
{
    struct berth_slabs_stats stats;
    host_rig_finish(&rig);
    berth_slabs_stats(slabs, &stats);
    assert_int_equal(stats.bytes_out, 0);
    assert_int_equal(berth_mem_bytes_live(), bytes_at_start);
}

static void a_good_conversation_is_taken(void **state)
{
    play(SCRIPT_LENGTH);
    assert_int_equal(rig.runs, 4); /* a run's row, a step's row, two drops */
    assert_true(berth_list_empty(&rig.host.jobs));
    assert_true(berth_list_empty(&rig.host.rows)); /* also what lived in a slot of the model */
    assert_non_null(berth_host_load_find(&rig.host, HOST_RUNS));
    assert_null(berth_host_load_find(&rig.host, STEPS));
    end_play();
}

/* Each message of it, cut at each of its bytes, and with one byte too many. */
static void a_message_is_taken_whole_or_not_at_all(void **state)
{
    for (size_t i = 0; i < SCRIPT_LENGTH; i++) {
        play(i);
        size_t length = writer.length;
        end_play();
        for (size_t cut = 0; cut <= length; cut++) {
            play(i);
            writer.bytes[writer.length] = 0; /* the byte too many */
            if (say(cut < length ? cut : length + 1)) {
                fail_msg("message %zu of %zu bytes is taken with %zu", i, length,
                         cut < length ? cut : length + 1);
            }
            if (cut >= 16 && rig.host.fault.code != BERTH_INVALID) {
                fail_msg("message %zu cut at %zu: %s", i, cut, rig.host.fault.msg);
            }
            end_play();
        }
    }
}

/* Each message at each place but its own: taken where that makes sense, and nothing is lost. */
static void messages_out_of_turn(void **state)
{
    for (size_t at = 0; at <= SCRIPT_LENGTH; at++) {
        for (size_t i = 0; i < SCRIPT_LENGTH; i++) {
            play(at);
            put_script(i);
            (void)say(writer.length);
            end_play();
        }
    }
}

/* --- P13: every message in every state --- */

static const char *const kinds[] = {
    [BERTH_WIRE_HELLO] = "HELLO",     [BERTH_WIRE_LOAD] = "LOAD",
    [BERTH_WIRE_UNLOAD] = "UNLOAD",   [BERTH_WIRE_RUN] = "RUN",
    [BERTH_WIRE_STEP] = "STEP",       [BERTH_WIRE_ROW] = "ROW",
    [BERTH_WIRE_CANCEL] = "CANCEL",   [BERTH_WIRE_RELEASE] = "RELEASE",
    [BERTH_WIRE_READY] = "READY",     [BERTH_WIRE_ANSWER] = "ANSWER",
    [BERTH_WIRE_EVENT] = "EVENT",     [BERTH_WIRE_DONE] = "DONE",
    [BERTH_WIRE_ALIVE] = "ALIVE",     [BERTH_WIRE_HELD] = "HELD",
};

static const char *const states[] = {
    [BERTH_HOST_NONE] = "NONE",           [BERTH_HOST_GREETING] = "GREETING",
    [BERTH_HOST_SERVING] = "SERVING",     [BERTH_HOST_LOADING] = "LOADING",
    [BERTH_HOST_IDLE] = "IDLE",           [BERTH_HOST_BUSY] = "BUSY",
    [BERTH_HOST_UNLOADING] = "UNLOADING", [BERTH_HOST_GATHERING] = "GATHERING",
    [BERTH_HOST_OUT] = "OUT",             [BERTH_HOST_LENT] = "LENT",
    [BERTH_HOST_GIVEN] = "GIVEN",
};

static void assert_fault(uint32_t kind, uint32_t in)
{
    char text[80];
    snprintf(text, sizeof(text), "the server sent %s in state %s, ", kinds[kind], states[in]);
    assert_int_equal(rig.host.fault.code, BERTH_CONFLICT);
    if (strncmp(rig.host.fault.msg, text, strlen(text)) != 0) {
        fail_msg("'%s' is not '%s'", rig.host.fault.msg, text);
    }
}

/* The table itself. */
static void each_message_has_one_state(void **state)
{
    static const enum berth_host_state legal[BERTH_WIRE_KIND_END] = {
        [BERTH_WIRE_HELLO] = BERTH_HOST_GREETING, [BERTH_WIRE_LOAD] = BERTH_HOST_NONE,
        [BERTH_WIRE_UNLOAD] = BERTH_HOST_IDLE,    [BERTH_WIRE_RUN] = BERTH_HOST_IDLE,
        [BERTH_WIRE_STEP] = BERTH_HOST_IDLE,      [BERTH_WIRE_ROW] = BERTH_HOST_GATHERING,
        [BERTH_WIRE_CANCEL] = BERTH_HOST_GIVEN,   [BERTH_WIRE_RELEASE] = BERTH_HOST_LENT,
    };
    assert_int_equal(BERTH_COUNT_OF(kinds), BERTH_WIRE_KIND_END);
    assert_int_equal(BERTH_COUNT_OF(states), BERTH_HOST_STATES);
    for (uint32_t kind = BERTH_WIRE_HELLO; kind < BERTH_WIRE_KIND_END; kind++) {
        for (uint32_t in = 0; in < BERTH_HOST_STATES; in++) {
            bool may = kind <= BERTH_WIRE_RELEASE && legal[kind] == (enum berth_host_state)in;
            begin_play();
            rig.host.message.kind = (enum berth_wire_kind)kind;
            assert_int_equal(berth_host_legal(&rig.host, (enum berth_host_state)in), may);
            if (!may) {
                assert_fault(kind, in);
            }
            end_play();
        }
    }
}

/* Where a conversation can be. From IDLE on there are two models, one for runs and one for steps;
 * RUN is message 3 of instance 0, and STEP is one of instance 0. */
enum scene {
    EMPTY,
    LOADING,   /* the first model */
    IDLE,      /* both are there */
    GATHERING, /* one row of RUN has come */
    OUT,
    LENT,
    STEPPING,
    UNLOADING, /* the first model */
    UNLOADED,
    SCENES
};

static void set(enum scene scene)
{
    begin_play();
    rig.keeps = scene == LOADING;
    for (uint64_t load_id = HOST_RUNS; load_id <= STEPS && scene != EMPTY; load_id++) {
        put_load(load_id);
        must_say();
        if (scene == LOADING) {
            return;
        }
    }
    rig.keeps = scene == OUT || scene == STEPPING || scene == UNLOADING;
    if (scene >= GATHERING && scene <= LENT) {
        put_run(HOST_RUNS, 0);
        must_say();
        put_row(3, 0);
        must_say();
        if (scene != GATHERING) {
            put_row(3, 1);
            must_say();
        }
    } else if (scene == STEPPING) {
        put_step(STEPS, 0, 6);
        must_say();
        put_row(3, 0);
        must_say();
    } else if (scene == UNLOADING || scene == UNLOADED) {
        put_unload(HOST_RUNS);
        must_say();
    }
}

#define SAY_COUNT 17

static void put_saying(size_t at)
{
    switch (at) {
    case 0:
        put_word(BERTH_WIRE_HELLO, 0);
        break;
    case 1:
        put_load(HOST_RUNS);
        break;
    case 2:
        put_unload(HOST_RUNS);
        break;
    case 3:
    case 4:
    case 5:
        put_run(HOST_RUNS, (uint32_t)at - 3);
        break;
    case 6:
        put_run(STEPS, 0);
        break;
    case 7:
        put_step(HOST_RUNS, 0, 6);
        break;
    case 8:
    case 9:
    case 10:
        put_step(STEPS, (uint32_t)at - 8, 6);
        break;
    case 11:
        put_unload(STEPS);
        break;
    case 12:
        put_row(3, 1);
        break;
    case 13:
        put_word(BERTH_WIRE_RELEASE, 3);
        break;
    case 14:
        put_word(BERTH_WIRE_RELEASE, 1);
        break;
    case 15:
        put_word(BERTH_WIRE_CANCEL, 1);
        break;
    default:
        put_word(BERTH_WIRE_CANCEL, token_next);
        break;
    }
}

/* What is said, and what comes of it in each scene: taken (.), or refused in a state. */
static const struct {
    uint32_t kind;
    char in[SCENES + 1];
} sayings[SAY_COUNT] = {
    {BERTH_WIRE_HELLO, "SSSSSSSSS"},
    {BERTH_WIRE_LOAD, ".LIBBIIU."},
    {BERTH_WIRE_UNLOAD, "NL.BB..UN"},
    {BERTH_WIRE_RUN, "NL.BB..UN"},     /* of instance 0 */
    {BERTH_WIRE_RUN, "NL.....UN"},     /* of instance 1 */
    {BERTH_WIRE_RUN, "NLNNNNNUN"},     /* of one that there is not */
    {BERTH_WIRE_RUN, "NNNNNNNNN"},     /* of a model that takes steps */
    {BERTH_WIRE_STEP, "NLNNNNNUN"},    /* of one that takes runs */
    {BERTH_WIRE_STEP, "NN....B.."},    /* of instance 0 */
    {BERTH_WIRE_STEP, "NN......."},    /* of instance 1 */
    {BERTH_WIRE_STEP, "NNNNNNNNN"},    /* of one that there is not */
    {BERTH_WIRE_UNLOAD, "NN....B.."},  /* of the model that takes steps */
    {BERTH_WIRE_ROW, "NNN.OTOON"},
    {BERTH_WIRE_RELEASE, "NNNGO.OON"},
    {BERTH_WIRE_RELEASE, "NONNNNNNN"}, /* of a LOAD */
    {BERTH_WIRE_CANCEL, "N........"},  /* of the first LOAD */
    {BERTH_WIRE_CANCEL, "NNNNNNNNN"},  /* of what was never there */
};

static uint32_t state_of(char letter)
{
    static const char letters[] = "N?SLIBUGOT";
    const char *at = strchr(letters, letter);
    assert_non_null(at);
    return (uint32_t)(at - letters);
}

static void every_message_in_every_state(void **state)
{
    for (enum scene scene = EMPTY; scene < SCENES; scene++) {
        for (size_t i = 0; i < SAY_COUNT; i++) {
            char expected = sayings[i].in[scene];
            set(scene);
            put_saying(i);
            bool taken = say(writer.length);
            if (taken != (expected == '.')) {
                fail_msg("saying %zu in scene %d: '%s'", i, (int)scene, rig.host.fault.msg);
            }
            if (!taken) {
                assert_fault(sayings[i].kind, state_of(expected));
            }
            end_play();
        }
        for (uint32_t kind = BERTH_WIRE_READY; kind < BERTH_WIRE_KIND_END; kind++) { /* ours */
            set(scene);
            put_word((enum berth_wire_kind)kind, 3);
            assert_false(say(writer.length));
            assert_fault(kind, BERTH_HOST_SERVING);
            end_play();
        }
    }
}

static void refuse(enum berth_code code, const char *why)
{
    assert_false(say(writer.length));
    assert_int_equal(rig.host.fault.code, code);
    if (strstr(rig.host.fault.msg, why) == NULL) {
        fail_msg("'%s' says nothing of '%s'", rig.host.fault.msg, why);
    }
    end_play();
}

/* Names that were there, rows that are not the next, slots that are none. */
static void names_and_places(void **state)
{
    set(IDLE);
    id_next--;
    put_run(HOST_RUNS, 0);
    refuse(BERTH_CONFLICT, "was there before");
    set(IDLE);
    token_next--;
    put_load(9);
    refuse(BERTH_CONFLICT, "was there before");
    set(GATHERING);
    token_next--;
    put_row(3, 1);
    refuse(BERTH_CONFLICT, "was there before");
    for (uint32_t index = 0; index <= 2; index += 2) {
        set(GATHERING);
        put_row(3, index);
        refuse(BERTH_CONFLICT, "not the next row");
    }
    set(IDLE);
    put_step(STEPS, 0, HOST_SLOTS - 1);
    must_say();
    end_play();
    set(IDLE);
    put_step(STEPS, 0, HOST_SLOTS);
    refuse(BERTH_INVALID, "a slot that is none");
}

/* An engine would read past its end: that row has an error, and the other one runs. */
static void a_request_that_does_not_fit_does_not_run(void **state)
{
    for (int64_t floats = 3; floats <= 5; floats++) {
        set(IDLE);
        put_run(HOST_RUNS, 0);
        must_say();
        put_row_of(3, 0, floats);
        must_say();
        put_row(3, 1);
        must_say();
        assert_int_equal(rig.runs, floats == 4 ? 2 : 1);
        end_play();
    }
}

/* --- P14: what a model holds --- */

static struct berth_host_load *load_of(uint64_t load_id)
{
    struct berth_host_load *load = berth_host_load_find(&rig.host, load_id);
    assert_non_null(load);
    return load;
}

static void tell(uint64_t bytes)
{
    berth_held_tell(&load_of(HOST_RUNS)->held, &rig.host.replies, bytes);
    host_rig_settle(&rig);
}

static void assert_said(size_t count, uint64_t bytes)
{
    assert_int_equal(rig.helds, count);
    assert_int_equal(rig.held_bytes, bytes);
}

static void growth_is_said_in_few_words(void **state)
{
    begin_play();
    rig.keeps = true;
    rig.load_bytes = 1000;
    put_load(HOST_RUNS);
    must_say();
    host_rig_let_go(&rig);
    assert_ptr_equal(rig.held, &load_of(HOST_RUNS)->held);
    assert_int_equal(rig.done_bytes, 1000);
    struct berth_held *held = rig.held;
    assert_int_equal(berth_host_look_at_held(&rig.host, BERTH_NS_PER_S), UINT64_MAX);
    for (uint64_t bytes = 0; bytes <= 20000; bytes++) {
        tell(bytes);
    }
    assert_said(1, 1001);
    uint64_t t_look_ns = berth_host_look_at_held(&rig.host, 0);
    assert_int_equal(t_look_ns, held->t_look_ns);
    assert_int_equal(berth_host_look_at_held(&rig.host, t_look_ns - 1), t_look_ns);
    assert_said(1, 1001);
    assert_int_equal(berth_host_look_at_held(&rig.host, t_look_ns), t_look_ns + BERTH_NS_PER_S);
    host_rig_settle(&rig);
    assert_said(2, 20000);
    tell(20000 + BERTH_HELD_NEWS_BYTES - 1);
    assert_said(2, 20000);
    tell(20000 + BERTH_HELD_NEWS_BYTES); /* much is said at once */
    assert_said(3, 20000 + BERTH_HELD_NEWS_BYTES);
    assert_int_equal(berth_host_look_at_held(&rig.host, UINT64_MAX - BERTH_NS_PER_S), UINT64_MAX);
    tell(20001 + BERTH_HELD_NEWS_BYTES); /* nothing came for a second: at once again */
    assert_said(4, 20001 + BERTH_HELD_NEWS_BYTES);
    tell(5);
    assert_said(4, 20001 + BERTH_HELD_NEWS_BYTES);
    end_play();
}

/* While it loads, its DONE says it; and what comes as it goes is said, or nothing is. */
static void growth_in_a_load_is_in_its_end(void **state)
{
    set(LOADING);
    rig.load_bytes = 1000;
    host_rig_end(&rig, rig.kept[0]); /* described; then the LOAD is kept */
    rig.kept_count = 0;
    host_rig_settle(&rig);
    assert_int_equal(rig.kept_count, 1);
    tell(3000);
    host_rig_let_go(&rig);
    assert_int_equal(rig.done_bytes, 3000);
    assert_int_equal(rig.helds, 0);
    rig.keeps = true;
    put_unload(HOST_RUNS);
    must_say();
    tell(4000);
    assert_said(1, 4000);
    host_rig_let_go(&rig);
    assert_null(berth_host_load_find(&rig.host, HOST_RUNS));
    end_play();
}

int main(void)
{
    struct berth_slabs_options options = {.bytes_budget = 1 << 24};
    berth_log_set_level(BERTH_LOG_ERROR);
    config_fd = memfd_create("config", MFD_CLOEXEC);
    if (config_fd < 0 ||
        write(config_fd, host_rig_config, sizeof(host_rig_config) - 1) !=
            (ssize_t)sizeof(host_rig_config) - 1 ||
        berth_slabs_create(&options, &slabs, NULL) != BERTH_OK) {
        return 1;
    }
    bytes_at_start = berth_mem_bytes_live();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_good_conversation_is_taken),
        cmocka_unit_test(a_message_is_taken_whole_or_not_at_all),
        cmocka_unit_test(messages_out_of_turn),
        cmocka_unit_test(each_message_has_one_state),
        cmocka_unit_test(every_message_in_every_state),
        cmocka_unit_test(names_and_places),
        cmocka_unit_test(a_request_that_does_not_fit_does_not_run),
        cmocka_unit_test(growth_is_said_in_few_words),
        cmocka_unit_test(growth_in_a_load_is_in_its_end),
    };
    int failed = cmocka_run_group_tests_name("host_take", tests, NULL, NULL);
    berth_slabs_destroy(slabs);
    close(config_fd);
    return failed;
}
