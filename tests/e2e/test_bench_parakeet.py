"""`berth bench parakeet`: its figures are there, and what it dumps is what the engine heard."""
import json
import pathlib
import subprocess
import sys

import pytest

from conftest import BERTH

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODEL = ROOT / "tests/models/parakeet-nano-en"


def bench(*options):
    return subprocess.run([BERTH, "bench", "parakeet", *map(str, options)], capture_output=True,
                          text=True, timeout=300)


def test_golden_clips(tmp_path):
    clips = [3, 8]
    files = [MODEL / "golden" / f"pcm{i}.s16" for i in clips]
    result = bench("--model", MODEL, "--rows", "1,2", "--runs", "2", "--dump", tmp_path, "--json", *files)
    assert result.returncode == 0, result.stderr
    one, two = json.loads(result.stdout)["buckets"]
    assert (one["rows"], two["rows"]) == (1, 2)
    for stage in ("encoder", "encoded", "tokens", "products"):
        assert len(two["ms"][stage]["all"]) == 2 and two["ms"][stage]["min"] > 0
    golden = json.loads((MODEL / "golden/golden.json").read_text())
    dumped = json.loads(next(tmp_path.glob("2x*.json")).read_text())
    for row, clip in zip(dumped["rows"], clips):
        assert row["tokens"] == golden[clip]["tokens"]
        assert row["frame"] == golden[clip]["frames"]
    pcm = next(tmp_path.glob("2x*.pcm.f32"))
    assert pcm.stat().st_size == 2 * 4 * dumped["samples"]


def test_random_weights(tmp_path):
    result = bench("--random", "nano", "--keep", tmp_path / "kept", "--rows", "1", "--seconds", "0.5",
                   "--runs", "1", "--stages", "tokens")
    assert result.returncode == 0, result.stderr
    assert "seeded clips" in result.stdout
    assert (tmp_path / "kept/model.safetensors").exists()


def test_over_http(tmp_path):
    """Its short form on the CPU: exit status 0 says that every text and word was as it should be."""
    result = subprocess.run([sys.executable, ROOT / "bench/parakeet/serve.py", "--berth", BERTH, "--minutes", "1",
                             "--clients", "2", "--seconds", "1", "--out", tmp_path],
                            capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stdout + result.stderr
    assert (tmp_path / "serve.md").read_text() in result.stdout


@pytest.mark.parametrize("options, said", [
    (("--rows", "0"), "--rows '0'"),
    (("--rows", "2x"), "--rows '2x'"),
    (("--stages", "encoder,decoder"), "'decoder'"),
    (("--device", "tpu:0"), "tpu:0"),
    (("--random", "7b"), "7b"),
    (("nosuch.s16",), "nosuch.s16"),
    (("--model", "nosuch"), "nosuch"),
])
def test_refusals(options, said):
    result = bench(*(options if "--model" in options else ("--model", MODEL, *options)))
    assert result.returncode != 0
    assert said in result.stderr


@pytest.mark.parametrize("samples, said", [(0, "the file is empty"), (159, "10 ms")])
def test_clips_without_a_frame_are_refused(tmp_path, samples, said):
    (tmp_path / "short.s16").write_bytes(bytes(2 * samples))
    result = bench("--model", MODEL, tmp_path / "short.s16")
    assert result.returncode == 1
    assert said in result.stderr
