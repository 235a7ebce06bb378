"""A GPU worker that does not do: scripts stand in the place of berth-cuda, and say that they see a
GPU. The CPU serves (src/sched/README.md, S15), and whoever looks is told."""

import json
import subprocess

import pytest
from conftest import BERTH, ROOT

MODEL = "parakeet-nano-en"
FOLDER = ROOT / "tests" / "models" / MODEL
GOLDEN = json.loads((FOLDER / "golden" / "golden.json").read_text())[0]
SAMPLES = (FOLDER / "golden" / "pcm0.s16").read_bytes()


def program(tmp_path, worker, free=1 << 40):
    """A berth-cuda that sees a GPU, and does `worker` where it is one."""
    path = tmp_path / "berth-cuda"
    path.write_text(f'#!/bin/sh\nif [ "$1" = --probe ]; then echo "cuda:0 {1 << 40} {free} Card"; exit 0; fi\n{worker}\n')
    path.chmod(0o755)
    return f"--cuda-worker={path}"


def models(tmp_path, config=None):
    folder = tmp_path / "models"
    if config is None:
        folder.mkdir()
        (folder / MODEL).symlink_to(FOLDER)
    else:
        (folder / MODEL).mkdir(parents=True)
        (folder / MODEL / "1").symlink_to(FOLDER)
        (folder / MODEL / "config.pbtxt").write_text(config)
    return folder


def transcribe(server):
    head = b"RIFF" + (36 + len(SAMPLES)).to_bytes(4, "little") + b"WAVEfmt " + bytes.fromhex(
        "10000000010001" "00803e0000007d00000200100064617461") + len(SAMPLES).to_bytes(4, "little")
    body = (b'--XX\r\nContent-Disposition: form-data; name="model"\r\n\r\n' + MODEL.encode() +
            b'\r\n--XX\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\n\r\n' + head + SAMPLES +
            b"\r\n--XX--\r\n")
    return server.call("POST", "/v1/audio/transcriptions", body,
                       {"Content-Type": "multipart/form-data; boundary=XX"}, timeout=120)


@pytest.mark.parametrize("worker, free, why", [
    ("exit 1", 1 << 40, "worker process"),            # it never starts
    ("kill -9 $$", 1 << 40, "worker process"),
    (f'exec {BERTH} "$@"', 1 << 40, "cuda:0"),        # it starts, and knows no GPU: UNSUPPORTED
    (f'exec {BERTH} "$@"', 1000, "models on cuda:0 may hold 900 bytes"),  # no room
])
def test_the_cpu_serves(serve, tmp_path, worker, free, why):
    server = serve(models(tmp_path), program(tmp_path, worker, free))
    for _ in range(3):
        status, _, text = transcribe(server)
        assert status == 200 and json.loads(text)["text"] == GOLDEN["text"]
    rows = json.loads(subprocess.run([BERTH, "models", "--server", server.url, "--json"], capture_output=True,
                                     text=True, timeout=60, check=True).stdout)
    assert rows[0]["device"] == "cpu:0" and why in rows[0]["fallback"]
    table = subprocess.run([BERTH, "models", "--server", server.url], capture_output=True, text=True, timeout=60,
                           check=True).stdout
    assert "not on the GPU: " in table
    assert server.metric("berth_model_fallback", f'model="{MODEL}",version="1",device="cpu:0"') == 1
    assert server.metric("berth_device_fallbacks_total", "cuda:0") == 1
    lines = [line for line in server.logged().splitlines() if "so the CPU does" in line and why in line]
    assert len(lines) == 1 and f"model={MODEL}" in lines[0] and "device=cuda:0" in lines[0], server.logged()


def test_the_environment_chooses_the_card(serve, tmp_path):
    """CUDA reads CUDA_VISIBLE_DEVICES: the probe and the worker have the server's."""
    seen = tmp_path / "seen"
    flag = program(tmp_path, f'echo "worker $CUDA_VISIBLE_DEVICES" >> {seen}; exit 1')
    path = tmp_path / "berth-cuda"
    path.write_text(path.read_text().replace("#!/bin/sh\n", f'#!/bin/sh\necho "$1 $CUDA_VISIBLE_DEVICES" >> {seen}\n'))
    server = serve(models(tmp_path), flag, env={"CUDA_VISIBLE_DEVICES": "1"})
    assert transcribe(server)[0] == 200
    lines = seen.read_text().splitlines()
    assert lines[0] == "--probe 1" and "worker 1" in lines, lines


def test_a_demand_gets_the_error(serve, tmp_path):
    folder = models(tmp_path, 'backend: "parakeet"\ninstance_group { kind: KIND_GPU }\n')
    server = serve(folder, program(tmp_path, f'exec {BERTH} "$@"'))
    status, _, text = transcribe(server)
    assert status == 503 and b"cuda:0" in text
    assert server.metric("berth_device_fallbacks_total", "cuda:0") == 0
