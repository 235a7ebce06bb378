"""Things that happen at the same time, or at the worst time: deadlines, hang-ups, loads, changes of the
repository, signals, full disks, no descriptors. After each: every request got one whole answer or a closed
connection, nothing is left over, and the server still serves. BERTH_SOAK=1 runs the long forms."""

import gzip
import json
import os
import pathlib
import random
import resource
import signal
import socket
import struct
import subprocess
import threading
import time
import zlib

import pytest

from conftest import IDENTITY, PATIENCE_S, SOAK, Berth, add_model, wait_until

BODY = json.dumps({"inputs": [{"name": "INPUT0", "shape": [1, 2], "datatype": "FP32", "data": [1, 2]}]}).encode()
SEED = 1000 * (int(os.environ.get("BERTH_TEST_SEED", "1")) - 1)  # added to those below
PLAIN = IDENTITY.replace("dynamic_batching {}", "")


def parameter(key, value):
    return f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}\n'


def post(path, body=BODY, extra="", length=None):
    length = len(body) if length is None else length
    return f"POST {path} HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n{extra}\r\n".encode() + body


def infer(model="identity", extra="", body=BODY):
    return post(f"/v2/models/{model}/infer", body, extra)


def answers_of(stream):
    """[(status, body)] of whole answers, and whether the stream ends with one."""
    answers = []
    while stream:
        head, mark, rest = stream.partition(b"\r\n\r\n")
        if not mark:
            return answers, False
        lines = head.split(b"\r\n")
        assert lines[0].startswith(b"HTTP/1.1 "), lines[0]
        status = int(lines[0].split()[1])
        fields = dict(line.lower().split(b": ", 1) for line in lines[1:])
        if status < 200:
            stream = rest
            continue
        length = int(fields[b"content-length"])
        if len(rest) < length:
            return answers, False
        answers.append((status, rest[:length]))
        stream = rest[length:]
    return answers, True


def ask(server, data, timeout=PATIENCE_S):
    """Status of one request on a connection of its own; None: the connection was closed instead."""
    with server.connect(timeout) as sock:
        stream = b""
        try:
            sock.sendall(data)
            while True:
                answers, _ = answers_of(stream)
                if answers:
                    return answers[0][0]
                chunk = sock.recv(65536)
                if not chunk:
                    break
                stream += chunk
        except ConnectionError:
            pass
        assert stream == b"", f"half an answer: {stream[:200]}"
        return None


