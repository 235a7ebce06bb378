"""Parakeet over HTTP, as its users meet it: cold, warm, under load, after a crash, for an hour.

usage: serve.py --berth PROGRAM [--cuda-worker PROGRAM] [--folder MODEL] [--out DIR]
                [--minutes 60] [--clients 1,8,64,128] [--seconds 6]

Serves parakeet-nano-en (window_seconds 12) and, with --folder, that model as `large`. Without
--cuda-worker all of it runs on the CPU. Printed, as Markdown, and written to DIR/serve.md:

1. the twelve golden recordings alone and at once: how often the text is the reference's;
2. what a request waits that finds `large` cold beside a running worker, and the next ones;
3. `berth bench transcribe` with 10 s recordings, by number of clients;
4. time from the kill of the GPU's process to the next right answer;
5. one request of --minutes: the golden recordings in turn, 5.5 to 7 s of silence after each; its
   words beside those that each recording gives alone, before silence as well (features are
   normalised over a window, so silence counts); word errors of both, and of the bare recordings,
   against what was spoken. Once with all recordings begun on the encoder's grid of frames, where
   the words must be the very same, and once at any sample, where a small model's words vary. Then
   the highest memory of the processes.

Exits with 1 if a text or a word is not as it should be.
"""
import argparse
import bisect
import concurrent.futures
import datetime
import http.client
import io
import itertools
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import wave

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from common import ROOT, Failure, Server, free_port, number, run, table  # noqa: E402
from speech import word_edits, words  # noqa: E402

NANO = ROOT / "tests/models/parakeet-nano-en"
RATE, SAMPLE_BYTES = 16000, 2
CLIP_S = 10
WINDOW_S = 12
FRAME = 1280  # samples of an encoder frame; windows begin at one
EARLY_S = 0.1  # a word may begin a frame before its recording
PAUSES_S = (5.5, 6.1, 6.7, 7.0)
GOLDENS_WANTED = 11  # of 12: halves may round one away
BOUNDARY = "berth-bench-parakeet"


