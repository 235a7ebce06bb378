"""Times the Parakeet engine on a GPU beside PyTorch, in one run, on the same model and sound.

usage: peers.py --berth PROGRAM --folder MODEL [--out DIR] [--device cuda:0] [--runs 50]
                [--buckets 1x10,16x10,64x10,1x8,8x8] [--budget-s 330] [--only berth,eager,...]
       peers.py --folder MODEL --warm BUCKETxMODE     compiles once, so that a later run finds it in
                                                      the compiler's cache

For each bucket (clips x seconds), in turn: berth, PyTorch eager, eager under a CUDA graph, generate,
torch.compile (default, reduce-overhead), and berth again. Encoder: features on the device to the
projected encoder output. Whole: PCM in pinned host memory to tokens in host memory; PyTorch's
features are computed on the device too. berth's times are what a caller waits (host clock from
asking to having); PyTorch's encoder is timed by CUDA events, its whole by the host clock.
Weights are the same bf16 file's; PyTorch computes in bf16, berth in half precision. What does not
fit into the time budget is left out and said so.

DIR/peers.json is rewritten after each part; the Markdown report goes to DIR/peers.md and is printed.
"""
import argparse
import datetime
import json
import pathlib
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time

import torch

import reference

T_START = time.monotonic()
MODES = {"compile": "default", "reduce-overhead": "reduce-overhead"}
PARTS = ["berth", "eager", "graph", "generate", *MODES]
GOAL_ENCODER_MS = {"1x10": 2.0, "16x10": 6.0, "64x10": 22.0}
GOAL_WHOLE_MS = {"1x10": 4.0, "16x10": 9.0, "64x10": 27.0}
PUBLISHED_MS = {"1x8": (22.7, 36.0), "8x8": (26.8, 52.5)}  # on an H100: m87-labs/kestrel, NeMo 3.0


def say(text):
    print(f"peers: {time.monotonic() - T_START:6.1f} s: {text}", flush=True)


class Encoder(torch.nn.Module):
    """What all forms of the peer's encoder compute: features to the projected output."""

    def __init__(self, model):
        super().__init__()
        self.encoder, self.projector = model.encoder, model.encoder_projector

    def forward(self, features, mask):
        out = self.encoder(input_features=features, attention_mask=mask)
        return self.projector(out.last_hidden_state)


def gpu_facts():
    fields = "name,driver_version,clocks.sm,clocks.mem,clocks.max.sm,temperature.gpu,power.draw"
    try:
        text = subprocess.run(["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader"], text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=20).stdout
        return dict(zip(fields.split(","), (word.strip() for word in text.splitlines()[0].split(","))))
    except (OSError, IndexError, subprocess.TimeoutExpired):
        return {}


def synchronize(device):
    if device.type == "cuda":
        torch.cuda.synchronize()


def summary(values):
    return {"median": statistics.median(values), "min": min(values), "max": max(values),
            "runs": len(values)}


def time_calls(call, device, runs, limit_s, by_events):
    """Milliseconds of up to `runs` calls, after 3 more; at least 3, and not much past limit_s."""
    for _ in range(3):
        call()
    synchronize(device)
    values, t_end = [], time.monotonic() + limit_s
    for i in range(runs):
        if i >= 3 and time.monotonic() > t_end:
            break
        if by_events and device.type == "cuda":
            first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            first.record()
            call()
            last.record()
            last.synchronize()
            values.append(first.elapsed_time(last))
        else:
            t = time.perf_counter()
            call()
            synchronize(device)
            values.append((time.perf_counter() - t) * 1e3)
    return summary(values)


def ceilings(device):
    """What the card does at its best: a large bf16 product, and a large copy (read plus written)."""
    if device.type != "cuda":
        return {}
    a, b = (torch.randn(8192, 8192, device=device, dtype=torch.bfloat16) for _ in range(2))
    product = time_calls(lambda: a @ b, device, 20, 5, True)["median"]
    c = torch.randn(1 << 29, device=device)
    d = torch.empty_like(c)
    copy = time_calls(lambda: d.copy_(c), device, 20, 5, True)["median"]
    return {"tflops": 2 * 8192**3 / product / 1e9, "copy_tbps": 2 * c.numel() * 4 / copy / 1e9}


# --- berth ---


