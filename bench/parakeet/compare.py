"""Is the Parakeet engine right? Against transformers on a random model, and against golden clips.

usage: compare.py --berth PROGRAM [--device cuda:0] [--folder MODEL] [--golden MODEL] [--out DIR]
                  [--rows 16] [--seconds 10] [--seed 1] [--precision fp16]

--folder: a model to compare with ParakeetForTDT in float32 and bf16 (`berth bench parakeet --random
0.6b --keep FOLDER` writes one). The encoder's relative error against float32 may be 1.2 times that of
PyTorch's bf16. Decoding is compared along the float32 greedy path: at each of its steps the joint
network's logits are computed from berth's projected encoder output and the path's own prediction
state, in float32, and from PyTorch's bf16 output in the same way. The noise is the 99th percentile
of what the latter moves a logit; where the float32 logits' best two lie further apart than that, the
best must be the same on 98 % of the steps.
--golden: tests/models/parakeet-nano-en, whose golden/ says what the reference made of 12 recordings.
--precision fp8: the same numbers, of which nothing is wanted: what fp8 has to keep is the words
(words.py).

Prints one line a check, writes DIR/compare.json, exits with 1 if a check failed.
"""
import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

import numpy as np
import torch

import reference

CHECKS, FACTS = [], {}


def check(name, value, wanted, ok):
    if FACTS["precision"] == "fp8":
        note(name, f"{value} (of fp16 wanted: {wanted})")
        return
    CHECKS.append({"check": name, "value": value, "wanted": wanted, "ok": bool(ok)})
    print(f"{'ok    ' if ok else 'FAILED'} {name}: {value} (wanted {wanted})", flush=True)


def note(name, value):
    FACTS[name] = value
    print(f"       {name}: {value}", flush=True)


def bench(options, model, dump, *more):
    command = [options.berth, "bench", "parakeet", "--model", str(model), "--device", options.device,
               "--precision", options.precision, "--runs", "1", "--stages", "tokens",
               "--dump", str(dump), "--json", *map(str, more)]
    result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=240)
    if result.returncode != 0:
        raise SystemExit(f"{' '.join(command)}\nended with {result.returncode}: {result.stderr.strip()}")


def torch_device(options):
    return "cuda" if options.device.startswith("cuda") else "cpu"


# --- a random model ---