def wav(samples):
    out = io.BytesIO()
    with wave.open(out, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(SAMPLE_BYTES)
        file.setframerate(RATE)
        file.writeframes(samples)
    return out.getvalue()


def transcribe(server, model, recording, **fields):
    """The answer as JSON, its Server-Timing, and the seconds from asking to having."""
    parts = [f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'
             for name, value in {"model": model, "response_format": "json", **fields}.items()]
    head = "".join(parts) + (f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="file"; '
                             'filename="a.wav"\r\n\r\n')
    body = head.encode() + recording + f"\r\n--{BOUNDARY}--\r\n".encode()
    connection = http.client.HTTPConnection(server.url, timeout=900)
    begun = time.monotonic()
    try:
        connection.request("POST", "/v1/audio/transcriptions", body,
                           {"Content-Type": f"multipart/form-data; boundary={BOUNDARY}"})
        answer = connection.getresponse()
        text, took_s = answer.read(), time.monotonic() - begun
    except (OSError, http.client.HTTPException) as error:
        raise Failure(f"{model}: {error}") from None
    finally:
        connection.close()
    if answer.status != 200:
        raise Failure(f"{model}: {answer.status}: {text[:200].decode(errors='replace')}")
    return json.loads(text), answer.getheader("Server-Timing") or "", took_s


def repository(folder, large):
    version = folder / "parakeet-nano-en/1"
    version.mkdir(parents=True)
    for path in NANO.iterdir():
        if path.is_file():
            shutil.copy(path, version)
    (folder / "parakeet-nano-en/config.pbtxt").write_text(
        'backend: "parakeet"\nparameters { key: "window_seconds" '
        f'value {{ string_value: "{WINDOW_S}" }} }}\n')
    if large is not None:
        version = folder / "large/1"
        version.mkdir(parents=True)
        for path in large.iterdir():
            if path.suffix in (".json", ".safetensors"):
                try:
                    os.link(path, version / path.name)
                except OSError:
                    shutil.copy(path, version)
        (folder / "large/config.pbtxt").write_text('backend: "parakeet"\n')


def goldens(server, clips, report):
    wanted = [golden["text"] for golden in json.loads((NANO / "golden/golden.json").read_text())]
    first_s = transcribe(server, "parakeet-nano-en", wav(clips[0]))[2]

    def text(clip):
        return transcribe(server, "parakeet-nano-en", wav(clip))[0]["text"]
    alone = [text(clip) for clip in clips]
    with concurrent.futures.ThreadPoolExecutor(len(clips)) as pool:
        together = list(pool.map(text, clips))
    right = [sum(map(str.__eq__, texts, wanted)) for texts in (alone, together)]
    report.append(f"Golden recordings with the reference's text: {right[0]} of 12 alone, {right[1]} of 12 at once. "
                  f"The first answer, model cold: {first_s:.2f} s.")
    return min(right) >= GOLDENS_WANTED


def cold(server, clip, report):
    _, timing, took_s = transcribe(server, "large", wav(clip))
    later = sorted(transcribe(server, "large", wav(clip))[2] for _ in range(5))
    report.append(f"First answer of a model that was not loaded, {CLIP_S} s of sound: {took_s:.3f} s "
                  f"(`{timing}`); the five after it: {later[0] * 1e3:.1f} to {later[-1] * 1e3:.1f} ms.")


def load(server, options, model, clips, folder, report):
    files = []
    for i, clip in enumerate(clips):
        path = folder / f"{i}.wav"
        path.write_bytes(wav((clip * (1 + CLIP_S * RATE * SAMPLE_BYTES // len(clip)))[:CLIP_S * RATE * SAMPLE_BYTES]))
        files.append(str(path))
    rows = []
    for clients in options.clients.split(","):
        command = [options.berth, "bench", "transcribe", "--url", f"http://{server.url}", "--model", model,
                   "--concurrency", clients, "--warmup", "4s", "--duration", f"{options.seconds}s", "--json"]
        answer = json.loads(run([*command, *files], timeout_s=120))
        if set(answer["statuses"]) != {"200"}:
            raise Failure(f"{clients} clients: {answer['statuses']}")
        rows.append([clients, number(answer["requests_per_s"]), number(answer["requests_per_s"] * CLIP_S),
                     number(answer["p50_ms"]), number(answer["p99_ms"])])
    report.append(f"`berth bench transcribe --model MODEL --concurrency C --warmup 4s --duration {options.seconds}s FILE...`, "
                  f"{model}, {CLIP_S} s recordings:")
    report.append(table(["clients", "requests/s", "audio s/s", "p50 ms", "p99 ms"], rows))


def worker_pid(server):
    for entry in os.listdir("/proc"):
        try:
            command = pathlib.Path(f"/proc/{entry}/cmdline").read_bytes() if entry.isdigit() else b""
            parent = int(pathlib.Path(f"/proc/{entry}/stat").read_text().rsplit(")", 1)[1].split()[1]) if command else 0
        except OSError:
            continue
        if parent == server.pid and b"berth-cuda" in command:
            return int(entry)
    raise Failure("the server has no process for the GPU")


def crash(server, clip, report):
    """The kill, then one request after another until one is answered."""
    wanted = transcribe(server, "parakeet-nano-en", wav(clip))[0]["text"]
    os.kill(worker_pid(server), signal.SIGKILL)
    begun, refused = time.monotonic(), 0
    while True:
        try:
            text = transcribe(server, "parakeet-nano-en", wav(clip))[0]["text"]
            break
        except Failure:
            refused += 1
            if time.monotonic() - begun > 30:
                raise
    report.append(f"After kill -9 of the GPU's process: {refused} requests refused, the right text "
                  f"{time.monotonic() - begun:.2f} s later.")
    return text == wanted


def silence(seconds):
    return bytes(int(seconds * RATE) * SAMPLE_BYTES)


def timed_words(answer):
    return [word["word"].strip() for word in answer["words"]]


def highest_mib(pid):
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) >> 10


def in_turn(clips, minutes, grid):
    """The recordings in turn, each begun at a multiple of grid samples: the sound, whose turn it is, and when."""
    sound, turns, starts_s = bytearray(), [], []
    for i, pause_s in zip(itertools.cycle(range(len(clips))), itertools.cycle(PAUSES_S)):
        if len(sound) >= minutes * 60 * RATE * SAMPLE_BYTES:
            return bytes(sound), turns, starts_s
        turns.append(i)
        starts_s.append(len(sound) / RATE / SAMPLE_BYTES)
        sound += clips[i] + silence(pause_s)
        sound += bytes(-len(sound) % (grid * SAMPLE_BYTES))


def hour(server, clips, minutes, pids, report):
    form = {"response_format": "verbose_json", "timestamp_granularities[]": "word"}

    def heard(sound):
        return transcribe(server, "parakeet-nano-en", wav(sound), **form)

    def errors(turns, texts):
        return sum(word_edits(" ".join(text), spoken[i]) for i, text in zip(turns, texts))
    # As much silence as makes it longer than a window: it is then cut like the long recording.
    alone = [timed_words(heard(clip + silence(WINDOW_S))[0]) for clip in clips]
    bare = [timed_words(heard(clip)[0]) for clip in clips]
    spoken = [golden["reference"] for golden in json.loads((NANO / "golden/golden.json").read_text())]
    good = True
    for grid in (FRAME, 1):
        sound, turns, starts_s = in_turn(clips, minutes, grid)
        answer, timing, took_s = heard(sound)
        found = [[] for _ in turns]
        for word, text in zip(answer["words"], timed_words(answer)):
            found[bisect.bisect(starts_s, word["start"] + EARLY_S) - 1].append(text)
        same = sum(len(alone[i]) for i, text in zip(turns, found) if text == alone[i])
        total = sum(len(alone[i]) for i in turns)
        good &= all(found) and (grid == 1 or same == total)
        report.append(
            f"One request of {len(sound) / RATE / SAMPLE_BYTES / 60:.1f} minutes ({len(sound) >> 20:,} MiB of samples), each "
            f"recording begun {'at any sample' if grid == 1 else 'at a frame'}: {took_s:.2f} s from upload to answer "
            f"(`{timing}`). {same:,} of {total:,} words are in recordings that say, word for word, what they say alone. "
            f"Of {sum(len(words(spoken[i])) for i in turns):,} words spoken {errors(turns, found):,} are wrong; of the recordings "
            f"alone before silence {errors(turns, [alone[i] for i in turns]):,}, as they are "
            f"{errors(turns, [bare[i] for i in turns]):,}.")
    report.append("Highest memory: " + ", ".join(f"{name} {highest_mib(pid):,} MiB" for name, pid in pids.items()) + ".")
    return good


def machine():
    text = f"{os.cpu_count()} cores"
    try:
        text += ", " + subprocess.run(["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"],
                                      check=True, capture_output=True, text=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        pass
    return text


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--berth", required=True)
    parser.add_argument("--cuda-worker", default="none")
    parser.add_argument("--folder", type=pathlib.Path)
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--clients", default="1,8,64,128")
    parser.add_argument("--seconds", type=int, default=6)
    options = parser.parse_args()
    clips = [(NANO / f"golden/pcm{i}.s16").read_bytes() for i in range(12)]
    report = ["## Parakeet over HTTP", f"- machine: {machine()}\n- date: {datetime.date.today()}\n"
              f"- command: `bench/parakeet/serve.py {' '.join(sys.argv[1:])}`"]
    good = []
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        repository(folder / "models", options.folder)
        port = free_port()
        command = [options.berth, "serve", "--models", str(folder / "models"), "--listen", f"127.0.0.1:{port}",
                   "--cuda-worker", options.cuda_worker]
        with Server("parakeet", command, port) as server:
            good.append(goldens(server, clips, report))
            pids = {"server": server.pid}
            if options.cuda_worker != "none":
                pids["the GPU's process"] = worker_pid(server)
            good.append(hour(server, clips, options.minutes, pids, report))
            if options.folder is not None:
                cold(server, (clips[2] * 3)[:CLIP_S * RATE * SAMPLE_BYTES], report)
            load(server, options, "large" if options.folder else "parakeet-nano-en", clips, folder, report)
            if options.cuda_worker != "none":
                good.append(crash(server, clips[0], report))
    text = "\n\n".join(report) + "\n"
    print(text)
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / "serve.md").write_text(text)
    return 0 if all(good) else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Failure as failure:
        sys.exit(f"serve.py: {failure}")
