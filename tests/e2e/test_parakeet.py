"""Parakeet over OpenAI's API with the official client: nano (tests/models/parakeet-nano-en), whose
golden recordings say what it hears."""

import concurrent.futures
import io
import json
import re
import subprocess
import threading
import wave

import openai
import pytest

from conftest import BERTH, ROOT, Berth

MODEL = "parakeet-nano-en"
FOLDER = ROOT / "tests" / "models" / MODEL
GOLDEN = json.loads((FOLDER / "golden" / "golden.json").read_text())


def wav(samples):
    out = io.BytesIO()
    with wave.open(out, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(16000)
        file.writeframes(samples)
    return out.getvalue()


def pcm(index):
    return (FOLDER / "golden" / f"pcm{index}.s16").read_bytes()


def silence(seconds):
    return bytes(int(seconds * 16000) * 2)


CLIPS = [wav(pcm(i)) for i in range(len(GOLDEN))]
MIXED = wav(b"".join(pcm(i % 12) + silence(0.5) for i in range(24)))  # two minutes


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """The folder as it is published (its config.json says what runs it), and one with a config."""
    folder = tmp_path_factory.mktemp("models")
    (folder / MODEL).symlink_to(FOLDER)
    (folder / "short").mkdir()
    (folder / "short" / "1").symlink_to(FOLDER)
    (folder / "short" / "config.pbtxt").write_text(
        'backend: "parakeet"\nparameters { key: "window_seconds" value { string_value: "8" } }\n')
    return folder


@pytest.fixture(scope="module")
def server(models):
    server = Berth(models)
    yield server
    server.stop()


@pytest.fixture(scope="module")
def client(server):
    return openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0)


def transcribe(client, content, **options):
    options = {"model": MODEL, **options}
    return client.audio.transcriptions.create(file=("a.wav", content), **options)


def test_listed(client, server):
    assert {MODEL, "short"} <= {model.id for model in client.models.list()}
    metadata = server.json(f"/v2/models/{MODEL}")
    assert [i["name"] for i in metadata["inputs"]] == ["audio"]


def test_hears_what_the_reference_hears(client):
    for index, golden in enumerate(GOLDEN):
        assert transcribe(client, CLIPS[index]).text == golden["text"]
        assert transcribe(client, CLIPS[index], response_format="text").strip() == golden["text"]


def test_verbose_json_with_words(client):
    for index, golden in enumerate(GOLDEN):
        answer = transcribe(client, CLIPS[index], response_format="verbose_json",
                            timestamp_granularities=["word", "segment"])
        assert answer.language == "english" and abs(answer.duration - golden["samples"] / 16000) < 1e-3
        assert " ".join(w.word for w in answer.words) == golden["text"]
        assert [t for s in answer.segments for t in s.tokens] == golden["tokens"]
        times = [(w.start, w.end) for w in answer.words]
        assert all(0 <= a <= b <= answer.duration for a, b in times) and times == sorted(times)
        for segment in answer.segments:
            assert segment.avg_logprob < 0 and segment.no_speech_prob == 0
            assert segment.compression_ratio > 0 and segment.seek == 0


def test_srt_and_vtt(client):
    srt = transcribe(client, MIXED, model="short", response_format="srt")
    blocks = srt.strip().split("\n\n")
    assert len(blocks) > 12
    for number, block in enumerate(blocks, 1):
        lines = block.split("\n")
        assert lines[0] == str(number)
        assert re.fullmatch(r"\d\d:\d\d:\d\d,\d{3} --> \d\d:\d\d:\d\d,\d{3}", lines[1])
    vtt = transcribe(client, MIXED, model="short", response_format="vtt")
    assert vtt.startswith("WEBVTT\n\n") and vtt.count("-->") == len(blocks)


