#!/usr/bin/env python3
"""Writes golden_ctc.json and golden_rnnt.json: what transformers hears in nano's twelve recordings.

usage: make_goldens.py     (torch and transformers 5.17; float32 on a CPU, from the bf16 weights)

CTC: generate() of ParakeetForCTC gives the likeliest token of each frame; a token stands for each run of
equal ones that are no blank, with the run's length as its duration. RNN-T: generate() of
ParakeetForRNNT gives tokens, blanks among them, and how many frames each step goes on by.
"""
import itertools
import json
import pathlib
import sys
import tempfile

import numpy as np
import torch
from tokenizers import Tokenizer
from transformers import ParakeetForCTC, ParakeetForRNNT

import make_folders

HERE = make_folders.HERE
sys.path.insert(0, str(HERE.parents[2] / "bench" / "parakeet"))
import reference  # noqa: E402  (its features are the golden ones to 1e-6)


def hear_ctc(model, features, mask):
    said, frame = [], 0
    ids = model.generate(input_features=features, attention_mask=mask)[0].tolist()
    for token, run in itertools.groupby(ids):
        length = len(list(run))
        if token != model.config.pad_token_id:
            said.append((token, frame, length))
        frame += length
    return said


def hear_rnnt(model, features, mask):
    said, frame = [], 0
    out = model.generate(input_features=features, attention_mask=mask)
    for token, advance in zip(out.sequences[0, 1:].tolist(), out.durations[0, 1:].tolist()):
        if token != model.config.blank_token_id:
            said.append((token, frame, advance))
        frame += advance
    return said


def main():
    torch.set_num_threads(1)
    nano = make_folders.NANO / "golden"
    clips = json.loads((nano / "golden.json").read_text())
    tokenizer = Tokenizer.from_file(str(make_folders.NANO / "tokenizer.json"))
    for head, kind, hear in (("ctc", ParakeetForCTC, hear_ctc), ("rnnt", ParakeetForRNNT, hear_rnnt)):
        golden = HERE / f"golden_{head}.json"
        if not golden.exists():
            golden.write_text("[]\n")
        with tempfile.TemporaryDirectory() as scratch:
            folder = make_folders.make_folder(head, pathlib.Path(scratch) / head)
            model = kind.from_pretrained(folder, dtype=torch.float32).eval()
            extract = reference.Features(folder, "cpu")
        entries = []
        for i, clip in enumerate(clips):
            pcm = torch.from_numpy(np.fromfile(nano / f"pcm{i}.s16", "<i2").astype(np.float32) / 32768)
            with torch.no_grad():
                said = hear(model, *extract(pcm[None], torch.tensor([len(pcm)])))
            tokens, frames, durations = (list(values) for values in zip(*said))
            entries.append({"samples": clip["samples"], "voice": clip["voice"],
                            "reference": clip["reference"], "text": tokenizer.decode(tokens),
                            "tokens": tokens, "frames": frames, "durations": durations})
            print(f"{head} {i}: {entries[-1]['text']}")
        golden.write_text("[\n" + ",\n".join(" " + json.dumps(entry) for entry in entries) + "\n]\n")


if __name__ == "__main__":
    main()