class MemoryWatch:
    """The device's memory in use over that at the start, looked at while a process runs."""

    def __init__(self, device):
        self.device, self.most, self.done = device, 0, threading.Event()
        self.before = self.used() if device.type == "cuda" else 0
        self.thread = threading.Thread(target=self.look)

    def used(self):
        free, total = torch.cuda.mem_get_info()
        return total - free

    def look(self):
        while self.device.type == "cuda" and not self.done.wait(0.005):
            self.most = max(self.most, self.used() - self.before)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.done.set()
        self.thread.join()


def run_berth(options, bucket, dump):
    rows, seconds = bucket.split("x")
    command = [options.berth, "bench", "parakeet", "--model", options.folder, "--device", options.device,
               "--rows", rows, "--seconds", seconds, "--runs", str(options.runs), "--json"]
    if dump:
        command += ["--dump", str(dump)]
    with MemoryWatch(torch.device(options.device.split(":")[0])) as watch:
        result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                timeout=120)
    if result.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} ended with {result.returncode}: {result.stderr.strip()[-300:]}")
    facts = json.loads(result.stdout)
    return {**facts["buckets"][0], "load_s": facts["load_s"], "weights_bytes": facts["weights_bytes"],
            "process_bytes": watch.most, "command": " ".join(command)}


def together(turns, stage):
    values = [value for turn in turns for value in turn["ms"].get(stage, {}).get("all", [])]
    return summary(values) if values else None


# --- PyTorch ---


class Peer:
    """The model and one bucket's inputs."""

    def __init__(self, options, device):
        self.options, self.device = options, device
        self.model = reference.load(options.folder, torch.bfloat16, device)
        self.features_of = reference.Features(options.folder, device)
        self.encoder = Encoder(self.model)

    def take(self, pcm, lengths):
        pinned = self.device.type == "cuda"
        self.pcm = pcm.pin_memory() if pinned else pcm
        self.lengths = lengths.pin_memory() if pinned else lengths
        features, self.mask = self.features_of(pcm.to(self.device), lengths.to(self.device))
        self.features = features.to(torch.bfloat16)

    def eager(self):
        return self.encoder(self.features, self.mask)

    def graph(self):
        """A callable that replays the encoder's graph."""
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                self.eager()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.kept = self.eager()
        return graph.replay

    def compiled(self, mode):
        torch._dynamo.reset()
        encoder = torch.compile(self.encoder, mode=mode, dynamic=False)

        def call():
            torch.compiler.cudagraph_mark_step_begin()
            return encoder(self.features, self.mask)
        call()
        return call

    def generate(self):
        pcm = self.pcm.to(self.device, non_blocking=True)
        lengths = self.lengths.to(self.device, non_blocking=True)
        features, mask = self.features_of(pcm, lengths)
        out = self.model.generate(input_features=features.to(torch.bfloat16), attention_mask=mask)
        return out.sequences.cpu()

    def steps(self):
        """Steps that generate took: the longest row's."""
        return int(self.generate().shape[1]) - 1


def measure_peer(peer, part, options, left_s):
    limit_s = max(1, min(6, left_s / 4))
    if part == "generate":
        return {**time_calls(peer.generate, peer.device, options.runs, limit_s, False),
                "steps": peer.steps()}
    if part == "graph":
        call = peer.graph()
    elif part in MODES:
        t = time.monotonic()
        call = peer.compiled(MODES[part])
        say(f"{part}: first call took {time.monotonic() - t:.1f} s")
    else:
        call = peer.eager
    return time_calls(call, peer.device, options.runs, limit_s, True)


# --- the run ---


