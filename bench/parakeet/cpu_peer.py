"""transformers' ParakeetForTDT on the CPU, float32, PCM in memory to tokens.

usage: cpu_peer.py MODEL THREADS BATCH RUNS FILE.s16...

BATCH files at a time go through features, encoder and generate; RUNS timed passes over all files
after one more. Prints JSON: seconds of audio a second, milliseconds of a pass, tokens of each file.
"""
import json
import sys
import time

import numpy as np
import torch

import reference


def batches(files, size):
    """(PCM, lengths) of `size` files each, padded to the longest."""
    clips = [torch.from_numpy(np.fromfile(file, np.int16).astype(np.float32) / 32768) for file in files]
    for at in range(0, len(clips), size):
        some = clips[at:at + size]
        yield (torch.nn.utils.rnn.pad_sequence(some, batch_first=True),
               torch.tensor([len(clip) for clip in some]))


def main(folder, threads, batch, runs, *files):
    torch.set_num_threads(int(threads))
    model = reference.load(folder, torch.float32, "cpu")
    features_of = reference.Features(folder, "cpu")
    inputs = list(batches(files, int(batch)))
    audio_s = sum(int(lengths.sum()) for _, lengths in inputs) / reference.RATE
    blank, pad = model.config.blank_token_id, model.config.pad_token_id
    times, tokens = [], []
    with torch.no_grad():
        for _ in range(int(runs) + 1):
            tokens, t = [], time.perf_counter()
            for pcm, lengths in inputs:
                features, mask = features_of(pcm, lengths)
                out = model.generate(input_features=features, attention_mask=mask)
                tokens += out.sequences.tolist()
            times.append((time.perf_counter() - t) * 1e3)
    times = sorted(times[1:])
    # A row that ended before the others is filled with the pad token.
    tokens = [[token for token in row if token not in (blank, pad)] for row in tokens]
    print(json.dumps({"median_ms": times[len(times) // 2], "min_ms": times[0], "max_ms": times[-1],
                      "audio_per_s": audio_s * 1e3 / times[len(times) // 2], "tokens": tokens}))


main(*sys.argv[1:])
