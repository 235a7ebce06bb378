#!/usr/bin/env python3
"""Law L7 on a folder of berth's Whisper graphs: what else is in the batch never moves a bit.

Every row of a batch of B gets the same logits whether its neighbours are silence, the loudest
speech, noise, long or new; also compares with B=1 and between capacities (reported).

usage: whisper_batch_check.py FOLDER WAV"""
import sys

import numpy as np
from whisper_pipeline import RATE, Slots, Whisper, load_wav, log_mel


def windows(samples, mels):
    """Loud, quiet and odd windows: (1,mels,3000) each."""
    noise = np.random.default_rng(1)
    sounds = [samples[:30 * RATE], np.zeros(30 * RATE, np.float32),
              samples[10 * RATE:40 * RATE] * 4,
              noise.standard_normal(30 * RATE).astype(np.float32) * .3, samples[:5 * RATE],
              np.sin(np.arange(30 * RATE) * .5).astype(np.float32), samples[20 * RATE:] * .01]
    out = []
    for sound in sounds:
        mel = log_mel(sound, mels)[:, :3000]
        out.append(np.pad(mel, ((0, 0), (0, 3000 - mel.shape[1])))[None])
    return out


def row_alone(model, cross, ids, others, batch, place):
    """Logits of the row `ids`, stepped at `place` in a batch whose other rows have `others`:
    (cross caches, ids, how many tokens they are ahead)."""
    slots = Slots(model, batch)
    neighbours = {}
    for i in range(batch):
        if i != place:
            other = others[i % len(others)]
            model.join(slots, i, other[0])
            neighbours[i] = other
            for step in range(other[2]):  # older than the row under test
                model.run(slots, np.array([[other[1][step % len(other[1])]]]), first=i)
    model.join(slots, place, cross)
    found = []
    for step, token in enumerate(ids):
        batch_ids = [[token] if i == place else [neighbours[i][1][step % len(neighbours[i][1])]]
                     for i in range(batch)]
        found.append(model.run(slots, np.array(batch_ids))[0][place].copy())
    return np.stack(found)


def main(folder, wav):
    model = Whisper(folder)
    crosses = [model.encode(mel) for mel in windows(load_wav(wav), model.config["num_mel_bins"])]
    ids = [model.sot, 50363, 632, 373, 262, 1266, 286, 1661, 11, 340]
    silent, loud = (crosses[1], [model.sot, 220], 0), (crosses[2], [50863, 1, 13], 0)
    noisy, long = (crosses[3], [999, 30000, 7], 2), (crosses[4], [5, 6, 7, 8], 60)
    odd, bad = (crosses[5], [11], 40), 0
    solo = row_alone(model, crosses[0], ids, [], 1, 0)
    for batch in (2, 3, 5, 8):
        reference = None
        for others in ([silent], [loud], [noisy], [long], [odd, long, loud, silent, noisy]):
            for place in {0, batch // 2, batch - 1}:
                got = row_alone(model, crosses[0], ids, others, batch, place)
                reference = got if reference is None else reference
                if not np.array_equal(got, reference):
                    bad += 1
                    gap = np.abs(got - reference).max()
                    print(f"B={batch} place {place}: differs by {gap:.3g}")
        gap = np.abs(reference - solo).max()
        print(f"B={batch}: against B=1 {'bit-equal' if gap == 0 else f'differs by {gap:.3g}'}",
              flush=True)
    print("batched equals solo inside every bucket" if not bad else f"{bad} cases differ")
    return bad


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    sys.exit(1 if main(*sys.argv[1:]) else 0)
