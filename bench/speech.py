"""Speech to text: berth over HTTP beside faster-whisper in its own process, Whisper tiny.en, int8.

8 clients on 2 cores send the same recordings in turn. faster-whisper has no server, so its figures
hold no HTTP and no decoding of files; berth's hold both. Its forms are measured in every round, and
berth is set against the one that is the best by its median.
"""
import http.client
import json
import os
import re

from common import (
    BERTH, DEPS, PEERS, QUICK, VENV, Failure, berth, median, missing, number, run, say, spread, table)

CLIPS = [DEPS / "speech" / f"{name}.wav"
         for name in ("beckett", "clone-test", "endgame_nagg_nell", "two_cities")]
CLIENTS, CORES = 8, 2
ROUNDS = 1 if QUICK else 3
WARMUP_S, DURATION_S = (2, 6) if QUICK else (4, 16)
MODEL = "whisper-tiny.en"
FORMS = {  # of faster_whisper_peer.py. Most recordings fill one batch: its size makes no difference
    "2 threads": "one model, 2 threads",
    "2 workers": "num_workers=2, 1 thread each",
    "batched, 8": "BatchedInferencePipeline, 2 threads, batch_size 8",
    "batched, 2 workers": "BatchedInferencePipeline, num_workers=2, batch_size 8",
}


def berth_command(url):
    return [str(BERTH), "bench", "transcribe", "--url", f"http://{url}", "--model", MODEL,
            "--concurrency", str(CLIENTS), "--warmup", f"{WARMUP_S}s", "--duration",
            f"{DURATION_S}s", "--json", *map(str, CLIPS)]


def peer_command(form):
    return [str(VENV / "bin/python"), str(PEERS.parent.parent / "bench/faster_whisper_peer.py"),
            str(PEERS / MODEL), form, str(CLIENTS), str(WARMUP_S), str(DURATION_S), *map(str, CLIPS)]


def load_berth(server):
    answer = json.loads(run(berth_command(server.url), timeout_s=300))
    if set(answer["statuses"]) != {"200"}:
        raise Failure(f"berth answered {answer['statuses']}")
    return answer


def load_peer(form):
    return json.loads(run(peer_command(form), timeout_s=600).splitlines()[-1])


def text_of_berth(server, path, model=MODEL):
    """The text of one recording, through the API."""
    boundary = "berth-bench"
    head = (f'--{boundary}\r\nContent-Disposition: form-data; name="model"\r\n\r\n{model}\r\n'
            f'--{boundary}\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\n\r\n')
    body = head.encode() + path.read_bytes() + f"\r\n--{boundary}--\r\n".encode()
    connection = http.client.HTTPConnection(server.url, timeout=300)
    try:
        connection.request("POST", "/v1/audio/transcriptions", body,
                           {"Content-Type": f"multipart/form-data; boundary={boundary}"})
        answer = connection.getresponse()
        text = answer.read().decode()
    finally:
        connection.close()
    if answer.status != 200:
        raise Failure(f"berth answered {answer.status}: {text[:200]}")
    return json.loads(text)["text"]


def words(text):
    return re.sub(r"[^a-z0-9' ]", "", text.lower().replace("-", " ")).split()


def word_edits(text, reference):
    """Insertions, deletions and substitutions, case and punctuation ignored."""
    ours, theirs = words(text), words(reference)
    row = list(range(len(theirs) + 1))
    for i, word in enumerate(ours, 1):
        diagonal, row[0] = row[0], i
        for j, other in enumerate(theirs, 1):
            diagonal, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, diagonal + (word != other))
    return row[-1]


def errors(texts, references):
    edits = sum(map(word_edits, texts, references))
    count = sum(len(words(reference)) for reference in references)
    return f"{edits} of {count} ({100 * edits / count:.1f} %)"


def speech():
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, cores[:CORES])  # of all that is started from here, on both sides
    try:
        return measure()
    finally:
        os.sched_setaffinity(0, cores)


def measure():
    absent = [path.name for path in CLIPS if not path.exists()]
    if absent:
        raise Failure(f"recordings are missing ({', '.join(absent)}): make models")
    reason = missing("faster-whisper")
    forms = [] if reason else list(FORMS)
    ours, peers, texts = [], {form: [] for form in forms}, {}
    with berth("--load-model", MODEL) as server:
        texts["berth"] = [text_of_berth(server, path) for path in CLIPS]
        for i in range(ROUNDS):
            say(f"speech: round {i + 1} of {ROUNDS}")
            ours.append(load_berth(server))
            for form in forms:
                result = load_peer(form)
                peers[form].append(result)
                texts[form] = result["texts"]
    rows, goals, best = [], [], None
    if forms:
        command = [*peer_command("text")[:4], "float32", *map(str, CLIPS)]
        reference = json.loads(run(command, timeout_s=600).splitlines()[-1])["texts"]
        best = max(forms, key=lambda form: median([r["audio_per_s"] for r in peers[form]]))
        ratios = [a["audio_per_s"] / b["audio_per_s"] for a, b in zip(ours, peers[best])]
        goals.append((f"speech, {CLIENTS} clients on {CORES} cores: audio seconds a second against "
                      f"faster-whisper at its best ({FORMS[best]})", ">= 1.5", ratios))

    def row(name, results, text):
        return [name, spread([r["audio_per_s"] for r in results]),
                spread([r["audio_per_s"] / b["audio_per_s"] for r, b in zip(results, peers[best])])
                if best else "-",
                number(median([r["p50_ms"] for r in results]) / 1e3), text]
    rows.append(row("**berth**, over HTTP", ours, errors(texts["berth"], reference) if best else "-"))
    rows += [row("faster-whisper: " + FORMS[form], peers[form], errors(texts[form], reference))
             for form in forms]
    head = ["server", "audio s/s", "ratio to faster-whisper's best", "p50 s", "word errors"]
    note = f"faster-whisper could not be installed here ({reason}).\n" if reason else ""
    clips = " ".join(path.name for path in CLIPS)
    return f"""Whisper tiny.en, int8, beam 1, {CLIENTS} clients in a closed loop on {CORES} cores, recordings in turn
({clips}; the moonshine-voice wheel's). berth over HTTP, decoding of the files included; peer:
faster-whisper (ctranslate2), in-process, on samples decoded beforehand, previous text as context and temperature fallback
at their defaults as in berth. {ROUNDS} rounds of {DURATION_S} s after {WARMUP_S} s. Word errors: edits against faster-whisper float32, case and
punctuation ignored.
{note}
Commands: `build/berth bench transcribe --url http://ADDR:PORT --model {MODEL} --concurrency {CLIENTS} --warmup {WARMUP_S}s --duration {DURATION_S}s FILE...`;
`.deps/peers/venv/bin/python bench/faster_whisper_peer.py .deps/peers/{MODEL} FORM {CLIENTS} {WARMUP_S} {DURATION_S} FILE...`

{table(head, rows)}
""", goals


def versions():
    if missing("faster-whisper"):
        return {}
    text = run([str(VENV / "bin/python"), "-c",
                "from importlib.metadata import version as v\n"
                "for n in ('faster-whisper', 'ctranslate2', 'numpy'): print(n, v(n))"])
    return dict(line.split() for line in text.splitlines())