def reference_outputs(folder, dump, device):
    """{precision: (encoded, projected)} on the CPU, and the float32 paths of all rows."""
    frames = [row["frames"] for row in dump.rows]
    features, mask = reference.Features(folder, device)(dump.pcm().to(device), dump.lengths.to(device))
    ours = dump.features()
    valid = [row["samples"] // 160 for row in dump.rows]
    note("features, relative error", f"{reference.relative_error(ours, features.cpu(), valid):.2e}")
    outputs, paths, model = {}, [], None
    for name, dtype in (("bf16", torch.bfloat16), ("float32", torch.float32)):
        model = reference.load(folder, dtype, device)
        encoded, projected = reference.encode(model, features, mask)
        outputs[name] = encoded.cpu(), projected.cpu()
        if name == "bf16":
            bf16_paths = [reference.greedy(model, projected[i, :n]) for i, n in enumerate(frames)]
        else:
            paths = [reference.greedy(model, projected[i, :n]) for i, n in enumerate(frames)]
    return outputs, paths, bf16_paths, model


def teacher_forced(model, path, projected):
    """Token and duration logits of all steps, from another encoder's projected output of the row."""
    device = path.states[0].device
    frames = torch.tensor(path.frames)
    return reference.logits_at(model, projected[frames].to(device), torch.stack(path.states))


def best_and_margin(logits):
    best = logits.topk(2, dim=-1)
    return best.indices[..., 0], best.values[..., 0] - best.values[..., 1]


def compare_decoding(name, model, paths, ours, theirs):
    """ours, theirs: projected outputs of all rows. Of tokens (0) and durations (1)."""
    for which, kind in enumerate(("tokens", "durations")):
        truth = [torch.stack((path.token_logits, path.duration_logits)[which]) for path in paths]
        bf16 = [teacher_forced(model, path, theirs[i])[which] for i, path in enumerate(paths)]
        mine = [teacher_forced(model, path, ours[i])[which] for i, path in enumerate(paths)]
        truth, bf16, mine = torch.cat(truth), torch.cat(bf16), torch.cat(mine)
        noise = np.percentile((bf16 - truth).abs().cpu().numpy(), 99)
        best, margin = best_and_margin(truth)
        same = best == mine.argmax(-1)
        kept = margin > float(noise)
        note(f"{name}: {kind}, bf16 noise", f"{noise:.4f}; steps {len(best)}, margin median "
             f"{float(margin.median()):.4f}, excluded {100 * float((~kept).float().mean()):.1f} %, agreement "
             f"over all {100 * float(same.float().mean()):.1f} %, of PyTorch's bf16 over all "
             f"{100 * float((best == bf16.argmax(-1)).float().mean()):.1f} %")
        share = float(same[kept].float().mean()) if bool(kept.any()) else 0.0
        check(f"{name}: same {kind} along the float32 path", f"{100 * share:.2f} % of {int(kept.sum())}",
              ">= 98 %", share >= 0.98)


def compare_outputs(name, outputs, dump):
    frames = [row["frames"] for row in dump.rows]
    for index, what, ours in ((0, "encoded", dump.encoded()), (1, "projected", dump.projected())):
        truth, theirs = outputs["float32"][index], outputs["bf16"][index]
        mine = reference.relative_error(ours, truth, frames)
        limit = 1.2 * reference.relative_error(theirs, truth, frames)
        check(f"{name}: {what}, relative error to float32", f"{mine:.3e}",
              f"<= {limit:.3e}, 1.2 x PyTorch's bf16", mine <= limit)
        cosines = reference.cosines(ours, truth, frames)
        theirs = reference.cosines(theirs, truth, frames)
        note(f"{name}: {what}, cosine of a frame to float32",
             f"least {float(cosines.min()):.6f}, mean {float(cosines.mean()):.6f} (PyTorch's bf16: "
             f"{float(theirs.min()):.6f}, {float(theirs.mean()):.6f})")


def compare_bucket(options, name, dump):
    outputs, paths, bf16_paths, model = reference_outputs(options.folder, dump, torch_device(options))
    compare_outputs(name, outputs, dump)
    compare_decoding(name, model, paths, dump.projected(), outputs["bf16"][1])
    blank = model.config.blank_token_id
    steps = [len(path.frames) for path in paths]
    note(f"{name}: steps of a row", f"float32 {min(steps)}/{sum(steps) / len(steps):.1f}/{max(steps)}, berth "
         f"{[row['steps'] for row in dump.rows]}")
    ours = [(row["tokens"], row["frame"], row["durations"]) for row in dump.rows]
    for kind, others in (("float32", paths), ("bf16", bf16_paths)):
        same = sum(reference.emitted(path, blank) == row for path, row in zip(others, ours))
        note(f"{name}: rows with the very tokens, frames and durations of {kind}", f"{same} of {len(ours)}")


def compare_random(options, scratch):
    bench(options, options.folder, scratch / "even", "--rows", options.rows, "--seconds", options.seconds,
          "--seed", options.seed)
    even = reference.Dump(scratch / "even", options.rows)
    compare_bucket(options, f"{options.rows} rows of {options.seconds} s", even)
    # Rows of different lengths, cut from the same clips.
    files, pcm = [], even.pcm().numpy()
    for i, share in enumerate((1, 0.31, 0.77, 0.5, 0.123)):
        files.append(scratch / f"ragged{i}.f32")
        pcm[i % len(pcm), :int(share * pcm.shape[1])].tofile(files[-1])
    bench(options, options.folder, scratch / "ragged", "--rows", len(files), *files)
    compare_bucket(options, "5 rows of different lengths", reference.Dump(scratch / "ragged", len(files)))


# --- golden clips ---


def compare_golden(options, scratch):
    golden = pathlib.Path(options.golden) / "golden"
    clips = json.loads((golden / "golden.json").read_text())
    files = [golden / f"pcm{i}.s16" for i in range(len(clips))]
    bench(options, options.golden, scratch / "golden", "--rows", len(files), *files)
    dump = reference.Dump(scratch / "golden", len(files))
    exact = options.device.startswith("cpu")
    tokens = sum(row["tokens"] == clip["tokens"] for row, clip in zip(dump.rows, clips))
    wanted = len(clips) if exact else len(clips) - 1
    check("golden clips with the reference's tokens", f"{tokens} of {len(clips)}", f">= {wanted}",
          tokens >= wanted)
    whole = sum((row["tokens"], row["frame"], row["durations"]) ==
                (clip["tokens"], clip["frames"], clip["durations"]) for row, clip in zip(dump.rows, clips))
    if exact:
        check("golden clips with its frames and durations too", f"{whole} of {len(clips)}", f"{wanted}",
              whole == wanted)
    else:
        note("golden clips with its frames and durations too", f"{whole} of {len(clips)}")
    for name, ours, width in (("encoder", dump.encoded(), dump.facts["hidden"]),
                              ("projected", dump.projected(), dump.facts["prediction"])):
        truth = [torch.from_numpy(np.fromfile(golden / f"{name}{i}.f32", np.float32).reshape(-1, width))
                 for i in range(4)]
        frames = [len(values) for values in truth]
        least = float(reference.cosines(ours, truth, frames).min())
        largest = max(float((ours[i, :n] - truth[i]).abs().max()) for i, n in enumerate(frames))
        if name == "encoder":
            check("golden clips 0 to 3: least cosine of an encoder frame", f"{least:.6f}", ">= 0.999",
                  least >= 0.999)
        if exact:
            check(f"golden clips 0 to 3: {name}, largest difference", f"{largest:.2e}", "<= 2e-3",
                  largest <= 2e-3)
        else:
            note(f"golden clips 0 to 3: {name}, largest difference", f"{largest:.2e}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--berth", required=True)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--folder")
    parser.add_argument("--golden")
    parser.add_argument("--out", default=".")
    parser.add_argument("--rows", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--precision", default="fp16", choices=("fp16", "fp8"))
    options = parser.parse_args()
    FACTS["precision"] = options.precision
    # Else "float32" means tf32 in some of PyTorch's operations.
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    with tempfile.TemporaryDirectory() as scratch, torch.no_grad():
        for given, compare in ((options.golden, compare_golden), (options.folder, compare_random)):
            if given:
                compare(options, pathlib.Path(scratch))
    out = pathlib.Path(options.out)
    out.mkdir(parents=True, exist_ok=True)
    (out / "compare.json").write_text(json.dumps({"checks": CHECKS, "facts": FACTS}, indent=1))
    failed = sum(not entry["ok"] for entry in CHECKS)
    print(f"compare: {len(CHECKS)} checks, {failed} failed")
    return 1 if failed or not (CHECKS or options.precision == "fp8") else 0


if __name__ == "__main__":
    sys.exit(main())
