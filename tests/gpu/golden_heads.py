#!/usr/bin/env python3
"""Does each head hear the twelve golden recordings as transformers does? On a GPU, or on the CPU.

usage: golden_heads.py PROGRAM [--device cuda:0|cpu:0] [--head tdt|rnnt|ctc]...

PROGRAM is berth-cuda (or berth, with cpu:0). Runs `bench parakeet --dump` on parakeet-nano-en (TDT)
and on the two models that tests/models/parakeet-nano-heads puts together (RNN-T, CTC): all recordings
in one run, then each alone. On a CPU all tokens, frames and durations must be the reference's; on a
GPU, where what products read is half precision, the tokens of 11 recordings; and alone each must be
what it is together. Python alone is needed, and this tree. The exit status is 0 if all of it holds.
"""
import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

TESTS = pathlib.Path(__file__).resolve().parents[1]
NANO = TESTS / "models" / "parakeet-nano-en"
sys.path.insert(0, str(TESTS / "models" / "parakeet-nano-heads"))
import make_folders  # noqa: E402

KEYS = (("tokens", "tokens"), ("frame", "frames"), ("durations", "durations"))  # dump's, golden's


def hear(options, folder, files, scratch):
    """(tokens, frames, durations) of each file, heard in one run."""
    command = [options.program, "bench", "parakeet", "--model", folder, "--device", options.device,
               "--rows", len(files), "--runs", "1", "--stages", "tokens", "--dump", scratch, *files]
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=300)
    if done.returncode != 0:
        sys.exit(f"golden_heads: {' '.join(map(str, command))}\nended with {done.returncode}: "
                 f"{done.stderr.strip()}")
    dumps = sorted(scratch.glob(f"{len(files)}x*.json"), key=lambda path: path.stat().st_mtime_ns)
    return [tuple(row[key] for key, _ in KEYS) for row in json.loads(dumps[-1].read_text())["rows"]]


def check_head(options, head, folder, scratch):
    golden = json.loads((folder / "golden" / "golden.json").read_text())
    files = [NANO / "golden" / f"pcm{i}.s16" for i in range(len(golden))]
    together = hear(options, folder, files, scratch)
    want = [tuple(clip[key] for _, key in KEYS) for clip in golden]
    alone = [hear(options, folder, [file], scratch)[0] for file in files]
    tokens = sum(a[0] == b[0] for a, b in zip(together, want))
    whole = sum(a == b for a, b in zip(together, want))
    same = sum(a == b for a, b in zip(alone, together))
    count = len(golden)
    exact = options.device.startswith("cpu")
    ok = same == count and (whole == count if exact else tokens >= count - 1)
    print(f"{'ok    ' if ok else 'FAILED'} {head}: the reference's tokens on {tokens} of {count}, frames "
          f"and durations too on {whole}; alone as together on {same}", flush=True)
    return ok


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("program")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--head", action="append", choices=["tdt", "rnnt", "ctc"])
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        scratch = pathlib.Path(scratch)
        folders = {"tdt": NANO, **make_folders.make_folders(scratch)}
        (scratch / "dump").mkdir()
        results = [check_head(options, head, folders[head], scratch / "dump")
                   for head in options.head or ("tdt", "rnnt", "ctc")]
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
