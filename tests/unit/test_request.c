/* Tensors, parameters, and the answer law. */
#include "request/request.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

static struct berth_slabs *slabs;
static struct berth_queue reply;

static void ignore(struct berth_post *post)
{
    (void)post;
}

static int set_up(void **state)
{
    struct berth_slabs_options options = {.bytes_budget = 1 << 20};
    (void)state;
    return berth_slabs_create(&options, &slabs, NULL) != BERTH_OK ||
           berth_queue_init(&reply, 0, NULL) != BERTH_OK;
}

/* Whatever a test did, no range may be out. */
static int tear_down(void **state)
{
    struct berth_slabs_stats stats;
    (void)state;
    berth_slabs_stats(slabs, &stats);
    berth_queue_finish(&reply);
    berth_slabs_destroy(slabs);
    return stats.bytes_out != 0;
}

static struct berth_request *make_request(void)
{
    struct berth_request *request = berth_request_create(slabs, 1 << 16);
    if (request != NULL) {
        request->reply = &reply;
        request->on_part = ignore;
    }
    return request;
}

static struct berth_part *next_part(void)
{
    static struct berth_link taken;
    if (taken.next == NULL) {
        berth_list_init(&taken);
    }
    berth_queue_take(&reply, &taken);
    struct berth_link *link = berth_list_pop(&taken);
    if (link == NULL) {
        return NULL;
    }
    struct berth_post *post = BERTH_CONTAINER_OF(link, struct berth_post, link);
    return BERTH_CONTAINER_OF(post, struct berth_part, post);
}

static void dtypes(void **state)
{
    (void)state;
    for (int i = BERTH_DTYPE_NONE + 1; i <= BERTH_DTYPE_BF16; i++) {
        const char *name = berth_dtype_name((enum berth_dtype)i);
        assert_int_equal(berth_dtype_parse(name, strlen(name)), i);
    }
    assert_int_equal(berth_dtype_bytes(BERTH_DTYPE_FP16), 2);
    assert_int_equal(berth_dtype_bytes(BERTH_DTYPE_BYTES), 0);
    assert_int_equal(berth_dtype_parse("FP32x", 4), BERTH_DTYPE_FP32);
    assert_int_equal(berth_dtype_parse("FP3", 3), BERTH_DTYPE_NONE);
    assert_int_equal(berth_dtype_parse("fp32", 4), BERTH_DTYPE_NONE);
    assert_int_equal(berth_dtype_parse("", 0), BERTH_DTYPE_NONE);
}

static void elements(void **state)
{
    static const struct {
        struct berth_tensor tensor;
        bool good;
        size_t count;
    } cases[] = {
        {{.rank = 0}, true, 1},
        {{.rank = 3, .dims = {2, 3, 4}}, true, 24},
        {{.rank = 2, .dims = {5, 0}}, true, 0},
        {{.rank = 2, .dims = {5, -1}}, false, 0},
        {{.rank = 3, .dims = {INT64_MAX, INT64_MAX, INT64_MAX}}, false, 0},
        {{.rank = 3, .dims = {0, INT64_MAX, INT64_MAX}}, true, 0},
        {{.rank = 2, .dims = {INT64_MAX, 2}}, true, SIZE_MAX - 1},
        {{.rank = 2, .dims = {INT64_MAX, 3}}, false, 0},
    };
    (void)state;
    for (size_t i = 0; i < BERTH_COUNT_OF(cases); i++) {
        size_t count = 0;
        assert_int_equal(berth_tensor_elements(&cases[i].tensor, &count), cases[i].good);
        assert_true(!cases[i].good || count == cases[i].count);
    }
}

static void strings_in_tensors(void **state)
{
    unsigned char bytes[64];
    const unsigned char *at = bytes;
    const char *text;
    uint32_t length;
    (void)state;
    unsigned char *end = berth_bytes_put(bytes, "one", 3);
    end = berth_bytes_put(end, NULL, 0);
    end = berth_bytes_put(end, "a\0b", 3);
    assert_int_equal(end - bytes, 4 + 3 + 4 + 4 + 3);
    assert_true(berth_bytes_next(&at, end, &text, &length));
    assert_int_equal(length, 3);
    assert_memory_equal(text, "one", 3);
    assert_true(berth_bytes_next(&at, end, &text, &length));
    assert_int_equal(length, 0);
    assert_false(berth_bytes_next(&at, end - 1, &text, &length)); /* one byte short */
    assert_false(berth_bytes_next(&at, at + 3, &text, &length));
    assert_true(berth_bytes_next(&at, end, &text, &length));
    assert_false(berth_bytes_next(&at, end, &text, &length));
    memset(bytes, 0xFF, 8); /* a length of 4 GiB */
    at = bytes;
    assert_false(berth_bytes_next(&at, bytes + 8, &text, &length));
    assert_ptr_equal(at, bytes);
}

