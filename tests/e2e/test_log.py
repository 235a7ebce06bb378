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
    refused = [int(match[1]) for line in got if (match := re.search(r" api req=(\d+) ", line))]
    dropped = sum(int(count) for line in got for count in re.findall(r" dropped=(\d+)\n$", line))
    assert refused == sorted(refused)
    assert 0 < len(refused) < REFUSED and len(refused) + dropped >= REFUSED
    assert all(re.match(r"\d{4}-\d\d-\d\dT\S+Z (ERROR|WARN|INFO|DEBUG) ", line) for line in got)
    assert 'serve msg="stopped"' in got[-1]


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
