"""What `berth bench` says of a server that refuses, what each command's help speaks of, and what a newcomer sees."""

import hashlib
import http.server
import json
import re
import shutil
import subprocess
import threading

import pytest

from conftest import BERTH, IDENTITY, ROOT, add_model


def test_the_demo_shows_a_recording_that_is_heard():
    clip = int(re.search(r"clip=(\d+)", (ROOT / "tools" / "demo").read_text())[1])
    golden = json.loads((ROOT / "tests/models/parakeet-nano-en/golden/golden.json").read_text())
    assert golden[clip]["text"] == golden[clip]["reference"]


def berth(*arguments):
    return subprocess.run([BERTH, *map(str, arguments)], capture_output=True, text=True, timeout=120)


COMMANDS = ("serve", "transcribe", "models", "doctor", "bench")


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_a_command_speaks_of_that_one_only(command):
    text = berth(command, "--help").stdout
    words = " ".join(text.split())  # as it was before its lines were cut
    for other in set(COMMANDS) - {command, "models"}:  # models are what all is about
        if (command, other) != ("bench", "transcribe"):  # one of its own
            assert not re.search(rf"(?<!berth )\b{other}\b", words), f"{other} in {words}"
    assert ("parakeet:" in words or "with parakeet" in words) == (command == "bench")
    lines = text.splitlines()
    assert all(line == line.rstrip() and len(line) <= 100 for line in lines), lines
    assert lines[0].split()[:2] == ["berth", command]


@pytest.mark.parametrize("command", COMMANDS)
def test_help_says_what_the_exit_status_means(command):
    text = " ".join(berth(command, "--help").stdout.split())
    assert re.search(r"Exit status: 0.*2 where the command line is wrong\.$", text), text


@pytest.mark.parametrize("asked", [["help", "help"], ["help", "--help"], ["help", "-h"], ["help"], ["--help"], ["-h"]])
def test_every_way_to_ask_for_help(asked):
    result = berth(*asked)
    assert result.returncode == 0 and result.stderr == "" and "berth serve " in result.stdout
    assert result.stdout == berth("--help").stdout


def test_a_list_with_failed_models_is_a_list(tmp_path, serve):
    """Status 0 means that there is a list, from a folder as from a server."""
    add_model(tmp_path, "good", IDENTITY)
    add_model(tmp_path, "bad", 'backend: "nothing of that name"\n')
    server = serve(tmp_path)
    for where in (["--models", tmp_path], ["--server", server.url]):
        result = berth("models", *where)
        assert result.returncode == 0 and result.stderr == "", result.stderr
        assert re.search(r"^bad .*(FAILED|UNAVAILABLE)", result.stdout, re.M), result.stdout
    assert berth("models", "--models", tmp_path / "none").returncode == 1
    assert berth("models", "--server", "http://127.0.0.1:1").returncode == 1


@pytest.mark.parametrize("arguments, needed", [
    (["infer"], "--model is needed"), (["infer", "--model", "m"], "--input is needed: NAME:TYPE:DIMS"),
    (["infer", "--model="], "--model is needed"), (["infer", "--model", "m", "--input="], "--input is needed"),
    (["infer", "--input", "INPUT0:FP32:1,16"], "--model is needed"),
    (["parakeet"], "--model is needed"), (["parakeet", "--model="], "--model is needed"),
])
def test_what_bench_needs_is_named(arguments, needed):
    result = berth("bench", *arguments)
    assert result.returncode == 2 and needed in result.stderr and result.stdout == ""
    assert "whisper" not in result.stderr


class Scripted(http.server.ThreadingHTTPServer):
    """Answers by a list of (status, body), the last again and again; counts what it was asked."""

    daemon_threads = True
    request_queue_size = 128  # connections at once; one too many would try again after a second

    def __init__(self, answers):
        super().__init__(("127.0.0.1", 0), ScriptedHandler)
        self.answers, self.asked, self.mu = answers, 0, threading.Lock()
        self.closes = self.tells = False
        self.url = f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, *_):
        """Who stops early does not wait for its last answers."""


class ScriptedHandler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # head and body in one piece

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        with self.server.mu:
            status, body = self.server.answers[min(self.server.asked, len(self.server.answers) - 1)]
            self.server.asked += 1
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        if self.server.tells:
            self.send_header("Connection", "close")
        self.close_connection = self.server.closes
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@pytest.fixture
def scripted():
    running = []

    def start(*answers):
        running.append(Scripted(answers))
        threading.Thread(target=running[-1].serve_forever, args=(0.05,), daemon=True).start()
        return running[-1]

    yield start
    for server in running:
        server.shutdown()
        server.server_close()


