"""The commands a person types."""

import json
import os
import subprocess
import urllib.request

import pytest

from conftest import BERTH, DATA, IDENTITY, PATIENCE_S, wait_until, word_errors, words_of


def berth(*arguments, check=True):
    result = subprocess.run([BERTH, *map(str, arguments)], capture_output=True, text=True, timeout=300)
    assert not check or result.returncode == 0, result.stderr
    return result


def test_help_names_every_command():
    text = berth("--help").stdout
    for command in ("serve", "transcribe", "models", "doctor", "bench"):
        assert command in text
        options = berth(command, "--help").stdout
        assert "--log-level" in options and berth("help", command).stdout == options
    assert berth("help").stdout == text


@pytest.mark.parametrize("arguments, says", [
    ([], "berth serve"), (["nonsense"], "nonsense"), (["help", "nonsense"], "nonsense"),
    (["serve", "--modles", "x"], "--models"),
    (["serve", "--models", ".", "--queue-max", "0"], "queue-max"),
    (["serve", "models"], "'models'"), (["doctor", "now"], "'now'"), (["models", "now"], "'now'"),
    (["serve", "--models", ".", "--tls-key", "key.pem"], "--tls-cert is missing"),
    (["serve", "--models", ".", "--tls-cert", "cert.pem"], "--tls-key is missing"),
    (["serve", "--models", ".", "--errors", "some"], "some"),
    (["serve", "--models", ".", "--model-control-mode", "some"], "some"),
    (["serve", "--models", ".", "--cpu-worker", "some"], "some"),
    (["transcribe"], "no file"), (["transcribe", "--format", "yaml", "x"], "yaml"),
    (["transcribe", "--words", "x"], "verbose_json"),
    (["bench"], "say what"), (["bench", "transcribe"], "audio files"), (["bench", "infer", "--input", "x"], "NAME:TYPE:DIMS"),
    (["bench", "parakeet", "--stages", "some"], "some"), (["bench", "parakeet", "--rows", "0"], "--rows"),
    (["bench", "parakeet", "--random", "some"], "some"),
])
def test_mistakes_in_what_was_typed(arguments, says):
    result = berth(*arguments, check=False)
    assert result.returncode == 2 and says in result.stderr, result.stderr


@pytest.mark.parametrize("arguments, says", [
    (["serve", "--models", "/nowhere"], "/nowhere"), (["transcribe", "--models", ".", "."], "regular"),
    (["transcribe", "--models", ".", "/nowhere.wav"], "cannot open"),
    (["serve", "--models", ".", "--listen", "nowhere"], "nowhere"),
    (["serve", "--models", ".", "--listen", "127.0.0.1:99999"], "port is past 65535"),
])
def test_what_went_wrong_is_told(arguments, says):
    result = berth(*arguments, check=False)
    assert result.returncode == 1 and says in result.stderr, result.stderr


