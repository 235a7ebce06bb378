/* test_worker_protocol.c - messages between the server and a worker process: what is put is what
 * is got; whatever is cut, too long or out of bounds turns a reader bad, and nothing else. */
#include <fcntl.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/mem.h"
#include "worker/worker_protocol.h"

static struct berth_wire_writer out;
static struct berth_wire_message in;

/* As if it had been sent: the descriptors are lent, not owned. */
static void turn(void)
{
    memcpy(in.bytes, out.bytes, out.length);
    memcpy(in.fds, out.fds, sizeof(in.fds));
    in.fd_count = out.fd_count;
    assert_true(berth_wire_open(&in, out.length));
}

static struct berth_slabs *make_slabs(void)
{
    struct berth_slabs *slabs = NULL;
    struct berth_err err = {0};
    struct berth_slabs_options options = {.bytes_budget = 1 << 24};
    assert_int_equal(berth_slabs_create(&options, &slabs, &err), BERTH_OK);
    return slabs;
}

static void fields_come_as_they_were_put(void **state)
{
    struct berth_err err = {0}, got;
    berth_wire_begin(&out, BERTH_WIRE_DONE, 42);
    berth_wire_put_u32(&out, 7);
    berth_wire_put_u64(&out, UINT64_MAX);
    berth_wire_put_text(&out, "text \xff");
    berth_wire_put_text(&out, "");
    berth_wire_put_text(&out, NULL);
    berth_wire_put_err(&out, &err);
    (void)berth_fail_field(&err, BERTH_BUSY, "language", "too much of %s", "it");
    err.retry_after_ms = 99;
    berth_wire_put_err(&out, &err);
    turn();
    assert_int_equal(in.kind, BERTH_WIRE_DONE);
    assert_int_equal(in.id, 42);
    assert_int_equal(berth_wire_get_u32(&in, 7), 7);
    assert_true(berth_wire_get_u64(&in) == UINT64_MAX);
    assert_string_equal(berth_wire_get_text(&in), "text \xff");
    assert_string_equal(berth_wire_get_text(&in), "");
    assert_null(berth_wire_get_text(&in));
    berth_wire_get_err(&in, &got);
    assert_int_equal(got.code, BERTH_OK);
    berth_wire_get_err(&in, &got);
    assert_int_equal(got.code, BERTH_BUSY);
    assert_string_equal(got.field, "language");
    assert_string_equal(got.msg, "too much of it");
    assert_int_equal(got.retry_after_ms, 99);
    assert_true(berth_wire_whole(&in));
    assert_int_equal(berth_wire_get_u32(&in, UINT32_MAX), 0);
    assert_false(berth_wire_whole(&in));
}

static void heads_are_judged(void **state)
{
    static const struct {
        uint32_t magic, kind;
        size_t length;
        bool good;
    } cases[] = {
        {0xBE47C002u, BERTH_WIRE_READY, 16, true},
        {0xBE47C002u, BERTH_WIRE_KIND_END - 1, 16, true},
        {0xBE47C002u, BERTH_WIRE_KIND_END, 16, false},
        {0xBE47C002u, 0, 16, false},
        {0xBE47C001u, BERTH_WIRE_READY, 16, false},
        {0xBE47C002u, BERTH_WIRE_READY, 15, false},
        {0xBE47C002u, BERTH_WIRE_READY, 0, false},
    };
    for (size_t i = 0; i < BERTH_COUNT_OF(cases); i++) {
        memset(in.bytes, 0, 16);
        memcpy(in.bytes, &cases[i].magic, 4);
        memcpy(in.bytes + 4, &cases[i].kind, 4);
        assert_int_equal(berth_wire_open(&in, cases[i].length), cases[i].good);
    }
}

static void bounds_turn_a_reader_bad(void **state)
{
    struct berth_err err;
    static const uint32_t lengths[] = {3, 4, 5, UINT32_MAX - 1};
    for (size_t i = 0; i < 4; i++) { /* text of 3 bytes and a NUL: said to be 3, 4, 5 .. long */
        berth_wire_begin(&out, BERTH_WIRE_DONE, 1);
        berth_wire_put_text(&out, "abc");
        memcpy(out.bytes + 16, &lengths[i], 4);
        turn();
        (void)berth_wire_get_text(&in);
        assert_int_equal(in.bad, i != 0);
    }
    berth_wire_begin(&out, BERTH_WIRE_DONE, 1);
    berth_wire_put_u32(&out, BERTH_CODE_COUNT);
    turn();
    berth_wire_get_err(&in, &err);
    assert_true(in.bad);
    berth_wire_begin(&out, BERTH_WIRE_DONE, 1);
    berth_wire_put_u32(&out, 8);
    turn();
    assert_int_equal(berth_wire_get_u32(&in, 7), 0);
    assert_true(in.bad);
    berth_wire_begin(&out, BERTH_WIRE_DONE, 1);
    berth_wire_put_u32(&out, 0);
    turn();
    assert_int_equal(berth_wire_get_fd(&in), -1); /* none came */
    assert_true(in.bad);
}