static void parameters(void **state)
{
    struct berth_param items[] = {
        {"b", BERTH_PARAM_BOOL, {.boolean = true}},
        {"i", BERTH_PARAM_INT, {.integer = -7}},
        {"r", BERTH_PARAM_REAL, {.real = 0.5}},
        {"s", BERTH_PARAM_STRING, {.string = "text"}},
    };
    struct berth_params params = {items, BERTH_COUNT_OF(items)};
    (void)state;
    assert_true(berth_params_bool(&params, "b", false));
    assert_int_equal(berth_params_int(&params, "i", 1), -7);
    assert_true(berth_params_real(&params, "r", 1) == 0.5);
    assert_true(berth_params_real(&params, "i", 1) == -7);
    assert_string_equal(berth_params_string(&params, "s", ""), "text");
    assert_true(berth_params_bool(&params, "i", true));
    assert_int_equal(berth_params_int(&params, "r", 9), 9);
    assert_true(berth_params_real(&params, "s", 9) == 9);
    assert_string_equal(berth_params_string(&params, "none", "other"), "other");
    assert_null(berth_params_find(&params, "none"));
}

static void a_request_owns_its_ranges(void **state)
{
    uint64_t live = berth_mem_bytes_live();
    (void)state;
    struct berth_request *first = make_request();
    struct berth_request *second = make_request();
    assert_true(second->id > first->id && first->id > 0);
    assert_int_equal(berth_slabs_take_private(slabs, 100, &first->body, NULL), BERTH_OK);
    assert_int_equal(berth_slabs_take(slabs, 100, &first->media, NULL), BERTH_OK);
    assert_ptr_equal(berth_request_retain(first), first);
    assert_null(berth_arena_alloc(&first->arena, 1 << 17));
    assert_non_null(berth_arena_alloc(&first->arena, 1 << 10));
    berth_request_release(first);
    berth_request_release(first);
    berth_request_release(second);
    berth_request_release(NULL);
    assert_true(berth_mem_bytes_live() < live + (5 << 20)); /* the slab's blocks */
}

static const struct berth_tensor one_byte = {.name = "y", .dtype = BERTH_DTYPE_INT8};

static void inputs_and_outputs_by_name(void **state)
{
    const char *wanted[] = {"b", "c"};
    struct berth_tensor inputs[] = {{.name = "x"}, {.name = "y"}};
    struct berth_request *request = make_request();
    (void)state;
    request->inputs = inputs;
    request->input_count = 2;
    assert_ptr_equal(berth_request_input(request, "y"), &inputs[1]);
    assert_null(berth_request_input(request, "z"));
    assert_true(berth_request_wants(request, "a")); /* none named: all */
    request->outputs_wanted = wanted;
    assert_false(berth_request_wants(request, "b"));
    request->output_wanted_count = 2;
    assert_false(berth_request_wants(request, "a"));
    assert_true(berth_request_wants(request, "c"));
    berth_request_release(request);
}

static void parts_hold_tensors(void **state)
{
    struct berth_request *request = make_request();
    struct berth_part *part = berth_part_create(request);
    struct berth_err err;
    char name[8] = "out";
    struct berth_tensor like = {
        .name = name, .dtype = BERTH_DTYPE_FP32, .rank = 2, .dims = {2, 3}, .range = {.slab = 99}};
    void *bytes = NULL;
    (void)state;
    assert_int_equal(berth_part_add(part, &like, 24, &bytes, &err), BERTH_OK);
    memset(bytes, 1, 24);
    assert_int_equal((uintptr_t)bytes % BERTH_SLAB_ALIGN, 0);
    name[0] = 'x'; /* it was copied */
    assert_int_equal(berth_part_find(part, "out")->dims[1], 3);
    assert_null(berth_part_find(part, "xut"));
    assert_int_equal(berth_part_add(part, &like, 23, &bytes, &err), BERTH_INTERNAL);
    like.rank = BERTH_RANK_MAX + 1;
    assert_int_equal(berth_part_add(part, &like, 24, &bytes, &err), BERTH_UNSUPPORTED);
    like.dtype = BERTH_DTYPE_BYTES;
    like.rank = 1;
    assert_int_equal(berth_part_add(part, &like, 2 << 20, &bytes, &err), BERTH_TOO_LARGE);
    assert_int_equal(part->tensor_count, 1);
    struct berth_tensor none = {.name = "none", .dtype = BERTH_DTYPE_FP32, .rank = 1};
    assert_int_equal(berth_part_add(part, &none, 0, &bytes, &err), BERTH_OK);
    assert_null(bytes);
    for (int i = 0; i < 20; i++) {
        assert_int_equal(berth_part_add(part, &one_byte, 1, &bytes, &err), BERTH_OK);
    }
    assert_int_equal(part->tensor_count, 22);
    assert_string_equal(part->tensors[0].name, "out");
    berth_request_release(request); /* the part holds it */
    berth_part_destroy(part);
    berth_part_destroy(NULL);
}