def test_triton_ports(null_models):
    host = f"127.82.{os.getpid() >> 8 & 255}.{os.getpid() & 255}"  # nobody else's: the port is a fixed one
    process = subprocess.Popen([BERTH, "serve", "--models", null_models, "--listen", f"{host}:0", "--triton-ports"],
                               stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert f"{host}:" in process.stdout.readline()
        assert process.stdout.readline() == f"berth serves on http://{host}:8002\n"
        with urllib.request.urlopen(f"http://{host}:8002/metrics", timeout=PATIENCE_S) as answer:
            assert b"nv_inference_count" in answer.read()
    finally:
        process.terminate()
        assert process.wait(PATIENCE_S) == 0
        process.stdout.close()


def test_doctor():
    assert {item["what"] for item in json.loads(berth("doctor", "--json").stdout)} >= {"processor", "engines", "gpu"}
    assert "processor" in berth("doctor").stdout


def test_options_document_is_up_to_date():
    page = DATA.parents[1] / "docs" / "options.md"
    assert berth("options").stdout == page.read_text(), "run: build/berth options >docs/options.md"


def test_models(null_models, serve):
    rows = json.loads(berth("models", "--models", null_models, "--json").stdout)
    assert {"identity", "ocr_rec"} <= {row["name"] for row in rows}
    server = serve(null_models)
    rows = json.loads(berth("models", "--server", server.url, "--json").stdout)
    row = next(row for row in rows if row["name"] == "identity")
    assert row["state"] == "READY" and "device" not in row  # not loaded
    assert server.call("POST", "/v2/models/identity/infer", b'{"inputs":[{"name":"INPUT0","shape":[1,1],'
                       b'"datatype":"FP32","data":[1]}]}')[0] == 200
    rows = json.loads(berth("models", "--server", server.url, "--json").stdout)
    row = next(row for row in rows if row["name"] == "identity")
    assert row["device"] == "cpu:0" and "fallback" not in row
    table = berth("models", "--server", server.url).stdout.splitlines()
    assert table[0].split() == ["MODEL", "VERSION", "STATE", "DEVICE", "BYTES"]
    assert next(line for line in table if line.startswith("identity ")).split()[3] == "cpu:0"
    usage = server.json("/v2/models/identity/stats")["model_stats"][0]["memory_usage"]
    assert all((item["type"], item["id"]) == ("CPU", "0") for item in usage)


def test_devices_are_told(null_models, serve):
    """And the repository is looked at once at start."""
    server = serve(null_models)
    assert server.metric("berth_repository_scans_total") == 1
    assert server.metric("berth_model_bytes", 'device="cpu:0"') == 0
    assert server.metric("berth_model_bytes_limit", 'device="cpu:0"') > 0
    assert server.metric("berth_device_well", 'device="cpu:0"') == 1
    assert server.metric("berth_device_faults_total") == server.metric("berth_device_fallbacks_total") == 0
    body = b'{"inputs":[{"name":"INPUT0","shape":[1,1],"datatype":"FP32","data":[1]}]}'
    assert server.call("POST", "/v2/models/identity/infer", body)[0] == 200
    assert server.metric("berth_model_warm", 'model="identity",version="1",device="cpu:0"') == 1
    assert server.metric("berth_model_fallback", 'model="identity"') == 0
    assert server.metric("berth_model_warm", 'model="sleepy",version="1"}') == 0  # nowhere
    assert server.metric("nv_inference_count", 'model="identity",version="1"}') == 1


@pytest.mark.parametrize("flags", [[], ["--cpu-worker=process"]])
def test_parameters_that_no_engine_reads_are_warned_of_once(tmp_path, serve, flags):
    for version in ("1", "2"):
        (tmp_path / "models" / "m" / version).mkdir(parents=True)
    (tmp_path / "models" / "m" / "config.pbtxt").write_text(
        IDENTITY + 'version_policy { all {} }\nparameters { key: "sleep_ms" value { string_value: "1" } }\n'
        'parameters { key: "sleeps_ms" value { string_value: "1" } }\n')
    with open(tmp_path / "log", "w", encoding="utf-8") as log:
        server = serve(tmp_path / "models", "--model-control-mode=none", *flags, stderr=log)
        server.wait_metric("berth_model_warm", 1, 'model="m",version="1"')
        server.wait_metric("berth_model_warm", 1, 'model="m",version="2"')
        server.stop()
    lines = [line for line in (tmp_path / "log").read_text().splitlines() if "has no parameter" in line]
    assert len(lines) == 1 and "m/config.pbtxt:8:14: engine 'null' has no parameter 'sleeps_ms'" in lines[0], lines
    assert "it is ignored (known: sleep_ms, " in lines[0]


def test_empty_repository_is_told(tmp_path, serve):
    (tmp_path / "models").mkdir()
    with open(tmp_path / "log", "w", encoding="utf-8") as log:
        server = serve(tmp_path / "models", "--model-control-mode=poll", "--repository-poll=100ms", stderr=log)
        wait_until(lambda: server.metric("berth_repository_scans_total") > 3)
        assert berth("models", "--server", server.url).stdout == f"{server.url} holds no model\n"
        server.stop()
    assert (tmp_path / "log").read_text().count(f"{tmp_path / 'models'} holds no model") == 1
    assert berth("models", "--models", tmp_path / "models").stdout == f"{tmp_path / 'models'} holds no model\n"
    assert json.loads(berth("models", "--models", tmp_path / "models", "--json").stdout) == []


def test_models_tells_what_is_wrong(tmp_path):
    (tmp_path / "text" / "1").mkdir(parents=True)
    (tmp_path / "text" / "1" / "model.onnx").write_text("hello")
    rows = json.loads(berth("models", "--models", tmp_path, "--json").stdout)
    assert [row["state"] for row in rows] == ["FAILED"] and "usable ONNX" in rows[0]["reason"]


def expected(name):
    return json.loads((DATA / "expected" / f"{name}.json").read_text())


def test_transcribe_fp32_equals_faster_whisper(speech, speech_models):
    text = berth("transcribe", "--models", speech_models, "--model", "whisper-tiny.en-fp32",
                 speech / "two_cities.wav").stdout
    assert words_of(text) == words_of(expected("two_cities.ts.float32")["text"])


def test_transcribe_int8_within_two_percent(speech, speech_models):
    text = berth("transcribe", "--models", speech_models, speech / "two_cities.wav").stdout
    want = words_of(expected("two_cities.ts.float32")["text"])
    assert word_errors(want, words_of(text)) <= 0.02 * len(want)


def test_word_times_within_20_ms(speech, speech_models):
    answer = json.loads(berth("transcribe", "--models", speech_models, "--model", "whisper-tiny.en-fp32",
                              "--words", "--format", "verbose_json", speech / "two_cities.wav").stdout)
    want = expected("two_cities.ts.float32")["words"]
    got = answer["words"]
    assert len(got) == len(want)
    near = sum(abs(a["start"] - b["start"]) <= 0.0201 and abs(a["end"] - b["end"]) <= 0.0201
               for a, b in zip(got, want))
    assert near >= 0.97 * len(want), f"{near} of {len(want)}"


def test_transcribe_by_a_server(speech, speech_server):
    text = berth("transcribe", "--server", speech_server.url, speech / "two_cities.wav").stdout
    want = words_of(expected("two_cities.ts.float32")["text"])
    assert word_errors(want, words_of(text)) <= 0.02 * len(want)
    result = berth("transcribe", "--server", speech_server.url, "--model", "nope", speech / "two_cities.wav",
                   check=False)
    assert result.returncode == 1 and "nope" in result.stderr


def test_bench(null_models, serve):
    server = serve(null_models)

    def measure(*flags):
        result = json.loads(berth("bench", "infer", "--url", server.url, "--model", "identity", "--input",
                                  "INPUT0:FP32:1,16", "--duration", "1s", "--warmup", "200ms", "--json",
                                  "--pid", server.pid, *flags).stdout)
        assert set(result["statuses"]) == {"200"} and result["broken"] == 0
        assert result["p50_ms"] <= result["p99_ms"] and result["answered"] > 0
        assert result["cpu_ms_per_request"] > 0 and "audio_per_s" not in result
        return result["requests_per_s"]

    assert measure() > 0
    # A machine that stands still for a moment sends fewer, but not each time; never more.
    rates = []
    while not any(rate > 100 for rate in rates):
        assert len(rates) < 20, rates
        rates.append(measure("--rate", "200"))
    assert max(rates) < 300
    text = berth("bench", "infer", "--url", server.url, "--model", "identity", "--input", "INPUT0:FP32:1,16",
                 "--duration", "200ms", "--warmup", "10ms").stdout
    assert "requests_per_s" in text and "cpu_ms" not in text and "audio_per_s" not in text
