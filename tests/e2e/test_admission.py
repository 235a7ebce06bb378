"""What is refused before its body, what a hang-up stops, how the server ends."""

import concurrent.futures
import hashlib
import json
import os
import re
import signal
import time

import pytest

from conftest import IDENTITY, PATIENCE_S, add_model

BODY = json.dumps({"inputs": [{"name": "INPUT0", "shape": [1, 2], "datatype": "FP32", "data": [1, 2]}]}).encode()


def head(path="/v2/models/identity/infer", length=len(BODY), extra=""):
    return (f"POST {path} HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n{extra}\r\n").encode()


def asking(server, path, body=BODY):
    """A connection whose request is under way."""
    sock = server.connect()
    sock.sendall(head(path, len(body)) + body)
    return sock


def read_head(sock):
    data = b""
    while b"\r\n\r\n" not in data:
        chunk = sock.recv(4096)
        if not chunk:
            break
        data += chunk
    return data


@pytest.fixture(scope="module")
def slow_models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("slow")
    add_model(folder, "identity", IDENTITY)
    one = IDENTITY.replace("max_batch_size: 32", "max_batch_size: 1").replace("dynamic_batching {}", "")
    add_model(folder, "bounded", one)
    add_model(folder, "short", one + "dynamic_batching { default_queue_policy { max_queue_size: 1 } }\n")
    add_model(folder, "slow", one + 'parameters { key: "sleep_ms" value { string_value: "5000" } }\n')
    # Its answer comes too late for every test: what ends before did not wait for it.
    add_model(folder, "stuck", one + 'parameters { key: "sleep_ms" value { string_value: "600000" } }\n')
    add_model(folder, "failing", one + 'parameters { key: "fail_load" value { string_value: "no weights" } }\n')
    return folder


def test_413_before_the_body(slow_models, serve):
    server = serve(slow_models, "--http-body-bytes-max", "1K")
    with server.connect() as sock:
        sock.sendall(head(length=10**9))
        answer = read_head(sock)
    assert answer.startswith(b"HTTP/1.1 413"), answer


def test_413_reaches_a_client_that_sends_everything_first(slow_models, serve):
    server = serve(slow_models, "--http-body-bytes-max", "1M")
    status = server.call("POST", "/v2/models/identity/infer", bytes(20 << 20))[0]
    assert status == 413


def test_404_before_the_body(null_server):
    with null_server.connect() as sock:
        sock.sendall(head("/v2/models/nope/infer", 10**6))
        assert read_head(sock).startswith(b"HTTP/1.1 404")


def test_100_continue_only_when_admitted(null_server):
    with null_server.connect() as sock:
        sock.sendall(head(extra="Expect: 100-continue\r\n"))
        assert read_head(sock).startswith(b"HTTP/1.1 100")
        sock.sendall(BODY)
        assert b"200 OK" in read_head(sock)
    with null_server.connect() as sock:
        sock.sendall(head("/v2/models/nope/infer", extra="Expect: 100-continue\r\n"))
        assert read_head(sock).startswith(b"HTTP/1.1 404")


def test_full_queue_is_refused_at_once_with_retry_after(slow_models, serve):
    server = serve(slow_models, "--model-queue-max", "2", "--cpu-workers", "1")
    path = "/v2/models/bounded/infer"
    running = asking(server, path, BODY[:-1] + b', "parameters": {"null_sleep_ms": 600000}}')
    server.wait_metric("berth_running_requests", 1)
    queued = [asking(server, path), asking(server, path)]
    server.wait_metric("berth_queued_requests", 2)
    with concurrent.futures.ThreadPoolExecutor(9) as pool:
        answers = list(pool.map(lambda _: server.call("POST", path, BODY), range(9)))
    for status, headers, _ in answers:
        assert status == 429 and int(headers["Retry-After"]) >= 1 and headers["x-should-retry"] == "true"
    running.close()
    for sock in queued:
        with sock:
            assert read_head(sock).startswith(b"HTTP/1.1 200")
    assert server.call("POST", path, BODY)[0] == 200