static void one_final_answer(void **state)
{
    struct berth_request *request = make_request();
    struct berth_err err;
    void *bytes;
    (void)state;
    struct berth_part *part = berth_part_create(request);
    berth_request_send(request, part);
    struct berth_part *last = berth_part_create(request);
    assert_int_equal(berth_part_add(last, &one_byte, 1, &bytes, NULL), BERTH_OK);
    assert_true(berth_request_complete(request, last, NULL));
    assert_true(request->stamps.t_done_ns > 0);
    berth_fail(&err, BERTH_DEADLINE, "too late");
    assert_false(berth_request_complete(request, NULL, &err));
    part = berth_part_create(request);
    assert_int_equal(berth_part_add(part, &one_byte, 1, &bytes, NULL), BERTH_OK);
    assert_false(berth_request_complete(request, part, NULL)); /* destroyed */
    berth_request_send(request, berth_part_create(request));   /* dropped */
    part = next_part();
    assert_false(part->final);
    assert_ptr_equal(part->post.deliver, ignore);
    berth_part_destroy(part);
    part = next_part();
    assert_ptr_equal(part, last);
    assert_true(part->final);
    assert_int_equal(part->err.code, BERTH_OK);
    berth_part_destroy(part);
    assert_null(next_part());
    berth_request_release(request);
}

static void an_error_needs_no_memory(void **state)
{
    struct berth_request *request = make_request();
    struct berth_err err;
    (void)state;
    berth_fail_field(&err, BERTH_UNAVAILABLE, "model", "gone");
    berth_mem_fail_at(1, true);
    assert_null(berth_part_create(request));
    assert_true(berth_request_complete(request, NULL, &err));
    struct berth_part *part = next_part();
    berth_mem_fail_at(0, false);
    assert_ptr_equal(part, &request->final_part);
    assert_int_equal(part->err.code, BERTH_UNAVAILABLE);
    assert_string_equal(part->err.msg, "gone");
    berth_part_destroy(part);
    berth_part_destroy(part); /* nothing left in it */
    berth_request_release(request);
    request = make_request();
    assert_true(berth_request_complete(request, NULL, NULL));
    berth_request_release(request); /* the embedded part alone holds it */
    berth_part_destroy(next_part());
}

/* With allocation 1, 2, 3... failing there is one final answer and nothing is left over. */
static void torture(void **state)
{
    bool done = false;
    (void)state;
    for (uint64_t at = 1; !done; at++) {
        struct berth_err err = {0};
        void *bytes;
        berth_mem_fail_at(at, false);
        struct berth_request *request = make_request();
        if (request == NULL) {
            continue;
        }
        struct berth_part *part = berth_part_create(request);
        enum berth_code code = part == NULL ? BERTH_UNAVAILABLE : BERTH_OK;
        for (int i = 0; i < 9 && code == BERTH_OK; i++) {
            code = berth_part_add(part, &one_byte, 1, &bytes, &err);
        }
        if (code == BERTH_OK) {
            assert_true(berth_request_complete(request, part, NULL));
            done = true;
        } else {
            assert_int_equal(code, BERTH_UNAVAILABLE);
            berth_part_destroy(part);
            assert_true(berth_request_complete(request, NULL, &err));
        }
        berth_mem_fail_at(0, false);
        berth_request_release(request);
        part = next_part();
        assert_true(part->final);
        berth_part_destroy(part);
        assert_null(next_part());
        assert_true(at < 50);
    }
}

static void *complete(void *context)
{
    struct berth_request *request = context;
    struct berth_part *part = berth_part_create(request);
    bool won = berth_request_complete(request, part, NULL);
    berth_request_release(request);
    return won ? context : NULL;
}

static void threads_race_for_the_answer(void **state)
{
    (void)state;
    for (int i = 0; i < 100; i++) {
        struct berth_request *request = make_request();
        pthread_t thread;
        void *other;
        berth_request_retain(request);
        berth_request_retain(request);
        assert_int_equal(pthread_create(&thread, NULL, complete, request), 0);
        void *own = complete(request);
        pthread_join(thread, &other);
        assert_int_equal((own != NULL) + (other != NULL), 1);
        berth_part_destroy(next_part());
        assert_null(next_part());
        berth_request_release(request);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(dtypes),
        cmocka_unit_test(elements),
        cmocka_unit_test(strings_in_tensors),
        cmocka_unit_test(parameters),
        cmocka_unit_test_setup_teardown(a_request_owns_its_ranges, set_up, tear_down),
        cmocka_unit_test_setup_teardown(inputs_and_outputs_by_name, set_up, tear_down),
        cmocka_unit_test_setup_teardown(parts_hold_tensors, set_up, tear_down),
        cmocka_unit_test_setup_teardown(one_final_answer, set_up, tear_down),
        cmocka_unit_test_setup_teardown(an_error_needs_no_memory, set_up, tear_down),
        cmocka_unit_test_setup_teardown(torture, set_up, tear_down),
        cmocka_unit_test_setup_teardown(threads_race_for_the_answer, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
