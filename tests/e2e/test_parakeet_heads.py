"""Parakeet with a CTC and with an RNN-T head over OpenAI's API, and every head's tokens, frames and
durations by the engine alone. The models: tests/models/parakeet-nano-heads."""

import concurrent.futures
import json
import os
import subprocess
import sys

import openai
import pytest

from conftest import BERTH, ROOT, Berth
from test_parakeet import CLIPS, silence, wav

sys.path.insert(0, str(ROOT / "tests" / "models" / "parakeet-nano-heads"))
import make_folders  # noqa: E402

HEADS = sorted(make_folders.HEADS)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return make_folders.make_folders(tmp_path_factory.mktemp("heads"))


@pytest.fixture(scope="module")
def client(folders):
    server = Berth(folders["ctc"].parent)
    yield openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0)
    server.stop()


def golden(head):
    return json.loads((make_folders.HERE / f"golden_{head}.json").read_text())


def transcribe(client, head, clip, **options):
    return client.audio.transcriptions.create(file=("a.wav", clip), model=f"parakeet-nano-{head}",
                                              response_format="verbose_json",
                                              timestamp_granularities=["word", "segment"], **options)


def test_listed(client):
    assert {f"parakeet-nano-{head}" for head in HEADS} <= {model.id for model in client.models.list()}


@pytest.mark.parametrize("head", HEADS)
def test_hears_what_the_reference_hears(client, head):
    for clip, want in zip(CLIPS, golden(head)):
        answer = transcribe(client, head, clip)
        assert answer.text == want["text"]
        assert " ".join(word.word for word in answer.words) == want["text"]
        assert [token for segment in answer.segments for token in segment.tokens] == want["tokens"]
        times = [(word.start, word.end) for word in answer.words]
        assert all(0 <= a <= b <= answer.duration for a, b in times) and times == sorted(times)


@pytest.mark.parametrize("head", HEADS)
def test_at_once_equal_alone(client, head):
    clips = CLIPS[:6] + [wav(silence(3)), wav(silence(0.02))]
    alone = [transcribe(client, head, clip).model_dump_json() for clip in clips]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda clip: transcribe(client, head, clip).model_dump_json(),
                             clips)) == alone


def test_tokens_frames_and_durations():
    """tests/gpu/golden_heads.py, which is for a GPU, on the CPU: all three heads, to the frame."""
    done = subprocess.run([sys.executable, ROOT / "tests/gpu/golden_heads.py", BERTH, "--device", "cpu:0"],
                          capture_output=True, text=True, timeout=600,
                          env=dict(os.environ, PYTHONDONTWRITEBYTECODE="1"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("ok  ") == 3