def test_stream(client):
    """Text comes window by window, and together is the whole."""
    events = list(transcribe(client, MIXED, model="short", stream=True))
    deltas = [event.delta for event in events if event.type == "transcript.text.delta"]
    assert events[-1].type == "transcript.text.done" and len(deltas) > 5
    assert "".join(deltas) == events[-1].text
    assert events[-1].text == transcribe(client, MIXED, model="short").text


def test_eight_of_all_lengths_at_once_equal_alone(client):
    clips = CLIPS[:5] + [MIXED, wav(silence(3)), wav(pcm(0)[:640])]

    def one(clip):
        return transcribe(client, clip, response_format="verbose_json",
                          timestamp_granularities=["word", "segment"]).model_dump_json()

    alone = [one(clip) for clip in clips]
    for _ in range(3):
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            assert list(pool.map(one, clips)) == alone


@pytest.mark.parametrize("name, content", [
    ("silence", silence(40)), ("20 ms", silence(0.02)), ("10 ms of speech", pcm(0)[20000:20320]),
    ("nothing", b"")])
def test_silence_is_an_empty_text(client, name, content):
    assert transcribe(client, wav(content)).text == ""


def test_clipped(client):
    """A square of full scale is answered, whatever it is taken for."""
    loud = b"".join((b"\xff\x7f" if i // 40 % 2 else b"\x00\x80") for i in range(3 * 16000))
    assert isinstance(transcribe(client, wav(loud)).text, str)


@pytest.mark.parametrize("options, param", [
    (dict(language="de"), "language"), (dict(language="elvish"), "language"),
    (dict(prompt="Names: Zaphod"), "prompt"), (dict(temperature=7), "temperature")])
def test_refused_with_the_field(client, options, param):
    with pytest.raises(openai.APIStatusError) as error:
        transcribe(client, CLIPS[0], **options)
    assert error.value.status_code in (400, 501) and error.value.param == param, error.value.body


def test_taken_without_effect(client):
    answer = transcribe(client, CLIPS[0], temperature=0.7, language="en", prompt=" ")
    assert answer.text == GOLDEN[0]["text"]


def test_translation_is_refused(client):
    with pytest.raises(openai.APIStatusError) as error:
        client.audio.translations.create(model=MODEL, file=("a.wav", CLIPS[0]))
    assert error.value.status_code in (400, 501)


def test_hang_up_ends_the_work(client, server):
    """A client that goes away in the middle of a long recording frees its slot."""
    long = wav((pcm(1) + silence(0.3)) * 60)
    impatient = openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0, timeout=0.5)
    threads = [threading.Thread(target=lambda: pytest.raises(
        openai.APITimeoutError, transcribe, impatient, long)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert transcribe(client, CLIPS[0]).text == GOLDEN[0]["text"]
    assert server.alive()


def test_command_line(models, tmp_path):
    path = tmp_path / "clip.wav"
    path.write_bytes(CLIPS[2])
    done = subprocess.run([BERTH, "transcribe", "--models", str(models), "--model", MODEL, str(path)],
                          capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == GOLDEN[2]["text"]


@pytest.mark.parametrize("file, content, name", [
    ("config.json", b"{", "config.json"), ("tokenizer.json", b"{}", "tokenizer.json"),
    ("model.safetensors", b"\x08\0\0\0\0\0\0\0{}      ", "model.safetensors"),
    ("model.safetensors", b"", "model.safetensors")])
def test_broken_folders_name_the_file(models, serve, tmp_path, file, content, name):
    folder = tmp_path / MODEL
    folder.mkdir()
    for path in FOLDER.iterdir():
        if path.name != file:
            (folder / path.name).symlink_to(path)
    (folder / file).write_bytes(content)
    if file == "config.json":
        (folder / "config.pbtxt").write_text('backend: "parakeet"\n')
    server = serve(tmp_path)
    with pytest.raises(openai.APIStatusError) as error:
        transcribe(openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0), CLIPS[0])
    assert name in error.value.message and server.alive()
