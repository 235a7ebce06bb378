"""Parakeet over OpenAI's API with the official client: nano (tests/models/parakeet-nano-en), whose
golden recordings say what it hears."""

import concurrent.futures
import io
import json
import re
import struct
import subprocess
import wave

import openai
import pytest

from conftest import BERTH, ROOT, Berth, wait_until

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
    ("a sample", bytes(2))])
def test_silence_is_an_empty_text(client, name, content):
    assert transcribe(client, wav(content)).text == ""


def sized(data_size, riff_size=None, samples=None):
    """A WAV of speech whose header says these sizes, whatever comes."""
    whole = CLIPS[0] if samples is None else wav(samples)
    riff = len(whole) - 8 if riff_size is None else riff_size
    return whole[:4] + struct.pack("<I", riff) + whole[8:40] + struct.pack("<I", data_size) + whole[44:]


BYTES = len(CLIPS[0]) - 44
EMPTY = "no audio: "
NOT_WHOLE = [
    ("half of it", CLIPS[0][:44 + BYTES // 2], f"promises {BYTES} bytes of audio, {BYTES // 2} came"),
    ("a byte short", CLIPS[0][:-1], f"promises {BYTES} bytes of audio, {BYTES - 1} came"),
    ("its header alone", CLIPS[0][:44], f"promises {BYTES} bytes of audio, 0 came"),
    ("too much promised", sized(2 * BYTES), f"promises {2 * BYTES} bytes of audio, {BYTES} came"),
    ("too much in a stream's header", sized(2 * BYTES, 0xFFFFFFFF), f"promises {2 * BYTES} bytes"),
    ("no sample", wav(b""), EMPTY), ("a stream of no sample", sized(0xFFFFFFFF, 0xFFFFFFFF, b""), EMPTY),
    ("half a sample", wav(b"")[:40] + struct.pack("<I", 1) + b"x", EMPTY), ("no byte", b"", EMPTY),
]


@pytest.mark.parametrize("name, content, says", NOT_WHOLE, ids=[case[0] for case in NOT_WHOLE])
def test_what_is_not_whole_is_refused(client, models, tmp_path, name, content, says):
    """By the API with and without a stream, and by the command."""
    for stream in (False, True):
        with pytest.raises(openai.BadRequestError) as error:
            list(transcribe(client, content, stream=stream))
        assert error.value.param == "file" and error.value.type == "invalid_request_error"
        assert says in error.value.body["message"], error.value.body
    (tmp_path / "a.wav").write_bytes(content)
    done = subprocess.run([BERTH, "transcribe", "--models", models, "--model", MODEL, tmp_path / "a.wav"],
                          capture_output=True, text=True, check=False)
    assert done.returncode == 1 and done.stdout == "" and "a.wav: " in done.stderr
    assert says in done.stderr


@pytest.mark.parametrize("data_size, riff_size", [(0, 0), (0, 36), (0, 0xFFFFFFFF), (0xFFFFFFFF, 0xFFFFFFFF),
                                                  (0xFFFFFFFF, 0), (0x7FFFF000, 0x7FFFF024), (BYTES, 0)])
def test_headers_that_a_stream_left_open(client, data_size, riff_size):
    assert transcribe(client, sized(data_size, riff_size)).text == GOLDEN[0]["text"]


@pytest.mark.parametrize("binary", [False, True])
def test_samples_are_needed_by_kserve_too(server, binary):
    """FP32 samples: none is a mistake, one is silence."""
    for count, status in ((0, 400), (1, 200)):
        tensor = {"name": "audio", "shape": [count], "datatype": "FP32"}
        tensor |= {"parameters": {"binary_data_size": 4 * count}} if binary else {"data": [0.0] * count}
        head = json.dumps({"inputs": [tensor]}).encode()
        got, _, body = server.call("POST", f"/v2/models/{MODEL}/infer", head + bytes(4 * count if binary else 0),
                                   {"Inference-Header-Content-Length": str(len(head))} if binary else {})
        assert got == status, body
        assert count or "no audio: " in json.loads(body)["error"]


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
    """Clients that go away in the middle of a long recording free their slots."""
    body = (b'--XX\r\nContent-Disposition: form-data; name="model"\r\n\r\n' + MODEL.encode() +
            b'\r\n--XX\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\n\r\n' +
            wav((pcm(1) + silence(0.3)) * 360) + b"\r\n--XX--\r\n")
    head = (f"POST /v1/audio/transcriptions HTTP/1.1\r\nHost: a\r\nContent-Length: {len(body)}\r\n"
            "Content-Type: multipart/form-data; boundary=XX\r\n\r\n").encode()
    before = server.metric("berth_cancelled_requests_total")
    socks = [server.connect() for _ in range(3)]
    for sock in socks:
        sock.sendall(head + body)
    wait_until(lambda: server.metric("berth_running_requests") > 0)
    for sock in socks:
        sock.close()
    wait_until(lambda: server.metric("berth_cancelled_requests_total") > before)
    server.wait_metric("berth_running_requests", 0)
    server.wait_metric("berth_queued_requests", 0)
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
