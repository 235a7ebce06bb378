/* test_sched.c - the controller in virtual time: admission, states, deadlines, cancels, drain. */
#include "sched_rig.h"

static void one_request_passes(void **state)
{
    struct rig rig;
    struct rig_client client;
    rig_open(&rig);
    rig_begin(&rig);
    struct berth_model *model = rig_put(&rig, rig_spec("a"));
    rig_ask(&rig, &client, model);
    assert_int_equal(rig_count(&rig, BERTH_WORKER_LOAD), 1);
    assert_int_equal(berth_model_state(model), BERTH_STATE_LOADING);
    rig_finish(&rig, BERTH_WORKER_LOAD, 10 * RIG_MS);
    assert_int_equal(berth_model_state(model), BERTH_STATE_WARM);
    rig_finish(&rig, BERTH_WORKER_RUN, 3 * RIG_MS);
    assert_int_equal(client.finals, 1);
    assert_int_equal(client.code, BERTH_OK);
    assert_true(client.request->cold);
    assert_int_equal(atomic_load(&model->stats.success.count), 1);
    assert_int_equal(atomic_load(&model->stats.queue.ns), 10 * RIG_MS);
    assert_int_equal(atomic_load(&model->stats.compute_infer.ns), 3 * RIG_MS);
    assert_int_equal(atomic_load(&model->stats.success.ns), 13 * RIG_MS);
    assert_int_equal(atomic_load(&model->stats.queue_depth), 0);
    rig_leave(&client);
    rig_drop(model);
    rig_close(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_request_passes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