TIMES = ("mean_ms", "p50_ms", "p90_ms", "p99_ms", "p999_ms", "max_ms")


def infer(url, *flags, model="m", tensor="INPUT0:FP32:1,4"):
    return berth("bench", "infer", "--url", url, "--model", model, "--input", tensor, *flags)


def nothing_measured(result, why):
    """A JSON answer of a run without a 200."""
    assert result.returncode == 1 and why in result.stderr, result.stderr
    answer = json.loads(result.stdout)
    assert [answer[name] for name in TIMES] == [None] * len(TIMES)
    assert answer["requests_per_s"] == 0 and sum(answer["statuses"].values()) == answer["answered"]
    return answer


LONG = ("--warmup", "1h", "--duration", "1h")  # who does not stop early fails by berth()'s patience


@pytest.mark.parametrize("model, tensor, flags, why", [
    ("identity", "INPUT9:FP32:1,4", (), "INPUT9"), ("identity", "INPUT0:INT64:1,4", (), "INPUT0"),
    ("ocr_rec", "x:FP32:1,3,48,321", (), "shape"), ("no such", "INPUT0:FP32:1,4", (), "no such"),
    ("identity", "INPUT9:FP32:1,4", ("--rate", "5000"), "INPUT9"),
    ("identity", "INPUT9:FP32:1,4", ("--concurrency", "1"), "INPUT9"),
    ("identity", "INPUT9:FP32:1,4", ("--concurrency", "500"), "INPUT9"),
])
def test_a_model_that_refuses_ends_the_run(null_server, model, tensor, flags, why):
    before = null_server.metric("berth_accepted_requests_total")
    model = model.replace(" ", "%20")
    answer = nothing_measured(infer(null_server.url, "--json", *LONG, *flags, model=model, tensor=tensor), why)
    assert set(answer["statuses"]) <= {"400", "404"} and 100 <= answer["answered"] < 1000 and answer["unsent"] == 0
    assert null_server.metric("berth_accepted_requests_total") - before < 2000
    text = infer(null_server.url, *LONG, *flags, model=model, tensor=tensor)
    assert text.returncode == 1 and "_ms" not in text.stdout and "statuses" in text.stdout
    assert re.search(r"the server answered 40[04]: ", text.stderr)


def test_a_key_that_is_missing(null_models, serve, tmp_path):
    (tmp_path / "keys").write_text(f"sha256:{hashlib.sha256(b'k').hexdigest()} me\n")
    server = serve(null_models, "--keys-file", tmp_path / "keys")
    arguments = ("--json", "--duration", "300ms", "--warmup", "0")
    assert set(nothing_measured(infer(server.url, *arguments, model="identity"), "--key")["statuses"]) == {"401"}
    assert infer(server.url, *arguments, "--key", "k", model="identity").returncode == 0


OK, BAD = (200, b"{}"), (400, b'{"error": "not so"}')
BUSY, FULL = (429, b'{"error": "later"}'), (503, b'{"error": {"message": "no room"}}')


@pytest.mark.parametrize("answers, says", [
    ([BAD], "not so"), ([(500, b'{"error": "broke"}')], "500: broke"), ([(302, b"")], "302"), ([(404, b"<html>")], "404"),
    ([(400, b'{"error": "' + b"x" * 100000 + b'"}')], "400"), ([BUSY, FULL, BAD], "429: later"),
    ([FULL] * 300 + [BAD], "503: no room"),
])
@pytest.mark.parametrize("concurrency", [1, 16])
def test_refusals_that_time_does_not_mend_stop_it(scripted, answers, says, concurrency):
    server = scripted(*answers)
    if concurrency > 1 and len(answers) > 1:
        says = "the server answered "  # whose answer is there first is open
    answer = nothing_measured(infer(server.url, "--json", "--concurrency", concurrency, *LONG), says)
    wanted = len(answers) - 1 + 100
    assert answer["answered"] >= 100 and wanted <= server.asked <= wanted + 4 * concurrency


