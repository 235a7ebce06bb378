"""Fixtures: a berth of one's own on a free port, model repositories, recordings."""

import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import tempfile
import time
import urllib.request

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BERTH = os.environ.get("BERTH_BIN", str(ROOT / "build" / "berth"))
DATA = ROOT / "tests" / "data"
MODELS = ROOT / "models"
SPEECH = ROOT / ".deps" / "speech"
SOAK = os.environ.get("BERTH_SOAK", "") not in ("", "0")


# Machines that build and test at once stand still for seconds: what is waited for comes, and only what
# never comes takes this long.
PATIENCE_S = 60
ECHO_S = 1.1  # a signal that comes less than 1 s after the first is the same stop


def wait_until(holds, says=lambda: "it does not come", seconds=PATIENCE_S):
    """Asks holds() again and again until it is true; says() is in the failure."""
    end = time.monotonic() + seconds
    while not (held := holds()):
        assert time.monotonic() < end, says()
        time.sleep(0.02)
    return held


class Berth:
    """A running server. Stops by SIGTERM and asserts that it ended well; then its log goes too."""

    def __init__(self, models, *arguments, env=None, stderr=None):
        self.log = tempfile.NamedTemporaryFile("ab", prefix="berth-", suffix=".log", delete=False)
        self.process = subprocess.Popen(
            [BERTH, "serve", "--models", str(models), "--listen", "127.0.0.1:0", *arguments],
            stdout=subprocess.PIPE, stderr=stderr or self.log, text=True,
            env=dict(os.environ, **(env or {})))
        line = self.process.stdout.readline()
        match = re.search(r"(https?)://([0-9.]+):(\d+)", line)
        assert match, f"no address in {line!r}; exit status {self.process.poll()}"
        self.host, self.port = match[2], int(match[3])
        self.url = match[0]
        self.address = f"{self.host}:{self.port}"
        self.pid = self.process.pid

    def get(self, path, headers=None):
        """(status, headers, body) of a GET."""
        return self.call("GET", path, None, headers)

    def call(self, method, path, body=None, headers=None, timeout=60):
        request = urllib.request.Request(self.url + path, data=body, method=method,
                                         headers=headers or {})
        try:
            with urllib.request.urlopen(request, timeout=timeout) as answer:
                return answer.status, answer.headers, answer.read()
        except urllib.error.HTTPError as error:
            return error.code, error.headers, error.read()

    def json(self, path):
        return json.loads(self.get(path)[2])

    def connect(self, timeout=PATIENCE_S):
        return socket.create_connection((self.host, self.port), timeout=timeout)

    def raw(self, data, timeout=PATIENCE_S, half_close=False):
        """Sends bytes, reads until the server closes or nothing comes for `timeout`. A short one is for
        requests of which the server may wait for more: then what came is no whole answer for sure."""
        with self.connect(timeout) as sock:
            sock.sendall(data)
            if half_close:
                sock.shutdown(socket.SHUT_WR)
            answer = b""
            try:
                while chunk := sock.recv(65536):
                    answer += chunk
            except (TimeoutError, ConnectionResetError):
                pass
            return answer

    def metric(self, name, labels=""):
        """The value of a metric whose line starts with name{...labels...}."""
        for line in self.get("/metrics")[2].decode().splitlines():
            if line.startswith(name) and labels in line and not line.startswith("#"):
                if line[len(name)] in " {":
                    return float(line.rsplit(" ", 1)[1])
        raise KeyError(name + labels)

    def rss(self):
        """Resident bytes of the server process."""
        with open(f"/proc/{self.pid}/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")

    def descriptors(self):
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def alive(self):
        return self.process.poll() is None

    def wait_metric(self, name, value, labels="", seconds=PATIENCE_S):
        """Waits until a metric has that value; the last one seen is in the failure."""
        seen = None

        def holds():
            nonlocal seen
            seen = self.metric(name, labels)
            return seen == value

        wait_until(holds, lambda: f"{name}{labels} is {seen}, not {value}", seconds)

    def wait_closed(self):
        """Until it takes no connections any more, as after a signal and --drain-delay."""

        def refused():
            try:
                self.connect().close()
            except ConnectionError:
                return True

        wait_until(refused, lambda: "it still listens")

    def wait_no_echo(self):
        """After the first signal was seen to be taken: until a further one is not of the same stop."""
        time.sleep(ECHO_S)

    def logged(self):
        """What it wrote to standard error until now, unless that is elsewhere."""
        return pathlib.Path(self.log.name).read_text(encoding="utf-8", errors="replace")

    def stop(self, expect=0):
        """A second call does nothing."""
        if self.log.closed:
            return
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            status = self.process.wait(2 * PATIENCE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise
        finally:
            self.process.stdout.close()
            self.log.close()
        assert status == expect, f"berth ended with {status}, its log is {self.log.name}"
        os.unlink(self.log.name)


IDENTITY = """backend: "null"
max_batch_size: 32
input [{ name: "INPUT0" data_type: TYPE_FP32 dims: [-1] }]
output [{ name: "OUTPUT0" data_type: TYPE_FP32 dims: [-1] }]
dynamic_batching {}
"""

OCR_SHAPE = """backend: "null"
max_batch_size: 8
input [{ name: "x" data_type: TYPE_FP32 dims: [3, 48, 320] }]
output [{ name: "softmax_11.tmp_0" data_type: TYPE_FP32 dims: [3, 48, 320] }]
"""


def add_model(repository, name, config, version="1", files=()):
    folder = pathlib.Path(repository) / name
    (folder / version).mkdir(parents=True)
    if config is not None:
        (folder / "config.pbtxt").write_text(config)
    for file_name, content in files:
        (folder / version / file_name).write_bytes(content)


@pytest.fixture(scope="session")
def null_models(tmp_path_factory):
    """identity, ocr_rec (its shape only), sleepy (takes 300 ms), echo_TYPE for each type."""
    folder = tmp_path_factory.mktemp("models")
    add_model(folder, "identity", IDENTITY)
    add_model(folder, "ocr_rec", OCR_SHAPE)
    add_model(folder, "sleepy", IDENTITY.replace("dynamic_batching {}", "") +
              'parameters { key: "sleep_ms" value { string_value: "300" } }\n')
    types = ["BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64",
             "FP16", "FP32", "FP64", "STRING", "BF16"]
    for t in types:
        add_model(folder, f"echo_{t.lower()}", f"""backend: "null"
max_batch_size: 0
input [{{ name: "IN" data_type: TYPE_{t} dims: [-1] }}]
output [{{ name: "OUT" data_type: TYPE_{t} dims: [-1] }}]
""")
    return folder


@pytest.fixture
def serve():
    """serve(models, *flags) -> Berth; all of them are stopped at the end."""
    running = []

    def start(models, *arguments, **kwargs):
        running.append(Berth(models, *arguments, **kwargs))
        return running[-1]

    yield start
    failures = []
    for server in running:
        try:
            server.stop()
        except (AssertionError, subprocess.TimeoutExpired) as failure:  # the others are to end too
            failures.append(failure)
    if failures:
        raise failures[0]


@pytest.fixture(scope="module")
def null_server(null_models):
    server = Berth(null_models)
    yield server
    server.stop()


@pytest.fixture(scope="session")
def speech():
    """The recordings; `make models` fetches them."""
    if not (SPEECH / "two_cities.wav").exists():
        pytest.skip("no recordings: run make models")
    return SPEECH


@pytest.fixture(scope="session")
def speech_models():
    if not (MODELS / "whisper-tiny.en" / "config.pbtxt").exists():
        pytest.skip("no models: run make models")
    return MODELS


@pytest.fixture(scope="module")
def speech_server(speech_models):
    server = Berth(speech_models)
    yield server
    server.stop()


def words_of(text):
    """Words as they count for errors: no case, no punctuation."""
    return re.sub(r"[^\w' ]", " ", text.lower()).split()


def word_errors(expected, got):
    """Edits between two word lists."""
    previous = list(range(len(got) + 1))
    for i, word in enumerate(expected, 1):
        row = [i]
        for j, other in enumerate(got, 1):
            row.append(min(previous[j] + 1, row[j - 1] + 1, previous[j - 1] + (word != other)))
        previous = row
    return previous[-1]