class Run:
    def __init__(self, options):
        self.options, self.device = options, torch.device(options.device.split(":")[0])
        self.out = pathlib.Path(options.out)
        self.out.mkdir(parents=True, exist_ok=True)
        self.buckets = options.buckets.split(",")
        self.results = {"facts": {"date": str(datetime.date.today()), "torch": torch.__version__,
                                  "clocks before": gpu_facts(), "command": " ".join(sys.argv),
                                  "ceilings": ceilings(self.device)},
                        "buckets": {bucket: {"berth": []} for bucket in self.buckets}, "left_out": []}
        self.save()

    def save(self):
        (self.out / "peers.json").write_text(json.dumps(self.results, indent=1))

    def left_s(self):
        return self.options.budget_s - (time.monotonic() - T_START)

    def part(self, bucket, part, measure):
        """Measures one part, or says why not; the run goes on."""
        if part not in self.options.only.split(","):
            return
        if self.left_s() < (45 if part in MODES else 10):
            self.results["left_out"].append(f"{part} {bucket}: no time left")
            return
        try:
            value = measure()
            if part == "berth":
                self.results["buckets"][bucket]["berth"].append(value)
                text = {name: round(ms["median"], 3) for name, ms in value["ms"].items()}
            else:
                self.results["buckets"][bucket][part] = value
                text = {name: round(number, 3) for name, number in value.items()}
            say(f"{bucket} {part}: {text}")
        except Exception as error:  # a peer that fails is left out, whatever it failed of
            why = f"{type(error).__name__}: {' '.join(str(error).split())[:250]}"
            say(f"{bucket} {part}: FAILED: {why}")
            self.results["left_out"].append(f"{part} {bucket}: {why}")
        self.save()

    def measure(self, scratch):
        from importlib.metadata import version
        self.results["facts"]["transformers"] = version("transformers")
        peer, sound = None, {}
        for bucket in self.buckets:
            dump = scratch / bucket
            self.part(bucket, "berth", lambda: run_berth(self.options, bucket, dump))
            if peer is None:
                peer = Peer(self.options, self.device)
            try:
                read = reference.Dump(dump, bucket.split("x")[0])
                sound[bucket] = read.pcm(), read.lengths
            except SystemExit:  # berth failed: noise will do for the peers
                rows, seconds = bucket.split("x")
                sound[bucket] = (torch.randn(int(rows), int(float(seconds) * 16000)) / 10,
                                 torch.full((int(rows),), int(float(seconds) * 16000)))
            peer.take(*sound[bucket])
            for part in ("eager", "graph", "generate"):
                self.part(bucket, part, lambda: measure_peer(peer, part, self.options, self.left_s()))
            self.part(bucket, "berth", lambda: run_berth(self.options, bucket, None))
            self.results["buckets"][bucket]["clocks"] = gpu_facts()
        for bucket in self.buckets:
            for part in MODES:
                peer.take(*sound[bucket])
                self.part(bucket, part, lambda: measure_peer(peer, part, self.options, self.left_s()))
        self.save()


# --- the report ---


def table(head, rows):
    lines = ["| " + " | ".join(head) + " |", "|---" + "|--:" * (len(head) - 1) + "|"]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])


def ms_text(times):
    if not times:
        return "-"
    few = f" ({times['runs']} runs)" if times["runs"] < 50 else ""
    return f"{times['median']:.2f}{few}"


def goal_text(value, limit):
    if limit is None or value is None:
        return "-"
    return f"<= {limit:g}: {'yes' if value <= limit else '**no**'}"


def encoder_row(bucket, result, tflops):
    turns = result["berth"]
    ours, encoded, products = (together(turns, stage) for stage in ("encoder", "encoded", "products"))
    peers = [result[part]["median"] for part in ("eager", "graph", *MODES) if part in result]
    best = f"{min(peers) / ours['median']:.2f}" if peers and ours else "-"
    share = f"{100 * products['median'] / ours['median']:.0f} %" if products and ours else "-"
    card = "-"
    if ours and tflops:
        rate = turns[0]["encoder_flop"] / ours["median"] / 1e9
        card = f"{100 * rate / tflops:.0f} %"
    goal = goal_text(ours and ours["median"], GOAL_ENCODER_MS.get(bucket))
    return [bucket.replace("x", " x ") + " s", f"**{ms_text(ours)}**", ms_text(encoded),
            *(ms_text(result.get(part)) for part in ("eager", "graph", *MODES)), best, ms_text(products),
            share, card, goal]


def whole_row(bucket, result):
    turns, generate = result["berth"], result.get("generate")
    ours = together(turns, "tokens")
    ratio = f"{generate['median'] / ours['median']:.1f}" if ours and generate else "-"
    if not turns:
        return [bucket, "-", "-", ms_text(generate), *["-"] * 6]
    steps, audio_s = turns[0]["steps"], turns[0]["audio_s"]
    limit = GOAL_WHOLE_MS.get(bucket)
    if bucket in PUBLISHED_MS:
        limit = PUBLISHED_MS[bucket][0] / 4
    mib = max(turn["process_bytes"] for turn in turns) / 2**20
    return [bucket.replace("x", " x ") + " s", f"**{ms_text(ours)}**" if ours else "-",
            f"{audio_s * 1e3 / ours['median']:,.0f}" if ours else "-", ms_text(generate), ratio,
            f"{steps['min']}/{steps['mean']:.1f}/{steps['max']}", str(generate["steps"]) if generate else "-",
            f"{turns[0]['run_bytes'] / 2**20:,.0f}", f"{mib:,.0f}", goal_text(ours and ours["median"], limit)]