@pytest.mark.parametrize("tells", [True, False])
@pytest.mark.parametrize("pace", [("--rate", "200"), ("--concurrency", "1"), ("--concurrency", "16")])
def test_a_server_that_closes_after_each_answer(scripted, pace, tells):
    """Which it may, told or not; told, no request is sent to a connection that ends."""
    server = scripted(OK)
    server.closes, server.tells = True, tells
    result = infer(server.url, "--json", "--warmup", "0", "--duration", "500ms", *pace)
    answer = json.loads(result.stdout)
    assert result.returncode == 0, result.stderr
    assert set(answer["statuses"]) == {"200"} and 0 < answer["answered"] <= server.asked
    if tells:
        assert answer["broken"] == 0, answer


@pytest.mark.parametrize("answers, says", [([BUSY], "429: later"), ([FULL], "503: no room"), ([BUSY, FULL], "429: later")])
def test_refusals_that_time_mends_do_not(scripted, answers, says):
    server = scripted(*answers)
    answer = nothing_measured(infer(server.url, "--json", "--concurrency", "1", "--warmup", "10ms", "--duration", "1s"),
                              f"no answer was 200; the first that was not: the server answered {says}")
    assert set(answer["statuses"]) <= {"429", "503"}


@pytest.mark.parametrize("answers", [[OK, BAD], [BAD] * 99 + [OK] + [BAD] * 99 + [OK], [OK]])
def test_one_that_is_served_goes_on(scripted, answers):
    server = scripted(*answers)
    # It lasts until all of the script was seen, however long this machine takes for it.
    for duration in ("500ms", "4s", "60s"):
        server.asked = 0
        result = infer(server.url, "--json", "--concurrency", "1", "--warmup", "0", "--duration", duration)
        if server.asked > len(answers):
            break
    answer = json.loads(result.stdout)
    assert result.returncode == 0 and answer["statuses"]["200"] > 0 and answer["answered"] == server.asked
    assert all(answer[name] > 0 for name in TIMES) and answer["requests_per_s"] > 0
    assert ("the server answered 400: not so" in result.stderr) == (BAD in answers)


def test_transcribe_is_refused_alike(scripted, tmp_path):
    """At its first question, which tells how long a recording is, or later."""
    (tmp_path / "a.wav").write_bytes(b"RIFF")
    heard = (200, b'{"duration": 1.5}')
    for answers, says in (([BAD], "not so"), ([heard, BAD], "not so"), ([heard, BUSY, BAD], "later")):
        server = scripted(*answers)
        result = berth("bench", "transcribe", "--url", server.url, "--json", "--concurrency", "1", *LONG, tmp_path / "a.wav")
        assert result.returncode == 1 and says in result.stderr, result.stderr
        if answers[0] == heard:
            nothing_measured(result, says)
        assert server.asked < 300
    server = scripted(heard, OK)
    result = berth("bench", "transcribe", "--url", server.url, "--json", "--duration", "500ms", "--warmup", "0",
                   tmp_path / "a.wav")
    assert result.returncode == 0 and json.loads(result.stdout)["audio_per_s"] > 0 and result.stderr == ""


NO_CODE = "cuda:0: no code for compute capability 7.5; this build has 8.0, 8.9, 9.0, 12.0"


@pytest.mark.parametrize("prints, status, verdict, says", [
    ("cuda:0 1000000000 900000000 NVIDIA H200, driver 13.0", 0, "ok", "cuda:0 NVIDIA H200, driver 13.0, 1.0 GB, 0.9 free"),
    (NO_CODE, 1, "missing", f"{NO_CODE}; models run on the processor"),
    ("x" * 1000, 1, "missing", "x; models run on the processor"), ("", 1, "missing", "without a word; models run on"),
    ("cuda:0 1000", 0, "missing", "does not say what GPU it sees; models run on the processor"),
])
def test_doctor_says_what_berth_cuda_says(tmp_path, prints, status, verdict, says):
    """A script stands beside berth as berth-cuda."""
    shutil.copy2(BERTH, tmp_path / "berth")
    (tmp_path / "berth-cuda").write_text(f"#!/bin/sh\necho '{prints}'\nexit {status}\n")
    (tmp_path / "berth-cuda").chmod(0o755)
    result = subprocess.run([tmp_path / "berth", "doctor", "--json"], capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    gpu = next(item for item in json.loads(result.stdout) if item["what"] == "gpu")
    assert gpu["verdict"] == verdict and says in gpu["text"], gpu