def test_a_queue_of_the_configs_size_is_refused_before_the_body(slow_models, serve):
    server = serve(slow_models, "--cpu-workers", "1")
    path = "/v2/models/short/infer"
    with asking(server, path, BODY[:-1] + b', "parameters": {"null_sleep_ms": 600000}}'):
        server.wait_metric("berth_running_requests", 1)
        with asking(server, path):
            server.wait_metric("berth_queued_requests", 1)
            answer, t_end = b"", time.monotonic() + PATIENCE_S
            while not answer and time.monotonic() < t_end:  # the head's judge may be a turn behind that figure
                with server.connect() as sock:
                    sock.settimeout(1)
                    sock.sendall(head(path, 10**6))  # and no body
                    try:
                        answer = read_head(sock)
                    except TimeoutError:
                        pass
    assert answer.startswith(b"HTTP/1.1 503") and b"Retry-After: " in answer and b"x-should-retry: true" in answer
    assert server.metric("nv_inference_request_failure", 'model="short",reason="REJECTED"') == 1


def test_a_stopping_server_asks_to_come_again(slow_models, serve):
    server = serve(slow_models, "--drain-timeout", "1ms")
    with asking(server, "/v2/models/stuck/infer") as running:
        server.wait_metric("berth_accepted_requests_total", 1)
        server.process.send_signal(signal.SIGTERM)
        answer = read_head(running)
    assert answer.startswith(b"HTTP/1.1 503")
    assert b"Retry-After: 1\r\n" in answer and b"x-should-retry: true\r\n" in answer
    assert server.process.wait(PATIENCE_S) == 0
    assert re.search(r' WARN sched msg="drain" unanswered=1\n', server.logged())


def test_a_model_that_cannot_load_is_503_with_its_reason(slow_models, serve):
    server = serve(slow_models)
    status, headers, text = server.call("POST", "/v2/models/failing/infer", BODY)
    assert status in (500, 503) and b"no weights" in text
    assert server.call("POST", "/v2/models/identity/infer", BODY)[0] == 200


def test_deadline(slow_models, serve):
    server = serve(slow_models)
    assert server.call("POST", "/v2/models/stuck/infer", BODY, {"Berth-Timeout-Ms": "100"})[0] == 503
    assert server.call("POST", "/v2/models/stuck/infer", BODY, {"Berth-Timeout-Ms": "x"})[0] == 400


def test_hang_up_drops_queued_and_running_work(slow_models, serve):
    server = serve(slow_models, "--cpu-workers", "1")
    socks = [asking(server, "/v2/models/stuck/infer") for _ in range(6)]
    server.wait_metric("berth_running_requests", 1)
    server.wait_metric("berth_queued_requests", 5)
    assert server.metric("berth_cancelled_requests_total") == 0
    for sock in socks:
        sock.close()
    server.wait_metric("berth_cancelled_requests_total", 6)
    server.wait_metric("berth_running_requests", 0)
    server.wait_metric("berth_queued_requests", 0)
    server.wait_metric("berth_wasted_requests_total", 1)