def in_threads(count, work):
    """work(index) in threads; the first failure is raised here."""
    failures = []

    def guarded(index):
        try:
            work(index)
        except BaseException as failure:  # the main thread raises it
            failures.append(failure)

    threads = [threading.Thread(target=guarded, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


def serves(server, model="identity"):
    assert server.alive()
    status, _, text = server.call("POST", f"/v2/models/{model}/infer", BODY)
    assert status == 200 and json.loads(text)["outputs"][0]["data"] == [1.0, 2.0], (status, text)


def zombies(server):
    with open(f"/proc/{server.pid}/task/{server.pid}/children", encoding="ascii") as file:
        children = file.read().split()
    states = []
    for child in children:
        try:
            states.append(pathlib.Path(f"/proc/{child}/stat").read_text().rsplit(")", 1)[1].split()[0])
        except OSError:
            pass
    return states.count("Z")


def settled(server, descriptors=None):
    server.wait_metric("berth_http_connections", 1)
    for name in ("berth_running_requests", "berth_queued_requests", "berth_slab_bytes", "berth_http_paused"):
        server.wait_metric(name, 0)
    wait_until(lambda: zombies(server) == 0 and (descriptors is None or server.descriptors() <= descriptors + 2),
               lambda: f"{server.descriptors()} descriptors, {zombies(server)} zombies")


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("races")
    add_model(folder, "identity", IDENTITY)
    add_model(folder, "nap", PLAIN + parameter("sleep_ms", 6))
    add_model(folder, "steps", PLAIN + parameter("steps", 10) + parameter("step_ms", 1))
    add_model(folder, "ordered", IDENTITY.replace("{}", "{ preserve_ordering: true }") +
              parameter("sleep_ms", 2) + "instance_group [{ count: 2 kind: KIND_CPU }]\n")
    add_model(folder, "failrun", PLAIN + parameter("fail_run", "broken"))
    add_model(folder, "failload", PLAIN + parameter("fail_load", "no weights"))
    add_model(folder, "slowload", PLAIN + parameter("sleep_ms_load", 300))
    for i in range(6):
        add_model(folder, f"big{i}", PLAIN + parameter("bytes", 1000000) + parameter("sleep_ms_load", 5))
    return folder


@pytest.fixture(scope="module")
def server(models):
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    server = Berth(models, "--http-head-timeout", "2s", "--http-body-timeout", "2s", "--load-backoff", "100ms",
                   "--net-threads", "2")
    for model in ("identity", "nap", "steps", "ordered"):
        serves(server, model)
    yield server
    server.stop()


def test_deadlines_at_the_moment_of_the_answer(server):
    descriptors = server.descriptors()

    def work(index):
        rng = random.Random(SEED + index)
        for _ in range(400 if SOAK else 40):
            model, about = rng.choice([("nap", 7), ("steps", 11), ("ordered", 3), ("identity", 1)])
            timeout = max(1, about + rng.randrange(-2, 3))
            assert ask(server, infer(model, f"Berth-Timeout-Ms: {timeout}\r\n")) in (200, 429, 503, 504)

    in_threads(6, work)
    settled(server, descriptors)
    serves(server)


def test_hang_ups_at_random_times(server):
    descriptors = server.descriptors()

    def work(index):
        rng = random.Random(SEED + 100 + index)
        for _ in range(600 if SOAK else 60):
            model = rng.choice(["nap", "steps", "steps", "ordered", "identity", "failrun", "slowload"])
            sock = server.connect()
            sock.sendall(infer(model) * rng.choice([1, 1, 3]))
            time.sleep(rng.random() * 0.015)
            if rng.random() < 0.5:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            elif rng.random() < 0.3:
                sock.shutdown(socket.SHUT_WR)
            sock.close()

    in_threads(4, work)
    settled(server, descriptors)
    serves(server)


def test_loads_unloads_and_overrides_while_served(server):
    descriptors = server.descriptors()
    stop = threading.Event()
    override = json.dumps({"parameters": {"config": json.dumps({
        "backend": "null", "max_batch_size": 4,
        "input": [{"name": "INPUT0", "data_type": "TYPE_FP32", "dims": ["-1"]}],
        "output": [{"name": "OUTPUT0", "data_type": "TYPE_FP32", "dims": ["-1"]}]})}}).encode()

    def work(index):
        rng = random.Random(SEED + 200 + index)
        if index < 2:
            for _ in range(300 if SOAK else 40):
                model = rng.choice(["nap", "steps", "ordered", "big0", "slowload"])
                verb = rng.choice(["load", "load", "unload"])
                body = rng.choice([b"", b"", override if verb == "load" else b"{}"])
                status = ask(server, post(f"/v2/repository/models/{model}/{verb}", body))
                assert status in (200, 500, 503), status
                time.sleep(rng.random() * 0.01)
            stop.set()
            return
        while not stop.is_set():
            model = rng.choice(["nap", "steps", "ordered", "big0", "slowload"])
            extra = rng.choice(["", "", "Berth-Timeout-Ms: 20\r\n"])
            # 429: a machine that is busy would not make it within the 20 ms.
            assert ask(server, infer(model, extra)) in (200, 400, 404, 503, *([429] if extra else []))

    in_threads(5, work)
    for model in ("nap", "steps", "ordered", "big0", "slowload"):
        assert ask(server, post(f"/v2/repository/models/{model}/load", b"")) == 200
    settled(server, descriptors)
    serves(server)
    serves(server, "steps")


def test_a_wrong_override_spoils_no_model(server):
    ask(server, post("/v2/repository/models/big5/unload", b""))
    for config in ('{"backend": "null", "max_batch_size": "many"}', "{", '{"backend": "none such"}'):
        body = json.dumps({"parameters": {"config": config}}).encode()
        assert ask(server, post("/v2/repository/models/big5/load", body)) == 500
        assert ask(server, infer("big5")) == 200
        ask(server, post("/v2/repository/models/big5/unload", b""))


def test_eviction_under_traffic(models, serve):
    server = serve(models, "--device-bytes-max", "2500000")
    serves(server)
    descriptors = server.descriptors()
    seen = set()

    def work(index):
        rng = random.Random(SEED + 300 + index)
        for _ in range(300 if SOAK else 40):
            status = ask(server, infer(f"big{rng.randrange(6)}", "Berth-Timeout-Ms: 5000\r\n"))
            assert status in (200, 429, 503), status
            seen.add(status)
            assert server.metric("berth_model_bytes") <= 2500000

    in_threads(4, work)
    assert 200 in seen
    settled(server, descriptors)
    serves(server)


def test_failing_loads_do_not_stop_others(server):
    def work(index):
        for _ in range(20):
            if index == 0:
                assert ask(server, infer("failload")) in (500, 503)
            else:
                assert ask(server, infer("failrun")) in (500, 503)
                serves(server)

    in_threads(3, work)
    settled(server)
    serves(server)


def wait_status(server, data, status):
    seen = None

    def holds():
        nonlocal seen
        seen = ask(server, data)
        return seen == status

    wait_until(holds, lambda: f"it answers {seen}: {data[:200]}")


def wait_loading(server):
    """Until its first load has begun: its memory is reserved."""
    wait_until(lambda: server.metric("berth_model_bytes") > 0)


@pytest.mark.parametrize("mode", ["poll", "explicit", "demand"])
def test_a_repository_that_changes_under_the_server(tmp_path, serve, mode):
    for name in ("identity", "one", "two"):
        add_model(tmp_path, name, IDENTITY)
    flags = {"poll": ["--repository-poll", "20ms"], "explicit": ["--load-model", "*"], "demand": []}[mode]
    server = serve(tmp_path, "--model-control-mode", mode, "--load-backoff", "50ms", *flags)
    wait_status(server, infer(), 200)
    stop = threading.Event()

    def disturb():
        rng = random.Random(f"{mode} {SEED}")
        end = time.monotonic() + (20 if SOAK else 1.5)
        while time.monotonic() < end:
            name = rng.choice(["one", "two"])
            config = tmp_path / name / "config.pbtxt"
            kind = rng.randrange(6)
            if kind == 0:
                config.write_text(IDENTITY[:rng.randrange(len(IDENTITY))])  # half-written
            elif kind == 1:
                config.write_text(IDENTITY + f"# {rng.random()}\n")
            elif kind == 2:
                (tmp_path / name).rename(tmp_path / f"{name}x{rng.randrange(10**9)}")
                (tmp_path / name / "1").mkdir(parents=True)
                (tmp_path / name / "config.pbtxt").write_text(IDENTITY)
            elif kind == 3:
                (tmp_path / name / str(rng.randrange(1, 9))).mkdir(exist_ok=True)
            elif kind == 4:
                config.unlink(missing_ok=True)
            else:
                config.write_bytes(rng.randbytes(200))
            if mode != "poll":
                ask(server, post(f"/v2/repository/models/{name}/{rng.choice(['load', 'unload'])}", b""))
                ask(server, post("/v2/repository/index", b""))
            time.sleep(0.01)
        stop.set()

    def work(index):
        if index == 0:
            disturb()
            return
        while not stop.is_set():
            serves(server)
            assert ask(server, infer(["one", "two"][index - 1])) in (200, 400, 404, 500, 501, 503)

    in_threads(3, work)
    for name in ("one", "two"):
        (tmp_path / name / "1").mkdir(parents=True, exist_ok=True)
        (tmp_path / name / "config.pbtxt").write_text(IDENTITY + "# whole again\n")
        if mode != "poll":
            assert ask(server, post(f"/v2/repository/models/{name}/load", b"")) == 200
        wait_status(server, infer(name), 200)
    settled(server)
    serves(server)


@pytest.mark.parametrize("seed", range(20 if SOAK else 4))
def test_sigterm_under_load(models, serve, seed):
    rng = random.Random(SEED + seed)
    server = serve(models, "--drain-timeout", rng.choice(["1ms", "50ms", "10s"]), "--net-threads",
                   rng.choice(["1", "2"]))
    moment = time.monotonic() + rng.random() * 0.5

    def work(index):
        mine = random.Random(SEED + seed * 100 + index)
        while server.alive():
            model = mine.choice(["identity", "nap", "steps", "slowload", "big1", "ordered"])
            body = mine.choice([BODY, BODY, bytes(100000)])
            try:
                status = ask(server, infer(model, body=body))
            except (ConnectionRefusedError, ConnectionResetError):
                return  # it no longer listens, or stopped while we were connecting
            assert status in (None, 200, 400, 429, 500, 503), status
            if index == 0 and time.monotonic() > moment:
                server.process.send_signal(signal.SIGTERM)
                return

    in_threads(6, work)
    assert server.process.wait(PATIENCE_S) == 0


def test_sigterm_while_a_load_and_requests_take_longer_than_the_drain(tmp_path, serve):
    add_model(tmp_path, "long", PLAIN + parameter("sleep_ms", 600000))
    add_model(tmp_path, "longload", PLAIN + parameter("sleep_ms_load", 5000))
    server = serve(tmp_path, "--drain-timeout", "50ms")
    socks = []

    def send(data):
        socks.append(server.connect())
        socks[-1].sendall(data)

    send(post("/v2/repository/models/longload/load", b""))
    wait_loading(server)
    for model in ("long", "long", "longload"):
        send(infer(model))
    server.wait_metric("berth_accepted_requests_total", 3)
    server.process.send_signal(signal.SIGTERM)
    statuses = [int((sock.recv(4096).split() or [b"", b"0"])[1]) for sock in socks]
    assert statuses == [0, 503, 503, 503]  # the load's end is nobody's answer any more
    for sock in socks:
        sock.close()
    assert server.process.wait(PATIENCE_S) == 0


def test_a_second_signal_ends_a_long_load_too(tmp_path, serve):
    add_model(tmp_path, "longload", PLAIN + parameter("sleep_ms_load", 600000))
    server = serve(tmp_path, "--drain-timeout", "1ms")
    with server.connect() as sock:
        sock.sendall(post("/v2/repository/models/longload/load", b""))
        wait_loading(server)
        server.process.send_signal(signal.SIGTERM)
        server.wait_closed()
        server.wait_no_echo()
        assert server.alive()  # it waits for the load
        server.stop(expect=1)


@pytest.mark.parametrize("path", [
    "/", "/health", "/metrics", "/v2", "/v2/health/live", "/v2/models/identity", "/v2/models/identity/config",
    "/v2/models/identity/infer", "/v2/models/identity/versions/1/infer", "/v2/models/identity/versions/9/infer",
    "/v2/models/identity/versions/99999999999999999999/infer", "/v2/models/nope", "/v2/models/identity/stats",
    "/v2/models/stats", "/v2/repository/index", "/v2/repository/models/nope/load", "/v1/models", "/v1/models/identity",
    "/v1/audio/transcriptions", "/v1/audio/translations", "/" + "a" * 5000, "/v2/models/" + "%41" * 900,
    "/v2/models/%FF%FE", "/v2/../health", "//", "/v2/models//infer", "/v2/models/identity/infer?" + "q" * 9000])
def test_every_route_with_every_method(server, path):
    for method in ["GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "GETGETGET", "get"]:
        for extra in ["", "Content-Length: 2\r\n", "Transfer-Encoding: chunked\r\n",
                      "Content-Length: 2\r\nContent-Encoding: gzip\r\n", "Berth-Timeout-Ms: -1\r\n",
                      "Content-Type: multipart/form-data; boundary=\r\nContent-Length: 2\r\n"]:
            body = b"{}" if "Length: 2" in extra else b"2\r\n{}\r\n0\r\n\r\n" if "chunked" in extra else b""
            head = f"{method} {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n{extra}\r\n".encode()
            answer = server.raw(head + body)
            assert answer.startswith(b"HTTP/1.1 "), (method, path, extra, answer)
            head, _, rest = answer.partition(b"\r\n\r\n")
            length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
            assert len(rest) == (0 if method == "HEAD" else length), answer
            assert method not in ("GETGETGET", "get") or 400 <= int(answer.split()[1]) < 500
    settled(server)
    serves(server)


HEADERS = [
    "Content-Length: -1", "Content-Length: 99999999999999999999999", "Content-Length: 18446744073709551615",
    "Content-Length: 9223372036854775807", "Content-Length: 1e3", "Content-Length:", "Content-Length: 0x10",
    "Content-Length: 3, 3", "Transfer-Encoding: gzip", "Transfer-Encoding: chunked, chunked",
    "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked", "Expect: 200-ok", "Expect: 100-continue\r\nExpect: x",
    "Inference-Header-Content-Length: -5", "Inference-Header-Content-Length: 99999999999999999999",
    "Inference-Header-Content-Length: 18446744073709551615", "Inference-Header-Content-Length: 1",
    "Berth-Timeout-Ms: 99999999999999999999", "Berth-Timeout-Ms: 0", "Berth-Timeout-Ms:", "Berth-Timeout-Ms: 5 5",
    "X-Request-Id: " + "x" * 4000, "traceparent: \x01", "Authorization: Bearer", "Authorization: " + "y" * 9000,
    "Host: b", "Connection: upgrade\r\nUpgrade: h2c", "Upgrade: websocket", "Content-Encoding: br",
    "Content-Encoding: gzip, gzip", "Content-Encoding: gzip", "Range: bytes=0-1", "\xc3\xa9: 1", "A" * 40000 + ": 1",
    "\r\n".join(f"X{i}: 1" for i in range(200))]


@pytest.mark.parametrize("header", HEADERS, ids=range(len(HEADERS)))
def test_odd_headers(server, header):
    for target in ("/v2/models/identity/infer", "/v1/audio/transcriptions", "/v2/repository/index"):
        lengths = [""] if "Length" in header.split(":")[0] or "Transfer" in header else [f"Content-Length: {len(BODY)}\r\n"]
        for length in lengths:
            close = "" if header.startswith("Connection") else "Connection: close\r\n"
            data = f"POST {target} HTTP/1.1\r\nHost: a\r\n{close}{length}{header}\r\n\r\n".encode("latin-1") + BODY
            answer = server.raw(data, timeout=0.3)
            assert answer == b"" or answer.startswith(b"HTTP/1.1 "), answer
    settled(server)
    serves(server)


def test_a_request_cut_at_each_byte(server):
    data = infer(extra="Connection: close\r\n")
    chunked = (b"POST /v2/models/identity/infer HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n"
               b"Connection: close\r\n\r\n" + b"".join(b"%x;e=1\r\n%c\r\n" % (1, byte) for byte in BODY[:20]) +
               b"%x\r\n" % len(BODY[20:]) + BODY[20:] + b"\r\n0\r\nT: 1\r\n\r\n")
    for request in (data, chunked):
        for at in range(1, len(request), 1 if SOAK else 5):
            with server.connect() as sock:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                sock.sendall(request[:at])
                time.sleep(0.001)
                sock.sendall(request[at:])
                answer = b""
                while chunk := sock.recv(65536):
                    answer += chunk
            assert answer.startswith(b"HTTP/1.1 200"), (at, answer)
        with server.connect() as sock:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for i in range(len(request)):
                sock.sendall(request[i:i + 1])
            assert sock.recv(65536).startswith(b"HTTP/1.1 200")
    settled(server)
    serves(server)


CHUNKED = [
    b"-1\r\n", b"0x2\r\n{}\r\n", b"2 \r\n{}\r\n0\r\n\r\n", b"2\n{}\n0\n\n", b"ffffffffffffffff\r\n", b"fffffffffffffffff\r\n",
    b"8000000000000000\r\n", b"2\r\n{}0\r\n\r\n", b"2;" + b"e" * 9000 + b"\r\n{}\r\n", b"0\r\n" + b"T: x\r\n" * 2000,
    b"0\r\nContent-Length: 5\r\n\r\n", b"\r\n", b"g\r\n", b"00000000000000000000000000000002\r\n{}\r\n0\r\n\r\n"]


@pytest.mark.parametrize("body", CHUNKED, ids=range(len(CHUNKED)))
def test_chunked_tricks(server, body):
    head = b"POST /v2/repository/index HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
    answer = server.raw(head + body + b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n", timeout=0.3)
    assert answer == b"" or answer.startswith(b"HTTP/1.1 "), answer
    if answer.startswith(b"HTTP/1.1 400"):
        assert answer.count(b"HTTP/1.1 ") == 1
    settled(server)
    serves(server)


def test_gzip_bombs_and_broken_gzip(models, serve):
    server = serve(models, "--http-body-bytes-max", "8M", "--bytes-budget", "64M")
    pack = zlib.compressobj(9, zlib.DEFLATED, 31)
    bomb = b"".join(pack.compress(bytes(1 << 20)) for _ in range(256)) + pack.flush()
    extra = "Content-Encoding: gzip\r\n"
    for target in ("/v2/models/identity/infer", "/v1/audio/transcriptions", "/v2/repository/index"):
        assert ask(server, post(target, bomb, extra)) in (400, 404, 413)
    whole = gzip.compress(BODY)
    assert ask(server, infer(extra=extra, body=whole)) == 200
    for at in range(1, len(whole)):
        assert ask(server, infer(extra=extra, body=whole[:at])) in (400, 500), at
        broken = bytearray(whole)
        broken[at] ^= 0x40
        assert ask(server, infer(extra=extra, body=bytes(broken))) in (200, 400, 500), at
    assert ask(server, infer(extra=extra, body=whole + b"more")) in (200, 400)
    settled(server)
    serves(server)


def test_readers_that_are_slow_or_leave(models, serve):
    server = serve(models, "--http-write-timeout", "300ms", "--bytes-budget", "256M")
    serves(server)
    descriptors = server.descriptors()
    values = bytes(16 << 20)
    header = json.dumps({"inputs": [{"name": "INPUT0", "shape": [1, len(values) // 4], "datatype": "FP32",
                                     "parameters": {"binary_data_size": len(values)}}],
                         "parameters": {"binary_data_output": True}}).encode()
    data = infer(extra=f"Inference-Header-Content-Length: {len(header)}\r\n", body=header + values)
    socks = []
    for i in range(6):
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.settimeout(PATIENCE_S)
        sock.connect((server.host, server.port))
        sock.sendall(data)
        if i % 2 == 0:
            sock.recv(100)
        socks.append(sock)
    server.wait_metric("berth_slab_bytes", 0)  # each is given up, none holds its answer for long
    for sock in socks:
        sock.close()
    settled(server, descriptors)
    serves(server)


def test_few_descriptors(models, serve):
    """Out of descriptors: some clients are turned away, none is served wrongly, all is well afterwards."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, before[1]))
    try:
        server = serve(models, "--media-processes", "1")  # it raises its soft limit: lower the hard one
        resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (64, 64))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    serves(server)
    descriptors = server.descriptors()
    socks = [server.connect() for _ in range(150)]
    for sock in socks[:20]:
        sock.sendall(infer(body=BODY))
    time.sleep(0.3)
    for sock in socks:
        sock.close()
    wait_status(server, infer(), 200)
    settled(server, descriptors)
    serves(server)


def test_a_log_that_cannot_be_written(models, serve):
    with open("/dev/full", "wb") as full:
        server = serve(models, "--log-level", "debug", stderr=full)
    for _ in range(20):
        assert ask(server, infer("failrun", "Connection: close\r\n")) in (500, 503)


def test_a_tiny_byte_budget(models, serve):
    server = serve(models, "--bytes-budget", "1M", "--http-admit-timeout", "200ms")
    serves(server)
    descriptors = server.descriptors()

    def work(index):
        rng = random.Random(SEED + 400 + index)
        for _ in range(200 if SOAK else 30):
            count = rng.choice([2, 1000, 60000, 120000, 260000, 400000])
            header = json.dumps({"inputs": [{"name": "INPUT0", "shape": [1, count], "datatype": "FP32",
                                             "parameters": {"binary_data_size": 4 * count}}],
                                 "parameters": {"binary_data_output": True}}).encode()
            status = ask(server, infer(rng.choice(["identity", "steps", "nap"]),
                                       f"Inference-Header-Content-Length: {len(header)}\r\n",
                                       header + bytes(4 * count)))
            assert status in (None, 200, 413, 429, 503), status

    in_threads(5, work)
    assert server.metric("berth_slab_bytes_peak") <= 1 << 20
    settled(server, descriptors)
    serves(server)


def test_many_models_at_once(tmp_path, serve):
    count = 300 if SOAK else 60
    for i in range(count):
        add_model(tmp_path, f"m{i}", IDENTITY + parameter("bytes", 10000) if i % 2 else PLAIN)
    add_model(tmp_path, "identity", IDENTITY)
    server = serve(tmp_path, "--device-bytes-max", "200K")
    serves(server)
    descriptors = server.descriptors()

    def work(index):
        for i in range(index, count, 4):
            assert ask(server, infer(f"m{i}")) in (200, 503)

    in_threads(4, work)
    settled(server, descriptors)
    serves(server)


def mixture(server, rng):
    """One random client."""
    sock = server.connect()
    try:
        for _ in range(rng.randrange(1, 4)):
            model = rng.choice(["identity", "identity", "nap", "steps", "ordered", "failrun", "failload", "slowload",
                                "big0", "big1", "nope"])
            extra = rng.choice(["", "", "", "Berth-Timeout-Ms: 5\r\n", "Expect: 100-continue\r\n", "Connection: close\r\n"])
            data = rng.choice([
                lambda: infer(model, extra), lambda: infer(model, extra), lambda: infer(model) * 4,
                lambda: infer(model, "Content-Encoding: gzip\r\n", gzip.compress(BODY)),
                lambda: post("/v2/repository/models/%s/%s" % (model, rng.choice(["load", "unload"])), b""),
                lambda: post("/v1/audio/transcriptions", BODY, "Content-Type: multipart/form-data; boundary=x\r\n"),
                lambda: b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n",
                lambda: b"GET /v2/models/%s/config HTTP/1.1\r\nHost: a\r\n\r\n" % model.encode(),
                lambda: rng.randbytes(rng.randrange(300)),
                lambda: infer(model, extra, bytes(rng.randrange(200000))),
                lambda: post(f"/v2/models/{model}/infer", BODY, length=10**6)])()
            if rng.random() < 0.2 and data:
                data = bytearray(data)
                data[rng.randrange(min(len(data), 400))] = rng.randrange(256)
            if rng.random() < 0.3:
                data = data[:rng.randrange(len(data) + 1)]
            while data:
                size = rng.choice([1, 7, 100, len(data), len(data)])
                sock.sendall(data[:size])
                data = data[size:] if rng.random() < 0.9 else b""
            sock.settimeout(rng.choice([0.0001, 0.005, 0.02, 0.3]))
            try:
                answer = sock.recv(rng.choice([1, 100, 65536]))
                assert len(answer) < 9 or b"HTTP/1.1 " in answer[:9] or rng, answer
            except TimeoutError:
                pass
            sock.settimeout(PATIENCE_S)
            if rng.random() < 0.1:
                sock.shutdown(rng.choice([socket.SHUT_WR, socket.SHUT_RD, socket.SHUT_RDWR]))
    except OSError:
        pass
    if rng.random() < 0.4:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


def test_random_mixtures(server):
    descriptors = server.descriptors()

    def work(index):
        for i in range(index, 2000 if SOAK else 160, 4):
            mixture(server, random.Random(SEED + i))
            assert server.alive(), f"seed {i}"

    in_threads(4, work)
    for model in ("nap", "steps", "ordered"):
        ask(server, post(f"/v2/repository/models/{model}/load", b""))
    settled(server, descriptors)
    serves(server)


@pytest.fixture(scope="module")
def tls_files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tls")
    subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost",
                    "-keyout", folder / "key.pem", "-out", folder / "cert.pem"], check=True, capture_output=True)
    return folder


def test_tls_garbage(models, tls_files, serve):
    import ssl
    server = serve(models, "--tls-cert", str(tls_files / "cert.pem"), "--tls-key", str(tls_files / "key.pem"),
                   "--http-head-timeout", "4s")
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE

    def served():
        with context.wrap_socket(server.connect()) as sock:
            sock.sendall(infer(extra="Connection: close\r\n"))
            answer = b""
            while chunk := sock.recv(65536):
                answer += chunk
        assert answer.startswith(b"HTTP/1.1 200"), answer

    def gauge(name):
        with context.wrap_socket(server.connect()) as sock:
            sock.sendall(b"GET /metrics HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
            text = b""
            while chunk := sock.recv(65536):
                text += chunk
        return int(next(line for line in text.split(b"\n") if line.startswith(name.encode() + b" ")).split()[1])

    served()
    rng = random.Random(SEED + 6)
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    try:
        context.wrap_bio(incoming, outgoing).do_handshake()
    except ssl.SSLWantReadError:
        pass
    hello = outgoing.read()
    for _ in range(400 if SOAK else 60):
        kind = rng.randrange(4)
        raw = server.connect()
        try:
            if kind == 0:
                raw.sendall(rng.randbytes(rng.randrange(1, 600)))
            elif kind == 1:
                raw.sendall(hello[:rng.randrange(len(hello))])
            elif kind == 2:
                broken = bytearray(hello)
                broken[rng.randrange(len(broken))] ^= 1 << rng.randrange(8)
                raw.sendall(bytes(broken))
                raw.settimeout(0.02)
                raw.recv(5000)
            else:
                sock = context.wrap_socket(raw)
                sock.sendall(infer(rng.choice(["nap", "identity"])))
                raw = socket.socket(fileno=sock.detach())  # plain bytes into an encrypted stream
                raw.sendall(rng.randbytes(100))
                raw.settimeout(0.02)
                raw.recv(5000)
        except (OSError, ssl.SSLError):
            pass
        raw.close()
    served()
    wait_until(lambda: gauge("berth_http_connections") == 1 and gauge("berth_slab_bytes") == 0)


def form(file, model="whisper-tiny.en", **fields):
    parts = b"".join(b'--x\r\nContent-Disposition: form-data; name="%s"\r\n\r\n%s\r\n' % (name.encode(), value.encode())
                     for name, value in dict(fields, model=model).items())
    body = parts + b'--x\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n' + file + b"\r\n--x--\r\n"
    return post("/v1/audio/transcriptions", body, "Content-Type: multipart/form-data; boundary=x\r\n")


def decoders(server):
    with open(f"/proc/{server.pid}/task/{server.pid}/children", encoding="ascii") as file:
        pids = {int(pid) for pid in file.read().split()}
    for task in os.listdir(f"/proc/{server.pid}/task"):
        with open(f"/proc/{server.pid}/task/{task}/children", encoding="ascii") as file:
            pids |= {int(pid) for pid in file.read().split()}
    return sorted(pids)


@pytest.fixture(scope="module")
def clip(speech, tmp_path_factory):
    """A short recording that needs a decode process."""
    path = tmp_path_factory.mktemp("clip") / "clip.flac"
    done = subprocess.run(["ffmpeg", "-v", "error", "-i", str(speech / "success.wav"), "-t", "2", str(path)], check=False)
    if done.returncode != 0:
        pytest.skip("no ffmpeg")
    return path.read_bytes()


def test_decoders_that_are_killed_and_stopped(speech_models, clip, serve):
    server = serve(speech_models, "--media-timeout", "2s", "--media-processes", "2")
    wait_status(server, form(clip), 200)
    descriptors = server.descriptors()
    stop = threading.Event()
    statuses = []

    def work(index):
        rng = random.Random(SEED + 500 + index)
        if index == 0:
            for i in range(300 if SOAK else 12):
                for pid in decoders(server)[:rng.randrange(3)]:
                    try:
                        os.kill(pid, rng.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGSTOP, signal.SIGSEGV]))
                    except ProcessLookupError:
                        pass
                time.sleep(rng.random() * 0.1)
            stop.set()
            return
        while not stop.is_set():
            kind = rng.random()
            if kind < 0.3:
                sock = server.connect()
                data = form(clip, stream=rng.choice(["true", "false"]))
                sock.sendall(data[:rng.randrange(len(data)) if rng.random() < 0.5 else len(data)])
                time.sleep(rng.random() * 0.3)
                sock.close()
            else:
                data = form(clip[:rng.randrange(len(clip))]) if kind < 0.5 else form(clip)
                statuses.append(ask(server, data))

    in_threads(4, work)
    assert set(statuses) <= {200, 400, 415, 503}, set(statuses)
    wait_status(server, form(clip), 200)
    settled(server, descriptors)


def test_transcriptions_left_and_timed_out_at_random(speech_models, speech, serve):
    server = serve(speech_models)
    wav = (speech / "success.wav").read_bytes()
    assert ask(server, form(wav)) == 200
    descriptors = server.descriptors()

    def work(index):
        rng = random.Random(SEED + 600 + index)
        for _ in range(60 if SOAK else 3):
            data = form(wav, stream=rng.choice(["true", "false"]))
            if rng.random() < 0.4:
                data = data.replace(b"Host: a", b"Host: a\r\nBerth-Timeout-Ms: %d" % rng.randrange(1, 900))
            with server.connect() as sock:
                sock.sendall(data)
                sock.settimeout(rng.random() * 1.5 + 0.001)
                try:
                    assert sock.recv(9) in (b"HTTP/1.1 ", b"")
                except (TimeoutError, ConnectionError):
                    pass

    in_threads(4, work)
    settled(server, descriptors)
    assert ask(server, form(wav)) == 200
