/* test_host_take.c - what a worker process makes of its server's messages: each is taken whole or
 * not at all, and out of turn not either. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>

#include <cmocka.h>

#include "host_rig.h"

#include "base/log.h"

static struct berth_slabs *slabs;
static struct host_rig rig;
static struct berth_wire_writer writer;
static int config_fd;
static const char config[] = "{\"backend\": \"null\"}";

static void put_load(void)
{
    berth_wire_begin(&writer, BERTH_WIRE_LOAD, 1);
    berth_wire_put_u64(&writer, 7);
    berth_wire_put_u64(&writer, 1); /* token */
    berth_wire_put_text(&writer, "model");
    berth_wire_put_u64(&writer, 1);
    berth_wire_put_text(&writer, "/folder");
    berth_wire_put_text(&writer, "/folder/1");
    berth_wire_put_text(&writer, "null");
    berth_wire_put_u64(&writer, 0);
    for (int i = 0; i < 3; i++) {
        berth_wire_put_u32(&writer, 0);
    }
    berth_wire_put_u64(&writer, sizeof(config) - 1);
    berth_wire_put_fd(&writer, config_fd);
}

static void put_unload(void)
{
    berth_wire_begin(&writer, BERTH_WIRE_UNLOAD, 9);
    berth_wire_put_u64(&writer, 7);
}

static void put_run(void)
{
    berth_wire_begin(&writer, BERTH_WIRE_RUN, 2);
    berth_wire_put_u64(&writer, 7);
    berth_wire_put_u32(&writer, 0);
    berth_wire_put_u32(&writer, 2);
}

static void put_row(uint64_t id, uint32_t index)
{
    struct berth_err err = {0};
    struct berth_param param = {.name = "p", .kind = BERTH_PARAM_STRING, .value.string = "text"};
    struct berth_request *request = berth_request_create(slabs, 0);
    const char *wanted[] = {"OUT"};
    assert_non_null(request);
    assert_int_equal(berth_slabs_take(slabs, 16, &request->body, &err), BERTH_OK);
    struct berth_tensor input = {.name = "IN", .dtype = BERTH_DTYPE_FP32, .rank = 1, .dims = {4},
                                 .range = request->body};
    request->inputs = &input;
    request->input_count = 1;
    request->outputs_wanted = wanted;
    request->output_wanted_count = 1;
    request->params = (struct berth_params){.items = &param, .count = 1};
    berth_wire_begin(&writer, BERTH_WIRE_ROW, id);
    berth_wire_put_u64(&writer, 10 + id + index);
    berth_wire_put_u32(&writer, index);
    berth_wire_put_u32(&writer, 0);
    berth_wire_put_u32(&writer, 1);
    berth_wire_put_request(&writer, request);
    berth_request_release(request);
}

static void put_row_0(void)
{
    put_row(2, 0);
}

static void put_row_that_does_not_come(void)
{
    berth_wire_begin(&writer, BERTH_WIRE_ROW, 2);
    berth_wire_put_u64(&writer, 13);
    berth_wire_put_u32(&writer, 1);
    berth_wire_put_u32(&writer, 1);
    berth_wire_put_u32(&writer, 0);
}

static void put_cancel(void)
{
    berth_wire_begin(&writer, BERTH_WIRE_CANCEL, 12);
}

static void put_release(void)
{
    berth_wire_begin(&writer, BERTH_WIRE_RELEASE, 2);
}

static void put_step(void)
{
    berth_wire_begin(&writer, BERTH_WIRE_STEP, 3);
    berth_wire_put_u64(&writer, 7);
    berth_wire_put_u32(&writer, 0);
    berth_wire_put_u32(&writer, 1);
    berth_wire_put_u64(&writer, 1000);
    berth_wire_put_u32(&writer, 2);
    berth_wire_put_u32(&writer, 5);
    berth_wire_put_u32(&writer, 6);
}

static void put_step_row(void)
{
    put_row(3, 0);
}

/* One good conversation. */
static void (*const script[])(void) = {
    put_load, put_run, put_row_0, put_cancel, put_row_that_does_not_come,
    put_release, put_step, put_step_row, put_unload,
};

static bool say(size_t length)
{
    return host_rig_take(&rig, writer.bytes, length, writer.fd_count == 0 ? -1 : config_fd);
}

/* All before the message at `count`, which is left in the writer. */
static void play(size_t count)
{
    host_rig_init(&rig, slabs);
    for (size_t i = 0; i < count; i++) {
        script[i]();
        if (!say(writer.length)) {
            fail_msg("message %zu is refused", i);
        }
    }
    if (count < BERTH_COUNT_OF(script)) {
        script[count]();
    }
}

static void end_play(void)
{
    struct berth_slabs_stats stats;
    host_rig_finish(&rig);
    berth_slabs_stats(slabs, &stats);
    assert_int_equal(stats.bytes_out, 0);
}

static void a_good_conversation_is_taken(void **state)
{
    play(BERTH_COUNT_OF(script));
    assert_int_equal(rig.runs, 4); /* a run's row, a step's row, two drops */
    assert_true(berth_list_empty(&rig.host.jobs));
    assert_true(berth_list_empty(&rig.host.rows)); /* also what lived in a slot of the model */
    end_play();
}

/* Each message of it, cut at each of its bytes, and with one byte too many. */
static void a_message_is_taken_whole_or_not_at_all(void **state)
{
    for (size_t i = 0; i < BERTH_COUNT_OF(script); i++) {
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
            end_play();
        }
    }
}

/* Each message at each place but its own: taken where that makes sense, and nothing is lost. */
static void messages_out_of_turn(void **state)
{
    for (size_t at = 0; at <= BERTH_COUNT_OF(script); at++) {
        for (size_t i = 0; i < BERTH_COUNT_OF(script); i++) {
            play(at);
            script[i]();
            (void)say(writer.length);
            end_play();
        }
    }
    play(2);
    put_release(); /* of a run that has not all its rows */
    assert_false(say(writer.length));
    end_play();
    play(2);
    put_row_that_does_not_come(); /* the second before the first */
    assert_false(say(writer.length));
    end_play();
    for (uint32_t kind = BERTH_WIRE_READY; kind < BERTH_WIRE_KIND_END; kind++) { /* ours to say */
        play(0);
        berth_wire_begin(&writer, (enum berth_wire_kind)kind, 1);
        assert_false(say(writer.length));
        end_play();
    }
}

int main(void)
{
    struct berth_slabs_options options = {.bytes_budget = 1 << 24};
    berth_log_set_level(BERTH_LOG_ERROR);
    config_fd = memfd_create("config", MFD_CLOEXEC);
    if (config_fd < 0 ||
        write(config_fd, config, sizeof(config) - 1) != (ssize_t)sizeof(config) - 1 ||
        berth_slabs_create(&options, &slabs, NULL) != BERTH_OK) {
        return 1;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_good_conversation_is_taken),
        cmocka_unit_test(a_message_is_taken_whole_or_not_at_all),
        cmocka_unit_test(messages_out_of_turn),
    };
    int failed = cmocka_run_group_tests_name("host_take", tests, NULL, NULL);
    berth_slabs_destroy(slabs);
    close(config_fd);
    return failed;
}