def test_budget_pauses_reading_not_serving(slow_models, serve):
    server = serve(slow_models, "--bytes-budget", "64M", "--http-admit-timeout", "60s")
    values = bytes(16 << 20)
    header = json.dumps({"inputs": [{"name": "INPUT0", "shape": [1, len(values) // 4], "datatype": "FP32",
                                     "parameters": {"binary_data_size": len(values)}}],
                         "outputs": [{"name": "OUTPUT0", "parameters": {"binary_data": True}}]}).encode()
    extra = {"Inference-Header-Content-Length": str(len(header))}
    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        uploads = [pool.submit(server.call, "POST", "/v2/models/identity/infer", header + values, extra)
                   for _ in range(12)]
        for _ in range(20):
            assert server.get("/v2/health/live")[0] == 200
        statuses = [upload.result()[0] for upload in uploads]
    assert set(statuses) == {200}, statuses
    assert server.metric("berth_slab_bytes_peak") <= 64 << 20
    server.wait_metric("berth_slab_bytes", 0)


def test_keys(slow_models, tmp_path, serve):
    keys = tmp_path / "keys"
    keys.write_text("# keys\nsha256:%s alice\n" % hashlib.sha256(b"secret").hexdigest())
    server = serve(slow_models, "--keys-file", str(keys))
    assert server.get("/health")[0] == 200
    assert server.get("/v2/models/identity")[0] == 401
    assert server.get("/v1/models", {"Authorization": "Bearer nope"})[0] == 401
    body = json.loads(server.get("/v1/models", {"Authorization": "Bearer nope"})[2])
    assert body["error"]["code"] == "invalid_api_key"
    assert server.get("/v2/models/identity", {"Authorization": "Bearer secret"})[0] == 200


def test_sigterm_drains(slow_models, serve):
    server = serve(slow_models, "--drain-delay", "4s")
    with asking(server, "/v2/models/slow/infer") as running:  # longer than that
        server.wait_metric("berth_accepted_requests_total", 1)
        server.process.send_signal(signal.SIGTERM)
        server.wait_metric("berth_ready", 0)
        assert server.get("/v2/health/ready")[0] == 400
        assert server.get("/health")[0] == 503
        assert server.call("POST", "/v2/models/identity/infer", BODY)[0] == 200
        server.wait_closed()
        assert read_head(running).startswith(b"HTTP/1.1 200")
    assert server.process.wait(PATIENCE_S) == 0


def test_second_signal_ends_at_once(slow_models, serve):
    server = serve(slow_models, "--drain-delay", "600s")
    server.process.send_signal(signal.SIGTERM)
    server.wait_metric("berth_ready", 0)
    server.wait_no_echo()
    assert server.alive()
    server.stop(expect=1)


@pytest.mark.parametrize("signals", [[signal.SIGTERM, signal.SIGTERM], [signal.SIGINT, signal.SIGTERM],
                                     [signal.SIGINT] * 3])
def test_signals_at_once_are_one_stop(slow_models, serve, signals):
    server = serve(slow_models)
    with asking(server, "/v2/models/slow/infer") as running:
        server.wait_metric("berth_accepted_requests_total", 1)
        server.process.send_signal(signal.SIGSTOP)  # else a busy machine could take a second between them
        assert os.WIFSTOPPED(os.waitpid(server.pid, os.WUNTRACED)[1])
        for number in signals:
            server.process.send_signal(number)
        server.process.send_signal(signal.SIGCONT)
        assert read_head(running).startswith(b"HTTP/1.1 200")
    assert server.process.wait(PATIENCE_S) == 0
    assert "second signal" not in server.logged()


SMUGGLING = [
    b"POST /v2/models/identity/infer HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    b"POST /v2 HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
    b"POST /v2 HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\nhello",
    b"POST /v2 HTTP/1.1\r\nHost: a\r\nContent-Length: +5\r\n\r\nhello",
    b"POST /v2 HTTP/1.1\r\nHost: a\r\nContent-Length : 5\r\n\r\nhello",
    b"POST /v2 HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    b"POST /v2 HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
    b"POST /v2 HTTP/1.1\r\nHost: a\r\nX: a\r\n b\r\n\r\n",
    b"GET /v2 HTTP/1.1\nHost: a\n\n",
    b"GET /v2 HTTP/1.1\r\nHost: a\r\nX: a\rb\r\n\r\n",
    b"GET /v2 HTTP/1.1\r\nHost: a\r\nX\x00: b\r\n\r\n",
    b"GET /v2 HTTP/1.1\r\n\r\n",
    b"GET  /v2 HTTP/1.1\r\nHost: a\r\n\r\n",
    b"GET /v2%00 HTTP/1.1\r\nHost: a\r\n\r\n",
]


@pytest.mark.parametrize("request_bytes", SMUGGLING, ids=range(len(SMUGGLING)))
def test_smuggling_shapes_are_refused(null_server, request_bytes):
    answer = null_server.raw(request_bytes + b"GET /v2/health/live HTTP/1.1\r\nHost: a\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 400"), answer
    assert answer.count(b"HTTP/1.1 ") == 1
