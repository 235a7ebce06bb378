"""faster-whisper in this process under the load that `berth bench transcribe` makes.

usage: faster_whisper_peer.py MODEL FORM CLIENTS WARMUP_S DURATION_S FILE...
       faster_whisper_peer.py MODEL text COMPUTE FILE...    transcripts, one after the other

CLIENTS threads each transcribe the next file, in turn, as soon as they have their last text. A file
counts by the share of its time that lies between the warm-up and the end, as in `berth bench`.
Prints JSON. Files are given as samples, decoded beforehand: decoding is not charged to this side.
"""
import itertools
import json
import sys
import threading
import time

from faster_whisper import BatchedInferencePipeline, WhisperModel
from faster_whisper.audio import decode_audio

RATE = 16000
# form: (threads of a call, calls at a time, batch size of the batched pipeline or None)
FORMS = {
    "2 threads": (2, 1, None),
    "2 workers": (1, 2, None),
    "batched, 8": (2, 1, 8),
    "batched, 2 workers": (1, 2, 8),
}


def make(folder, form):
    threads, workers, batch = FORMS[form]
    model = WhisperModel(folder, device="cpu", compute_type="int8", cpu_threads=threads,
                         num_workers=workers)
    options = dict(beam_size=1, language="en")
    if batch is None:
        return lambda audio: text_of(model.transcribe(audio, **options))
    batched = BatchedInferencePipeline(model)
    return lambda audio: text_of(batched.transcribe(audio, batch_size=batch, **options))


def text_of(answer):
    segments, _ = answer
    return "".join(segment.text for segment in segments).strip()


def load(transcribe, audios, clients, warmup_s, duration_s):
    turn, lock = itertools.count(), threading.Lock()
    done, latencies = [], []
    t_first = time.monotonic() + warmup_s
    t_end = t_first + duration_s

    def client():
        while True:
            with lock:
                audio = audios[next(turn) % len(audios)]
            t = time.monotonic()
            if t >= t_end:
                return
            transcribe(audio)
            now = time.monotonic()
            share = max(0, min(now, t_end) - max(t, t_first)) / (now - t)
            with lock:
                done.append(share * len(audio) / RATE)
                if t >= t_first:
                    latencies.append(now - t)

    threads = [threading.Thread(target=client) for _ in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    latencies.sort()
    return {"audio_per_s": sum(done) / duration_s,
            "p50_ms": latencies[len(latencies) // 2] * 1e3 if latencies else 0}


def main(folder, form, *rest):
    if form == "text":
        compute, *files = rest
        model = WhisperModel(folder, device="cpu", compute_type=compute, cpu_threads=2)
        texts = [text_of(model.transcribe(file, beam_size=1, language="en")) for file in files]
        print(json.dumps({"texts": texts}))
        return
    clients, warmup_s, duration_s, *files = rest
    audios = [decode_audio(file, sampling_rate=RATE) for file in files]
    transcribe = make(folder, form)
    texts = [transcribe(audio) for audio in audios]
    result = load(transcribe, audios, int(clients), float(warmup_s), float(duration_s))
    print(json.dumps({**result, "texts": texts}))


main(*sys.argv[1:])
