"""The Parakeet engine on the CPU beside transformers, both without a server: PCM to tokens.

parakeet-nano-en, float32 on both sides, 2 cores: one recording, and 8 of different lengths as 8
clients send them at once. transformers takes those as one batch and one by one; it is judged by
whichever is faster.
"""
import json
import os

from common import BERTH, PEERS, QUICK, ROOT, Failure, median, missing, number, run, say, spread, table

MODEL = ROOT / "tests/models/parakeet-nano-en"
CORES = 2
ROUNDS, RUNS = (1, 2) if QUICK else (5, 5)
LOADS = {"one clip": [2], "8 clients": list(range(8))}  # recordings of the model's golden/
PYTHON = PEERS / "transformers/bin/python"


def files_of(load):
    return [str(MODEL / "golden" / f"pcm{i}.s16") for i in LOADS[load]]


def berth_command(load):
    files = files_of(load)
    return [str(BERTH), "bench", "parakeet", "--device", "cpu:0", "--cpu-threads", str(CORES), "--model",
            str(MODEL), "--rows", str(len(files)), "--runs", str(RUNS), "--stages", "tokens", "--json", *files]


def peer_command(load, batch):
    return [str(PYTHON), str(ROOT / "bench/parakeet/cpu_peer.py"), str(MODEL), str(CORES), str(batch),
            str(RUNS), *files_of(load)]


def load_berth(load):
    bucket = json.loads(run(berth_command(load)))["buckets"][0]
    return {"audio_per_s": bucket["rtfx"], "median_ms": bucket["ms"]["tokens"]["median"]}


def load_peer(load, batch):
    return json.loads(run(peer_command(load, batch), timeout_s=600).splitlines()[-1])


def parakeet():
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, cores[:CORES])  # of all that is started from here, on both sides
    try:
        return measure()
    finally:
        os.sched_setaffinity(0, cores)


def measure():
    if not MODEL.is_dir():
        raise Failure(f"{MODEL.relative_to(ROOT)} is missing")
    reason = missing("transformers")
    rows, goals = [], []
    golden = json.loads((MODEL / "golden/golden.json").read_text())
    for load, clips in LOADS.items():
        forms = [] if reason else [1] if len(clips) == 1 else [1, len(clips)]
        ours, peers, same = [], {batch: [] for batch in forms}, {}
        for i in range(ROUNDS):
            say(f"parakeet: {load}, round {i + 1} of {ROUNDS}")
            ours.append(load_berth(load))
            for batch in forms:
                peers[batch].append(load_peer(load, batch))
                same[batch] = sum(tokens == golden[clip]["tokens"]
                                  for tokens, clip in zip(peers[batch][-1]["tokens"], clips))
        best = max(forms, key=lambda form: median([r["audio_per_s"] for r in peers[form]]), default=None)

        def row(name, results, right):
            ratio = spread([a["audio_per_s"] / b["audio_per_s"] for a, b in zip(results, peers[best])]) \
                if best else "-"
            return [f"{load}: {name}", spread([r["audio_per_s"] for r in results]), ratio,
                    number(median([r["median_ms"] for r in results])), right]
        rows.append(row("**berth**", ours, "-"))
        for batch in forms:
            rows.append(row(f"transformers, {'one batch' if batch > 1 else 'one at a time'}", peers[batch],
                            f"{same[batch]} of {len(clips)}"))
        goals.append((f"parakeet-nano-en, {load} on {CORES} cores: audio seconds a second against transformers "
                      "at its best", ">= 3",
                      [a["audio_per_s"] / b["audio_per_s"] for a, b in zip(ours, peers[best])] if best else []))
    note = f"transformers is not here ({reason}).\n" if reason else ""
    head = ["", "audio s/s", "ratio to transformers' best", "ms", "golden tokens"]
    return f"""parakeet-nano-en (12.2 M parameters), float32, {CORES} cores, PCM in memory to tokens, no server on either side: one
recording of 6.8 s, and 8 of 3 to 8 s at once. {ROUNDS} rounds in turn, {RUNS} passes each. transformers' features are computed by
PyTorch (bench/parakeet/reference.py), without librosa. What berth makes of these recordings is compared in `make check`.
{note}
Commands: `build/berth bench parakeet --device cpu:0 --cpu-threads {CORES} --model {MODEL.relative_to(ROOT)} --rows 8 --runs {RUNS} --stages tokens FILE...`;
`.deps/peers/transformers/bin/python bench/parakeet/cpu_peer.py MODEL {CORES} BATCH {RUNS} FILE...`

{table(head, rows)}
""", goals


def versions():
    if missing("transformers"):
        return {}
    text = run([str(PYTHON), "-c", "from importlib.metadata import version as v\n"
                "for n in ('torch', 'transformers'): print(n, v(n))"])
    return dict(line.split() for line in text.splitlines())
