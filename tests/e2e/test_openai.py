"""OpenAI's audio API with the official client."""

import concurrent.futures
import io
import json
import re
import struct
import wave

import openai
import pytest

from conftest import DATA, word_errors, words_of

MODEL = "whisper-tiny.en"
EXPECTED = (DATA / "expected" / "two_cities.ts.float32.txt").read_text()


@pytest.fixture(scope="module")
def client(speech_server):
    return openai.OpenAI(base_url=speech_server.url + "/v1", api_key="none", max_retries=0)


def wav(seconds, value=0, rate=16000):
    """A WAV of a constant or, with a function of the index, of anything."""
    out = io.BytesIO()
    with wave.open(out, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        samples = [value(i) if callable(value) else value for i in range(int(seconds * rate))]
        file.writeframes(struct.pack(f"<{len(samples)}h", *samples))
    return out.getvalue()


def transcribe(client, speech, name="two_cities.wav", **options):
    with open(speech / name, "rb") as file:
        return client.audio.transcriptions.create(model=options.pop("model", MODEL), file=file, **options)


def test_models(client):
    assert MODEL in [model.id for model in client.models.list()]
    assert client.models.retrieve(MODEL).id == MODEL
    with pytest.raises(openai.NotFoundError) as error:
        client.models.retrieve("nope")
    assert error.value.param == "model"


def test_text_within_two_percent(client, speech):
    text = transcribe(client, speech, response_format="text")
    want = words_of(EXPECTED)
    assert word_errors(want, words_of(text)) <= 0.02 * len(want), text
    assert transcribe(client, speech).text.strip() == text.strip()


def test_verbose_json_with_words(client, speech):
    answer = transcribe(client, speech, response_format="verbose_json",
                        timestamp_granularities=["word", "segment"])
    assert answer.language == "english" and abs(answer.duration - 44.4) < 0.2
    assert "".join(s.text for s in answer.segments).strip() == answer.text.strip()
    assert words_of(" ".join(w.word for w in answer.words)) == words_of(answer.text)
    times = [(w.start, w.end) for w in answer.words]
    assert all(0 <= a <= b <= answer.duration + 0.5 for a, b in times)
    assert times == sorted(times)
    for segment in answer.segments:
        assert segment.avg_logprob < 0 and 0 <= segment.no_speech_prob <= 1
        assert segment.tokens and segment.compression_ratio > 0


def test_srt_and_vtt(client, speech):
    srt = transcribe(client, speech, response_format="srt")
    blocks = srt.strip().split("\n\n")
    for number, block in enumerate(blocks, 1):
        lines = block.split("\n")
        assert lines[0] == str(number)
        assert re.fullmatch(r"\d\d:\d\d:\d\d,\d{3} --> \d\d:\d\d:\d\d,\d{3}", lines[1])
    vtt = transcribe(client, speech, response_format="vtt")
    assert vtt.startswith("WEBVTT\n\n") and vtt.count("-->") == len(blocks)


def test_stream(client, speech):
    events = list(transcribe(client, speech, stream=True))
    deltas = [event.delta for event in events if event.type == "transcript.text.delta"]
    assert events[-1].type == "transcript.text.done" and len(deltas) > 1
    assert "".join(deltas).strip() == events[-1].text.strip()


def test_prompt_and_temperature_are_taken(client, speech):
    text = transcribe(client, speech, response_format="text", prompt="Charles Dickens.", temperature=0.2,
                      language="en")
    assert word_errors(words_of(EXPECTED), words_of(text)) <= 0.1 * len(words_of(EXPECTED))


@pytest.mark.parametrize("options", [
    dict(chunking_strategy="auto"), dict(chunking_strategy={"type": "server_vad", "threshold": 0.5}),
    dict(include=[]), dict(extra_body={"chunking_strategy": '{"threshold": 0.5, "type": "server_vad"}'}),
    dict(extra_body={"no_such_field": "x", "known_speaker_names[]": "y"})])
def test_fields_without_effect(client, options):
    assert client.audio.transcriptions.create(model=MODEL, file=("a.wav", wav(1)), **options).text == ""


@pytest.mark.parametrize("value", [b"{}", b"{\"type\": \"server_vad\"", b"[]", b"{\"type\": 1}", b"Auto", b"auto ", b"server_vad",
                                   b"[" * 60000, b"{\"type\": \"server_vad\", \"type\": \"x\"}"])
def test_chunking_strategies_that_are_none(speech_server, value):
    status, error = post(speech_server, form(("model", MODEL.encode()), ("chunking_strategy", value), ("file", wav(1))))
    assert status == 400 and error["param"] == "chunking_strategy", error


def test_eight_different_at_once_equal_alone(client, speech):
    names = sorted(path.name for path in speech.glob("*.wav"))
    clips = [(name, (speech / name).read_bytes()) for name in names]
    clips += [("silence.wav", wav(8)), ("loud.wav", wav(8, lambda i: 32767 if i // 40 % 2 else -32768)),
              ("short.wav", wav(0.05)), ("again.wav", clips[0][1])]

    def one(clip):
        return client.audio.transcriptions.create(model=MODEL, file=clip, response_format="verbose_json").text

    alone = [one(clip) for clip in clips[:8]]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        together = list(pool.map(one, clips[:8]))
    assert together == alone


@pytest.mark.parametrize("name, content", [("silence", wav(5)), ("50 ms", wav(0.05)), ("a sample", wav(1 / 16000))])
def test_silence_is_an_empty_text(client, name, content):
    answer = client.audio.transcriptions.create(model=MODEL, file=("a.wav", content))
    assert answer.text == "" or name == "50 ms"


REFUSED = [
    ("unknown model", dict(model="nope"), 404, "model"),
    ("bad format", dict(response_format="yaml"), 400, "response_format"),
    ("bad temperature", dict(temperature=7), 400, "temperature"),
    ("another language", dict(language="de"), 400, "language"),
    ("log probabilities", dict(include=["logprobs"]), 400, "include[]"),
    ("chunks by another rule", dict(chunking_strategy="never"), 400, "chunking_strategy"),
    ("chunks by another object", dict(chunking_strategy={"type": "client_vad"}), 400, "chunking_strategy"),
    ("a model that does not hear", dict(model="identity"), 400, "model"),
]


@pytest.mark.parametrize("name, options, status, param", REFUSED, ids=[case[0] for case in REFUSED])
def test_refused_with_the_field(client, name, options, status, param):
    options = {"model": MODEL, **options}
    with pytest.raises(openai.APIStatusError) as error:
        client.audio.transcriptions.create(file=("a.wav", wav(1)), **options)
    assert error.value.status_code == status and error.value.param == param, error.value.body


def test_translation_is_refused(client):
    with pytest.raises(openai.APIStatusError) as error:
        client.audio.translations.create(model=MODEL, file=("a.wav", wav(1)))
    assert error.value.status_code in (400, 501)


@pytest.mark.parametrize("name, content", [
    ("not audio", b"this is not audio at all" * 100), ("empty", b""), ("riff only", b"RIFF\x00\x00"),
    ("a picture", b"\x89PNG\r\n\x1a\n" + bytes(500)), ("zeros", bytes(100000))])
def test_not_audio(client, name, content):
    with pytest.raises(openai.APIStatusError) as error:
        client.audio.transcriptions.create(model=MODEL, file=("a.bin", content))
    assert error.value.status_code in (400, 415) and error.value.param == "file"


def form(*parts, boundary=b"XX"):
    body = b""
    for name, value in parts:
        extra = b'; filename="a.wav"' if name == "file" else b""
        body += b"--" + boundary + b'\r\nContent-Disposition: form-data; name="' + name.encode() + b'"' + extra + \
            b"\r\n\r\n" + value + b"\r\n"
    return body + b"--" + boundary + b"--\r\n"


def post(server, body, content_type="multipart/form-data; boundary=XX"):
    status, _, text = server.call("POST", "/v1/audio/transcriptions", body, {"Content-Type": content_type})
    return status, json.loads(text).get("error") if status != 200 else text


def test_fields_in_any_order(speech_server):
    fields = [("file", wav(1)), ("model", MODEL.encode()), ("response_format", b"text")]
    for order in ((0, 1, 2), (2, 1, 0), (1, 0, 2)):
        assert post(speech_server, form(*[fields[i] for i in order]))[0] == 200


@pytest.mark.parametrize("name, body, content_type, status", [
    ("wrong boundary", form(("model", b"x")), "multipart/form-data; boundary=YY", 400),
    ("no boundary", form(("model", b"x")), "multipart/form-data", 400),
    ("json instead", b"{}", "application/json", 400),
    ("no file", form(("model", MODEL.encode())), "multipart/form-data; boundary=XX", 400),
    ("no model", form(("file", wav(1))), "multipart/form-data; boundary=XX", 400),
    ("cut", form(("model", MODEL.encode()), ("file", wav(1)))[:-20], "multipart/form-data; boundary=XX", 400),
    ("empty", b"", "multipart/form-data; boundary=XX", 400),
    ("not UTF-8", form(("model", b"\xff\xfe"), ("file", wav(1))), "multipart/form-data; boundary=XX", 400),
    ("two files", form(("file", wav(1)), ("file", wav(1)), ("model", MODEL.encode())),
     "multipart/form-data; boundary=XX", 400),
    ("words without verbose_json", form(("model", MODEL.encode()), ("timestamp_granularities[]", b"word"),
                                        ("file", wav(1))), "multipart/form-data; boundary=XX", 400),
])
def test_bad_forms(speech_server, name, body, content_type, status):
    got, error = post(speech_server, body, content_type)
    assert got == status, error
    assert error["message"] and error["type"] == "invalid_request_error"
    assert speech_server.get("/health")[0] == 200


def test_forgotten_at_sign_is_told(speech_server):
    body = form(("model", MODEL.encode()), ("file", b"two_cities.wav"))
    got, error = post(speech_server, body.replace(b'; filename="a.wav"', b""))
    assert got == 415 and error["message"].endswith("did you mean file=@PATH?")
    got, error = post(speech_server, body)
    assert got == 415 and "@PATH" not in error["message"]
    body = form(("model", MODEL.encode()), ("file", wav(1)))
    assert post(speech_server, body.replace(b'; filename="a.wav"', b""))[0] == 200


@pytest.mark.parametrize("name", ["model", "response_format", "temperature", "stream", "timestamp_granularities[]",
                                  "language", "prompt"])
@pytest.mark.parametrize("value", [b"\0", b"en\0de", b"\xff", b"x" * 1000000])
def test_fields_are_text_and_no_nul(speech_server, name, value):
    got, error = post(speech_server, form((name, value), ("model", MODEL.encode()), ("file", wav(1))))
    assert got == (413 if len(value) > 9 else 400) and error["param"] == name and name in error["message"]


@pytest.mark.parametrize("value", [b"", b" ", b" 0.5", b"0.5 ", b"\n1", b"0x1", b"0x.8p0", b"nan", b"inf", b"1e", b"-", b".", b"-0.1",
                                   b"1.0001", b"1e9999", b"0,5"])
def test_a_temperature_is_a_decimal_from_0_to_1(speech_server, value):
    parts = [("model", MODEL.encode()), ("temperature", value), ("file", wav(0.05))]
    got, error = post(speech_server, form(*parts))
    assert got == 400 and error["param"] == "temperature", error


@pytest.mark.parametrize("value", [b"0", b"1", b"0.", b".5", b"+0.5", b"5e-1", b"5E-1", b"1e-9999"])
def test_temperatures_are_taken(speech_server, value):
    parts = [("model", MODEL.encode()), ("temperature", value), ("file", wav(0.05))]
    assert post(speech_server, form(*parts))[0] == 200


@pytest.mark.parametrize("name", ["prompt\0", "\0", "mo\0del"])
def test_names_of_fields_have_no_nul(speech_server, name):
    got, error = post(speech_server, form((name, b"x"), ("model", MODEL.encode()), ("file", wav(1))))
    assert got == 400 and "control byte" in error["message"]


def test_too_long_is_told_before_decoding(speech_models, serve):
    server = serve(speech_models, "--audio-max", "10s")
    got, error = post(server, form(("model", MODEL.encode()), ("file", wav(11))))
    assert got == 413 and error["param"] == "file"


def test_server_timing(speech_server):
    status, headers, _ = speech_server.call(
        "POST", "/v1/audio/transcriptions", form(("model", MODEL.encode()), ("file", wav(1))),
        {"Content-Type": "multipart/form-data; boundary=XX", "X-Request-Id": "r-1"})
    assert status == 200 and headers["X-Request-Id"] == "r-1"
    assert {"receive", "decode", "run", "total"} <= {p.split(";")[0] for p in headers["Server-Timing"].split(", ")}