def clocks_text(results):
    def one(values):
        return f"SM {values.get('clocks.sm', '?')}, memory {values.get('clocks.mem', '?')}"
    each = "; ".join(f"{bucket} {one(result.get('clocks', {}))}" for bucket, result in results["buckets"].items())
    return f"before the run {one(results['facts']['clocks before'])}; just after each bucket: {each}"


def report(results):
    facts, buckets = results["facts"], results["buckets"]
    gpu, tops = facts["clocks before"], facts["ceilings"]
    tflops = tops.get("tflops")
    turns = next((result["berth"] for result in buckets.values() if result["berth"]), [])
    weights = f"{turns[0]['weights_bytes'] / 2**20:,.0f} MiB of weights loaded in {turns[0]['load_s']:.2f} s. " if turns else ""
    encoder = table(["clips", "**berth**, ms", "from PCM", "eager", "eager, CUDA graph", "torch.compile",
                     "reduce-overhead", "best peer / berth", "products alone", "share", "of the card", "goal"],
                    [encoder_row(bucket, result, tflops) for bucket, result in buckets.items()])
    whole = table(["clips", "**berth**, ms", "RTFx", "generate, ms", "generate / berth", "steps a row", "generate's steps",
                   "bucket MiB", "process MiB", "goal"],
                  [whole_row(bucket, result) for bucket, result in buckets.items()])
    left = "\n\nLeft out: " + "; ".join(results["left_out"]) + "." if results["left_out"] else ""
    ceiling = (f" At its best the card did {tflops:.0f} TFLOP/s (bf16, 8192 x 8192 x 8192) and copied "
               f"{tops['copy_tbps']:.2f} TB/s.") if tflops else ""
    return f"""## Parakeet on the GPU

Random bf16 weights in the shape of Parakeet-TDT 0.6B, so its transcripts say nothing; seeded clips. {weights}berth's and
PyTorch's figures are of one run, in turn; medians, milliseconds. bench/README.md says what each column holds.

- machine: {gpu.get('name', '?')}, driver {gpu.get('driver_version', '?')}; clocks: {clocks_text(results)}.{ceiling}
- date: {facts['date']}; PyTorch {facts['torch']}, transformers {facts.get('transformers', '?')}
- command: `{facts['command']}`

### Encoder: features to projected output

{encoder}

### PCM to tokens

{whole}

8 s clips were published for an H100: 22.7 and 26.8 ms (m87-labs/kestrel), 36.0 and 52.5 ms (NeMo 3.0); the goal is a
quarter of the former.{left}
"""


def warm(options):
    """Compiles one form of one bucket; only the compiler's cache is wanted."""
    bucket, mode = options.warm.rsplit("x", 1)
    rows, seconds = bucket.split("x")
    device = torch.device(options.device.split(":")[0])
    peer = Peer(options, device)
    samples = int(float(seconds) * 16000)
    peer.take(torch.randn(int(rows), samples) / 10, torch.full((int(rows),), samples))
    peer.compiled(MODES[mode])()
    synchronize(device)
    say(f"{options.warm}: compiled")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--berth")
    parser.add_argument("--folder", required=True)
    parser.add_argument("--out", default=".")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--buckets", default="1x10,16x10,64x10,1x8,8x8")
    parser.add_argument("--budget-s", type=float, default=330)
    parser.add_argument("--only", default=",".join(PARTS))
    parser.add_argument("--warm")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the report is written all the same
    with torch.no_grad(), tempfile.TemporaryDirectory() as scratch:
        if options.warm:
            warm(options)
            return
        run = Run(options)
        try:
            run.measure(pathlib.Path(scratch))
        finally:
            text = report(run.results)
            (run.out / "peers.md").write_text(text)
            print(text)


if __name__ == "__main__":
    main()