/* One tensor with the given fields; is it taken? */
static bool takes(uint32_t dtype, uint32_t rank, const int64_t *dims, uint64_t bytes,
                  size_t inside)
{
    struct berth_wire_tensor tensor;
    berth_wire_begin(&out, BERTH_WIRE_ANSWER, 1);
    berth_wire_put_text(&out, "T");
    berth_wire_put_u32(&out, dtype);
    berth_wire_put_u32(&out, rank);
    for (uint32_t i = 0; i < rank && i < 16; i++) {
        berth_wire_put_u64(&out, (uint64_t)dims[i]);
    }
    berth_wire_put_u64(&out, bytes);
    berth_wire_put_u32(&out, 0);
    for (size_t i = 0; i < inside; i += 4) {
        berth_wire_put_u32(&out, 1);
    }
    turn();
    berth_wire_get_tensor(&in, &tensor);
    return berth_wire_whole(&in);
}

static void tensors_must_fit_themselves(void **state)
{
    static const int64_t dims[16] = {2, 3, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
    static const int64_t wild[4] = {INT64_MAX, INT64_MAX, 4, 4};
    static const int64_t negative[1] = {-1};
    assert_true(takes(BERTH_DTYPE_FP32, 2, dims, 24, 24));
    assert_true(takes(BERTH_DTYPE_FP32, 8, dims, 24, 24));
    assert_false(takes(BERTH_DTYPE_FP32, 9, dims, 24, 24));
    assert_false(takes(BERTH_DTYPE_NONE, 2, dims, 24, 24));
    assert_false(takes(BERTH_DTYPE_BF16 + 1, 2, dims, 24, 24));
    assert_false(takes(BERTH_DTYPE_FP32, 2, dims, 20, 20));
    assert_false(takes(BERTH_DTYPE_FP32, 2, dims, 24, 20));
    assert_false(takes(BERTH_DTYPE_FP32, 2, dims, 28, 28));
    assert_true(takes(BERTH_DTYPE_BYTES, 2, dims, 20, 20));
    assert_false(takes(BERTH_DTYPE_BYTES, 2, dims, UINT64_MAX, 20));
    assert_false(takes(BERTH_DTYPE_FP32, 2, wild, 24, 24));
    assert_false(takes(BERTH_DTYPE_FP32, 1, negative, 4, 4));
}

static void what_does_not_fit_is_not_sent(void **state)
{
    static char text[BERTH_WIRE_BYTES_MAX + 1];
    memset(text, 'x', sizeof(text) - 1);
    berth_wire_begin(&out, BERTH_WIRE_ROW, 1);
    berth_wire_put_text(&out, text);
    assert_true(out.full);
    text[BERTH_WIRE_BYTES_MAX - 16 - 4 - 1] = '\0'; /* the largest that does */
    berth_wire_begin(&out, BERTH_WIRE_ROW, 1);
    berth_wire_put_text(&out, text);
    assert_false(out.full);
    assert_int_equal(out.length, BERTH_WIRE_BYTES_MAX);
    berth_wire_put_u32(&out, 1);
    assert_true(out.full);
    berth_wire_begin(&out, BERTH_WIRE_ROW, 1);
    for (int i = 0; i <= BERTH_WIRE_FDS_MAX; i++) {
        assert_false(out.full);
        berth_wire_put_fd(&out, 1000 + i);
    }
    assert_true(out.full);
    assert_int_equal(out.fd_count, BERTH_WIRE_FDS_MAX);
}

static struct berth_request *make_request(struct berth_slabs *slabs)
{
    static const char *wanted[] = {"A", "B"};
    static struct berth_param params[] = {
        {.name = "b", .kind = BERTH_PARAM_BOOL, .value.boolean = true},
        {.name = "i", .kind = BERTH_PARAM_INT, .value.integer = -5},
        {.name = "r", .kind = BERTH_PARAM_REAL, .value.real = 0.25},
        {.name = "s", .kind = BERTH_PARAM_STRING, .value.string = "text"}};
    struct berth_err err = {0};
    struct berth_request *request = berth_request_create(slabs, 0);
    assert_non_null(request);
    request->inputs = berth_arena_alloc(&request->arena, 3 * sizeof(*request->inputs));
    static const size_t bytes[3] = {64, 100000, 0};
    static const char *const names[3] = {"SMALL", "LARGE", "EMPTY"};
    for (size_t i = 0; i < 3; i++) {
        struct berth_tensor *input = &request->inputs[i];
        *input = (struct berth_tensor){.name = names[i], .dtype = BERTH_DTYPE_UINT8, .rank = 1,
                                       .dims = {(int64_t)bytes[i]}};
        if (bytes[i] > 0) {
            assert_int_equal(berth_request_take(request, bytes[i], &input->range, &err), BERTH_OK);
            memset(berth_slabs_pointer(slabs, &input->range), (int)i + 1, bytes[i]);
        }
    }
    request->input_count = 3;
    request->outputs_wanted = wanted;
    request->output_wanted_count = 2;
    request->params = (struct berth_params){.items = params, .count = 4};
    request->batch_rows = 3;
    return request;
}

static void a_request_crosses(void **state)
{
    struct berth_slabs *here = make_slabs(), *there = make_slabs();
    struct berth_request *request = make_request(here), *got = NULL;
    struct berth_err err = {0};
    int ends[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
    berth_wire_begin(&out, BERTH_WIRE_ROW, 1);
    berth_wire_put_request(&out, request);
    assert_false(out.full);
    assert_int_equal(out.fd_count, 1);
    assert_int_equal(berth_wire_receive(ends[1], &in, false), BERTH_WIRE_AGAIN);
    assert_int_equal(berth_wire_send(ends[0], &out, false), BERTH_WIRE_OK);
    assert_int_equal(berth_wire_receive(ends[1], &in, false), BERTH_WIRE_OK);
    assert_int_equal(berth_wire_get_request(&in, there, &got, &err), BERTH_OK);
    assert_true(berth_wire_whole(&in));
    berth_wire_close(&in);
    assert_int_equal(got->input_count, 3);
    for (size_t i = 0; i < 3; i++) {
        assert_string_equal(got->inputs[i].name, request->inputs[i].name);
        assert_int_equal(got->inputs[i].range.length, request->inputs[i].range.length);
        if (got->inputs[i].range.length > 0) {
            assert_memory_equal(berth_slabs_pointer(there, &got->inputs[i].range),
                                berth_slabs_pointer(here, &request->inputs[i].range),
                                got->inputs[i].range.length);
        }
    }
    assert_int_equal(got->batch_rows, 3);
    assert_true(berth_request_wants(got, "B"));
    assert_false(berth_request_wants(got, "C"));
    assert_true(berth_params_bool(&got->params, "b", false));
    assert_int_equal(berth_params_int(&got->params, "i", 0), -5);
    assert_true(berth_params_real(&got->params, "r", 0) == 0.25);
    assert_string_equal(berth_params_string(&got->params, "s", ""), "text");
    berth_request_release(got);
    berth_request_release(request);
    close(ends[0]);
    assert_int_equal(berth_wire_receive(ends[1], &in, true), BERTH_WIRE_ENDED);
    close(ends[1]);
    berth_slabs_destroy(here);
    berth_slabs_destroy(there);
    assert_int_equal(berth_mem_bytes_live(), 0);
}

/* Cut anywhere, or with any of its allocations failing: an error, and nothing left over. */
static void a_request_is_cut_or_has_no_memory(void **state)
{
    struct berth_slabs *slabs = make_slabs();
    struct berth_request *request = make_request(slabs), *got = NULL;
    struct berth_err err = {0};
    berth_wire_begin(&out, BERTH_WIRE_ROW, 1);
    berth_wire_put_request(&out, request);
    for (size_t length = 16; length < out.length; length++) {
        turn();
        assert_true(berth_wire_open(&in, length));
        assert_int_not_equal(berth_wire_get_request(&in, slabs, &got, &err), BERTH_OK);
    }
    enum berth_code code = BERTH_UNAVAILABLE;
    for (uint64_t n = 1; code != BERTH_OK; n++) {
        turn();
        berth_mem_fail_at(n, false);
        code = berth_wire_get_request(&in, slabs, &got, &err);
        berth_mem_fail_at(0, false);
        assert_true(berth_wire_whole(&in)); /* the sender did nothing wrong */
    }
    berth_request_release(got);
    berth_request_release(request);
    struct berth_slabs_stats stats;
    berth_slabs_stats(slabs, &stats);
    assert_int_equal(stats.bytes_out, 0);
    berth_slabs_destroy(slabs);
    assert_int_equal(berth_mem_bytes_live(), 0);
}

static void only_shared_memory_is_read(void **state)
{
    struct berth_err err = {0};
    char to[100];
    struct berth_wire_tensor tensor = {.like.name = "T", .bytes = 100};
    tensor.fd = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    assert_int_equal(berth_wire_read_tensor(&tensor, to, &err), BERTH_UNAVAILABLE);
    close(tensor.fd);
    tensor.fd = memfd_create("t", MFD_CLOEXEC);
    assert_int_equal(ftruncate(tensor.fd, 150), 0);
    assert_int_equal(berth_wire_read_tensor(&tensor, to, &err), BERTH_OK);
    tensor.offset = 50;
    assert_int_equal(berth_wire_read_tensor(&tensor, to, &err), BERTH_OK);
    tensor.offset = 51;
    assert_int_equal(berth_wire_read_tensor(&tensor, to, &err), BERTH_UNAVAILABLE);
    close(tensor.fd);
}

/* A message without bytes reads as the end, and what came with it is not kept. */
static void an_empty_message_leaves_no_descriptor(void **state)
{
    int ends[2];
    union {
        char bytes[CMSG_SPACE(sizeof(int))];
        struct cmsghdr align;
    } control = {{0}};
    struct msghdr head = {.msg_control = control.bytes, .msg_controllen = sizeof(control.bytes)};
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
    int fd = memfd_create("t", MFD_CLOEXEC); /* the next one has the next number */
    struct cmsghdr *item = CMSG_FIRSTHDR(&head);
    item->cmsg_level = SOL_SOCKET;
    item->cmsg_type = SCM_RIGHTS;
    item->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(item), &fd, sizeof(fd));
    assert_int_equal(sendmsg(ends[0], &head, 0), 0);
    assert_int_equal(berth_wire_receive(ends[1], &in, true), BERTH_WIRE_ENDED);
    assert_int_equal(in.fd_count, 0);
    int next = dup(fd);
    assert_int_equal(next, fd + 1);
    close(next);
    close(fd);
    close(ends[0]);
    close(ends[1]);
}

/* The kernel's limit of descriptors on their way, for a user without privileges: told apart from a
 * full socket, since this one is writable all the while. */
static void too_many_descriptors_are_for_later(void **state)
{
    int status = 0;
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        int ends[2];
        struct rlimit limit = {.rlim_cur = 16, .rlim_max = 16};
        enum berth_wire_result result = BERTH_WIRE_OK;
        if (socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends) != 0 ||
            (geteuid() == 0 && setresuid(65534, 65534, 65534) != 0) ||
            setrlimit(RLIMIT_NOFILE, &limit) != 0) {
            _exit(77);
        }
        for (int i = 0; i < 40 && result == BERTH_WIRE_OK; i++) {
            berth_wire_begin(&out, BERTH_WIRE_ANSWER, 1);
            berth_wire_put_fd(&out, ends[1]);
            result = berth_wire_send(ends[0], &out, false);
        }
        struct pollfd room = {.fd = ends[0], .events = POLLOUT};
        _exit(result == BERTH_WIRE_LATER && poll(&room, 1, 0) == 1 ? 0 : 1);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    if (WEXITSTATUS(status) == 77) {
        skip();
    }
    assert_int_equal(WEXITSTATUS(status), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fields_come_as_they_were_put),
        cmocka_unit_test(heads_are_judged),
        cmocka_unit_test(bounds_turn_a_reader_bad),
        cmocka_unit_test(tensors_must_fit_themselves),
        cmocka_unit_test(what_does_not_fit_is_not_sent),
        cmocka_unit_test(a_request_crosses),
        cmocka_unit_test(a_request_is_cut_or_has_no_memory),
        cmocka_unit_test(only_shared_memory_is_read),
        cmocka_unit_test(an_empty_message_leaves_no_descriptor),
        cmocka_unit_test(too_many_descriptors_are_for_later),
    };
    return cmocka_run_group_tests_name("worker_protocol", tests, NULL, NULL);
}
