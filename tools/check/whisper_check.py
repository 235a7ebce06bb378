#!/usr/bin/env python3
"""Transcribes recordings with a folder of berth's Whisper graphs and compares with saved results.

usage: whisper_check.py FOLDER EXPECTED_DIR NAME=WAV...
       (the saved results are EXPECTED_DIR/NAME.{ts,nots}.float32.json)"""
import json
import pathlib
import re
import sys
import time

import numpy as np
from whisper_pipeline import RATE, Whisper, load_wav, transcribe


def edits(a, b):
    """Levenshtein distance of two word lists."""
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        last, row[0] = row[0], i
        for j, y in enumerate(b, 1):
            last, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, last + (x != y))
    return row[-1]


def plain(text):
    return re.sub(r"[^a-z0-9' ]+", " ", text.lower()).split()


def main(folder, expected, *recordings):
    model, worst = Whisper(folder), 0.0
    for recording in recordings:
        name, path = recording.split("=", 1)
        samples = load_wav(path)
        for mode in ("ts", "nots"):
            file = pathlib.Path(expected) / f"{name}.{mode}.float32.json"
            if not file.exists():
                continue
            want = json.loads(file.read_text())
            begin = time.perf_counter()
            got = transcribe(model, samples, mode == "ts")
            took = time.perf_counter() - begin
            text = "".join(model.tokens.decode(s[2], model.eot) for s in got).strip()
            tokens = [t for s in got for t in s[2]]
            same = tokens == [t for s in want["segments"] for t in s["tokens"]]
            raw = edits(text.split(), want["text"].split())
            soft = edits(plain(text), plain(want["text"]))
            gap = [max([abs(s[i] - w[k]) for s, w in zip(got, want["segments"])] or [np.nan])
                   for i, k in ((3, "avg_logprob"), (4, "no_speech_prob"))]
            words = len(want["text"].split())
            worst = max(worst, raw / max(words, 1))
            print(f"{name}.{mode}: tokens equal {same}, {words} words, edits {raw}, ignoring case "
                  f"and punctuation {soft}, d(avg_logprob) {gap[0]:.4f}, d(no_speech) {gap[1]:.5f}, "
                  f"{len(samples) / RATE / took:.1f} x real time", flush=True)
    return worst


if __name__ == "__main__":
    if len(sys.argv) < 4:
        sys.exit(__doc__)
    main(*sys.argv[1:])
