"""Standard error that nobody reads, or reads late: the server serves on, and says what it dropped."""

import http.client
import json
import os
import re
import signal
import socket
import threading

import pytest

from conftest import PATIENCE_S, wait_until

REFUSED = 2000  # each causes a line


class Stuck:
    """A full pipe (or stream socket) as standard error; write_end is the server's."""

    def __init__(self, kind):
        if kind == "pipe":
            self.read_end, self.write_end = os.pipe()
        else:
            ends = socket.socketpair()
            self.read_end, self.write_end = ends[0].detach(), ends[1].detach()
        os.set_blocking(self.write_end, False)
        self.filler = 0
        try:
            while True:
                self.filler += os.write(self.write_end, b"." * 512)
        except BlockingIOError:
            pass
        os.set_blocking(self.write_end, True)

    def read_into(self, lines):
        """The lines behind the filler, until all writers have closed it."""
        with os.fdopen(os.dup(self.read_end), "rb") as file:
            assert file.read(self.filler) == b"." * self.filler
            lines.extend(line.decode() for line in file)


@pytest.fixture(params=["pipe", "socket"])
def stuck(request):
    stuck = Stuck(request.param)
    yield stuck
    os.close(stuck.read_end)


def infer(connection, model="identity", values=2, wanted=200):
    body = json.dumps({"inputs": [{"name": "INPUT0", "shape": [1, values], "datatype": "FP32",
                                   "data": [0.5, -1.0]}]})
    connection.request("POST", f"/v2/models/{model}/infer", body)
    answer = connection.getresponse()
    assert (answer.status, answer.getheader("Content-Type")) == (wanted, "application/json")
    return json.loads(answer.read())


@pytest.mark.parametrize("worker", ["thread", "process"])
def test_nobody_reads_standard_error(serve, null_models, stuck, worker):
    server = serve(null_models, "--log-level", "debug", f"--cpu-worker={worker}", "--net-threads", "2",
                   stderr=stuck.write_end)
    os.close(stuck.write_end)
    connection = http.client.HTTPConnection(server.address, timeout=PATIENCE_S)
    for _ in range(REFUSED):
        infer(connection, values=3, wanted=500)  # has two
    assert server.get("/v2/health/ready")[0] == 200
    assert infer(connection)["outputs"][0]["data"] == [0.5, -1.0]

    # Now somebody reads: what there was room for, in order, and how many there were beside it.
    got = []
    reader = threading.Thread(target=stuck.read_into, args=[got])
    reader.start()
    wait_until(lambda: len(got) >= REFUSED // 4, lambda: f"{len(got)} lines")
    server.stop()
    reader.join(PATIENCE_S)
    assert not reader.is_alive()
    refused = [int(match[1]) for line in got if (match := re.search(r" INFO api req=(\d+) ", line))]
    dropped = sum(int(count) for line in got for count in re.findall(r" dropped=(\d+)\n$", line))
    assert refused == sorted(refused)
    assert 0 < len(refused) < REFUSED and len(refused) + dropped >= REFUSED
    assert all(re.match(r"\d{4}-\d\d-\d\dT\S+Z (ERROR|WARN|INFO|DEBUG) ", line) for line in got)
    assert 'serve msg="stopped"' in got[-1]


def lines_of(server, pattern):
    return [line for line in server.logged().splitlines() if re.search(pattern, line)]


def test_each_answered_request_has_a_line_at_debug(serve, null_models):
    server = serve(null_models, "--log-level", "debug")
    body = json.dumps({"inputs": [{"name": "INPUT0", "shape": [1, 1], "datatype": "FP32", "data": [1]}]}).encode()
    asked = [
        ("POST", "/v2/models/identity/infer", body, "well-1", 200, "identity"),
        ("POST", "/v2/models/identity/infer", b"{}", "bad 2 msg=\"x\" \u00e9", 500, "identity"),
        ("POST", "/v2/models/nope/infer", body, "none-3", 404, "-"),
        ("GET", "/v2/nowhere/%0x", None, "none-4", 400, "-"),
        ("GET", "/no/such/path%22%20status=200", None, "none-5", 404, "-"),
        ("PUT", "/v2/models/identity/infer", b"", "none-6", 405, "-"),
        ("GET", "/health", None, None, 200, "-"),
    ]
    for method, path, sent, request_id, wanted, _ in asked:
        connection = http.client.HTTPConnection(server.address, timeout=PATIENCE_S)
        connection.request(method, path, sent, {"X-Request-Id": request_id.encode()} if request_id else {})
        answer = connection.getresponse()
        answer.read()
        connection.close()
        assert answer.status == wanted
    wait_until(lambda: len(lines_of(server, ' msg="answered" ')) == len(asked) - 1)
    lines = lines_of(server, ' msg="answered" ')
    del asked[3]  # what is no request has no line of its own
    for line, (method, path, _, request_id, status, model) in zip(lines, asked):
        match = re.fullmatch(r"\S+ DEBUG api (req=\d+ )?msg=\"answered\" method=(\w+) path=(\S+|\".*\") model=(\S+) "
                             r"status=(\d+) bytes=(\d+) timing=(\S+|\"[^\"]*\") x_request_id=(.*)", line)
        assert match, line
        assert (match[2], match[4], match[5]) == (method, model, str(status)), line
        assert match[3] == path or "%" in path, line
        assert int(match[6]) > 100 and "total;dur=" in match[7], line
        assert match[8] == (request_id or "-") or '\\"x\\"' in match[8], line
    assert {"receive", "queue", "run"} <= set(re.findall(r"(\w+);dur=", lines[0])) and " req=" in lines[0]


def test_who_left_has_a_line_too(serve, null_models):
    server = serve(null_models, "--log-level", "debug")
    with server.connect() as sock:
        sock.sendall(b"POST /v2/models/sleepy/infer HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n"
                     b"Expect: 100-continue\r\n\r\n")
        assert sock.recv(100).startswith(b"HTTP/1.1 100 ")  # so its head was read
    wait_until(lambda: lines_of(server, ' DEBUG api msg="not answered" method=POST path=/v2/models/sleepy/infer '
                                        "model=sleepy status=0 bytes="))


def test_at_info_a_good_request_has_no_line(serve, null_models):
    server = serve(null_models)
    connection = http.client.HTTPConnection(server.address, timeout=PATIENCE_S)
    infer(connection)
    infer(connection, values=3, wanted=500)  # has two
    wait_until(lambda: lines_of(server, " api "))
    assert len(lines_of(server, " api ")) == 1
    assert lines_of(server, r' INFO api req=\d+ msg=".*" code=\w+ field=\w+ model=identity at=')


@pytest.mark.parametrize("signals", [1, 2])
def test_the_end_does_not_wait_for_a_reader(serve, null_models, stuck, signals):
    server = serve(null_models, "--drain-delay", "600s" if signals == 2 else "0s", stderr=stuck.write_end)
    os.close(stuck.write_end)
    if signals == 2:
        server.process.send_signal(signal.SIGTERM)
        server.wait_metric("berth_ready", 0)
        server.wait_no_echo()
    server.stop(expect=signals - 1)


def test_a_reader_that_leaves(serve, null_models):
    read_end, write_end = os.pipe()
    server = serve(null_models, stderr=write_end)
    os.close(write_end)
    os.close(read_end)
    connection = http.client.HTTPConnection(server.address, timeout=PATIENCE_S)
    for _ in range(20):
        infer(connection, values=3, wanted=500)
    assert infer(connection)["outputs"][0]["data"] == [0.5, -1.0]
