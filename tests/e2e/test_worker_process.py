"""Models in a worker process: the same answers as in threads, and a server that outlives the process."""

import concurrent.futures
import os
import pathlib
import signal
import subprocess

import numpy as np
import pytest
import tritonclient.http as triton
from conftest import BERTH, IDENTITY, MODELS, add_model, wait_until

PROCESS = "--cpu-worker=process"


def workers_of(pid):
    """The server's worker processes."""
    found = []
    for folder in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            parent = int((folder / "stat").read_text().rsplit(")", 1)[1].split()[1])
            words = (folder / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if parent == pid and b"worker" in words[1:2]:
            found.append(int(folder.name))
    return found


def wait_worker(server, other=None):
    return wait_until(lambda: [pid for pid in workers_of(server.pid) if pid != other],
                      lambda: "no worker process")[0]


def infer(client, model, values, name="INPUT0", out="OUTPUT0"):
    tensor = triton.InferInput(name, list(values.shape), "FP32")
    tensor.set_data_from_numpy(values)
    return client.infer(model, [tensor]).as_numpy(out)


def ask(server, model):
    body = b'{"inputs":[{"name":"INPUT0","shape":[1,2],"datatype":"FP32","data":[1,2]}]}'
    return server.call("POST", f"/v2/models/{model}/infer", body)


def transcribe(server, model, path):
    body = b"".join(
        b'--XX\r\nContent-Disposition: form-data; name="' + name + b'"' + extra + b"\r\n\r\n" + value + b"\r\n"
        for name, extra, value in (
            (b"model", b"", model.encode()), (b"response_format", b"", b"verbose_json"),
            (b"file", b'; filename="a.wav"', path.read_bytes()))) + b"--XX--\r\n"
    status, _, text = server.call("POST", "/v1/audio/transcriptions", body,
                                  {"Content-Type": "multipart/form-data; boundary=XX"}, timeout=300)
    assert status == 200, text
    return text


@pytest.mark.parametrize("width", [1, 2048, 2049, 750000])
def test_identity(serve, null_models, width):
    server = serve(null_models, PROCESS)
    values = np.random.default_rng(width).standard_normal((1, width)).astype(np.float32)
    with triton.InferenceServerClient(server.address) as client:
        assert np.array_equal(infer(client, "identity", values), values)


def test_an_onnx_model_answers_the_same(serve):
    if not (MODELS / "silero_vad" / "1" / "model.onnx").exists():
        pytest.skip("no models: run make models")
    answers = []
    for flags in ((), (PROCESS,)):
        server = serve(MODELS, *flags)
        with triton.InferenceServerClient(server.address) as client:
            metadata = client.get_model_metadata("efficientnet_lite0")
            shape = [d if d > 0 else 1 for d in metadata["inputs"][0]["shape"]]
            values = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
            answers.append(infer(client, "efficientnet_lite0", values, metadata["inputs"][0]["name"],
                                 metadata["outputs"][0]["name"]))
            assert client.get_model_config("efficientnet_lite0")["max_batch_size"] >= 0
    assert np.array_equal(*answers)


@pytest.mark.parametrize("model", ["whisper-tiny.en", "parakeet-nano-en"])
def test_a_transcription_is_the_same(serve, speech_models, speech, model):
    if not (speech_models / model).exists():
        pytest.skip("no models: run make models")
    name = sorted(speech.glob("*.wav"))[0]
    threads = transcribe(serve(speech_models), model, name)
    server = serve(speech_models, PROCESS)
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        for text in pool.map(lambda _: transcribe(server, model, name), range(3)):
            assert text == threads


def test_a_killed_process_costs_what_it_ran(serve, tmp_path):
    add_model(tmp_path, "identity", IDENTITY)
    add_model(tmp_path, "slow", IDENTITY.replace("dynamic_batching {}", "") +
              'parameters { key: "sleep_ms" value { string_value: "600000" } }\n')
    server = serve(tmp_path, PROCESS)
    assert ask(server, "identity")[0] == 200
    for _ in range(3):
        pid = wait_worker(server)
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            running = pool.submit(ask, server, "slow")
            server.wait_metric("berth_running_requests", 1)
            os.kill(pid, signal.SIGKILL)
            status, _, text = running.result(60)
            assert status == 503 and b"worker process ended: signal 9" in text
        assert ask(server, "identity")[0] == 200
        assert wait_worker(server, pid) != pid
    assert server.alive()


def test_processes_and_descriptors_do_not_pile_up(serve, null_models):
    server = serve(null_models, PROCESS)
    values = np.ones((1, 5000), np.float32)
    with triton.InferenceServerClient(server.address) as client:
        infer(client, "identity", values)
        pid = wait_worker(server)
        before = server.descriptors(), len(os.listdir(f"/proc/{pid}/fd"))
        for _ in range(300):
            infer(client, "identity", values)

        def now():
            return server.descriptors(), len(os.listdir(f"/proc/{pid}/fd"))

        # What the last request held may be on its way back.
        wait_until(lambda: all(a <= b for a, b in zip(now(), before)), lambda: f"{now()}, not {before}")
    assert workers_of(server.pid) == [pid]
    server.stop()
    assert not pathlib.Path(f"/proc/{pid}").exists()


def test_the_process_ends_with_its_server(serve, null_models):
    server = serve(null_models, PROCESS)
    with triton.InferenceServerClient(server.address) as client:
        infer(client, "identity", np.ones((1, 4), np.float32))
    pid = wait_worker(server)
    server.process.kill()
    wait_until(lambda: not pathlib.Path(f"/proc/{pid}").exists())
    server.stop(expect=-9)


def test_options_are_judged(null_models):
    for flags, text in ((["--cpu-worker=fork"], "thread or process"),
                        (["--cuda-worker=/does/not/exist"], "no program"),
                        (["--cuda-worker=/bin/false"], "without a word")):
        done = subprocess.run([BERTH, "serve", "--models", str(null_models), "--listen", "127.0.0.1:0", *flags],
                              capture_output=True, text=True, timeout=60)
        assert done.returncode != 0 and text in done.stderr
