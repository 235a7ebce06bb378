"""What all comparisons share: the two servers, the load generators, CPU time, medians, tables."""
import json
import os
import pathlib
import re
import signal
import socket
import statistics
import subprocess
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parent.parent
DEPS, PEERS, BENCH = ROOT / ".deps", ROOT / ".deps/peers", ROOT / "bench"
BERTH = ROOT / "build/berth"
LOGS = ROOT / "build/bench"
VENV = PEERS / "venv"
QUICK = os.environ.get("BERTH_BENCH_QUICK") == "1"
TICKS = os.sysconf("SC_CLK_TCK")
READY_S = 60


class Failure(Exception):
    """A figure that cannot be had, and why."""


def say(text):
    print(f"bench: {text}", flush=True)


def missing(peer):
    """Why a peer is not there (bench/setup-peers wrote it), or None."""
    try:
        lines = (PEERS / "missing").read_text().splitlines()
    except OSError:
        return "bench/setup-peers has not run"
    return next((line.split(": ", 1)[1] for line in lines if line.startswith(peer + ": ")), None)


# --- servers ---


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Server:
    """A process that serves HTTP on 127.0.0.1; ends with the with-block."""

    def __init__(self, name, command, port, environment=None):
        LOGS.mkdir(parents=True, exist_ok=True)
        self.name, self.port, self.command = name, port, command
        self.url, self.log = f"127.0.0.1:{port}", LOGS / f"{name}.log"
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, env=environment,
                                            stdin=subprocess.DEVNULL)
        self.pid = self.process.pid

    def __enter__(self):
        try:
            self.wait_ready()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_):
        self.stop()

    def wait_ready(self):
        t_end = time.monotonic() + READY_S
        while time.monotonic() < t_end:
            if self.process.poll() is not None:
                break
            try:
                self.get("/v2/health/ready")
                return
            except OSError:
                time.sleep(0.1)
        tail = self.log.read_text(errors="replace").splitlines()[-3:]
        raise Failure(f"{self.name} is not ready after {READY_S} s or ended: " + " / ".join(tail))

    def stop(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()

    def get(self, path):
        with urllib.request.urlopen(f"http://{self.url}{path}", timeout=5) as answer:
            return answer.read()

    def served(self, model):
        """Requests that the model has answered, by the server's own count."""
        stats = json.loads(self.get(f"/v2/models/{model}/stats"))
        return int(stats["model_stats"][0]["inference_stats"]["success"]["count"])

    def cpu_s(self):
        """User and system time of the process, its living descendants, and children waited for."""
        parents, used = {}, {}
        for entry in os.listdir("/proc"):
            if entry.isdigit():
                try:
                    text = pathlib.Path(f"/proc/{entry}/stat").read_text()
                except OSError:
                    continue
                field = text[text.rindex(")") + 2:].split()
                parents.setdefault(int(field[1]), []).append(int(entry))
                used[int(entry)] = sum(map(int, field[11:15])) / TICKS
        total, todo = 0, [self.pid]
        while todo:
            pid = todo.pop()
            total += used.get(pid, 0)
            todo += parents.get(pid, [])
        return total


def berth(*options):
    port = free_port()
    command = [str(BERTH), "serve", "--models", str(ROOT / "models"), "--listen",
               f"127.0.0.1:{port}", "--log-level", "warn", *options]
    return Server("berth", command, port)


def triton(*options):
    """tritonserver out of nvidia-pytriton's wheel; it has the python backend and no other."""
    site = next(VENV.glob("lib/python3*/site-packages"))
    home, port = site / "pytriton/tritonserver", free_port()
    command = [str(home / "bin/tritonserver"), f"--model-repository={BENCH / 'triton_models'}",
               f"--backend-directory={home / 'backends'}", "--model-control-mode=none",
               f"--cache-directory={home / 'caches'}", "--allow-grpc=false",
               "--allow-metrics=false", "--http-address=127.0.0.1", f"--http-port={port}", *options]
    # The stub runs the first python3 of PATH, for numpy. The wheel's own libraries lie beside it.
    environment = dict(os.environ, PYTHONDONTWRITEBYTECODE="1",
                       PATH=f"{VENV / 'bin'}:{os.environ['PATH']}",
                       LD_LIBRARY_PATH=f"{PEERS / 'lib'}:{site / 'nvidia_pytriton.libs'}")
    return Server("triton", command, port, environment)


# --- load generators; each returns requests_per_s, p50_ms, p99_ms ---


def run(command, timeout_s=120, environment=None):
    """The command's output; its end with an error is a Failure."""
    try:
        result = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                stderr=subprocess.STDOUT, text=True, timeout=timeout_s,
                                env=environment)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Failure(f"{pathlib.Path(command[0]).name}: {error}") from None
    if result.returncode != 0:
        tail = " / ".join(result.stdout.strip().splitlines()[-3:])
        raise Failure(f"{pathlib.Path(command[0]).name} ended with {result.returncode}: {tail}")
    return result.stdout


def perf_analyzer_command(url, model, floats, concurrency, window_ms):
    return [str(VENV / "bin/perf_analyzer"), "-m", model, "-i", "http", "-u", url,
            "--shape", f"INPUT0:{floats}", "--concurrency-range", str(concurrency),
            # Three windows, whatever they say: spread is judged over our rounds.
            "-p", str(window_ms), "-s", "999", "-r", "3"]


def perf_analyzer(server, model, floats, concurrency, window_ms, may_retry=True):
    libraries = ":".join(map(str, VENV.glob("lib/python3*/site-packages/nvidia/cuda_runtime/lib")))
    environment = dict(os.environ, LD_LIBRARY_PATH=f"{PEERS / 'lib'}:{libraries}")
    try:
        text = run(perf_analyzer_command(server.url, model, floats, concurrency, window_ms),
                   environment=environment)
    except Failure as failure:
        if may_retry and "larger time window" in str(failure):
            return perf_analyzer(server, model, floats, concurrency, 4 * window_ms, False)
        raise
    found = [re.search(pattern, text) for pattern in
             (r"Throughput: ([\d.]+)", r"p50 latency: (\d+)", r"p99 latency: (\d+)")]
    if None in found:
        raise Failure("perf_analyzer measured nothing: " + " / ".join(text.splitlines()[-3:]))
    rate, p50_us, p99_us = (float(match[1]) for match in found)
    return {"requests_per_s": rate, "p50_ms": p50_us / 1e3, "p99_ms": p99_us / 1e3}


def berth_bench_command(url, model, floats, concurrency, seconds):
    return [str(BERTH), "bench", "infer", "--url", f"http://{url}", "--model", model, "--input",
            f"INPUT0:FP32:1x{floats}", "--concurrency", str(concurrency), "--duration",
            f"{seconds:g}s", "--warmup", "0.5s", "--json"]


def berth_bench(server, model, floats, concurrency, seconds):
    answer = json.loads(run(berth_bench_command(server.url, model, floats, concurrency, seconds)))
    if set(answer["statuses"]) != {"200"}:
        raise Failure(f"{server.name} answered {answer['statuses']}")
    return answer


UNIT_MS = {"us": 1e-3, "ms": 1, "s": 1e3}


def wrk_command(url, path, concurrency, seconds, script=None):
    more = ["-s", str(script)] if script else []
    return ["wrk", "-t", "1", "-c", str(concurrency), "-d", f"{max(1, round(seconds))}s",
            "--latency", *more, f"http://{url}{path}"]


def wrk(server, path, concurrency, seconds, script=None):
    text = run(wrk_command(server.url, path, concurrency, seconds, script))
    if "Non-2xx" in text or "Socket errors" in text:
        raise Failure(f"wrk got errors from {server.name}{path}: {text.splitlines()[-3:]}")

    def latency(share):
        value, unit = re.search(rf"{share}%\s+([\d.]+)(us|ms|s)", text).groups()
        return float(value) * UNIT_MS[unit]
    return {"requests_per_s": float(re.search(r"Requests/sec:\s+([\d.]+)", text)[1]),
            "requests": int(re.search(r"(\d+) requests in", text)[1]),
            "p50_ms": latency(50), "p99_ms": latency(99)}


# --- figures ---


def median(values):
    return statistics.median(values)


def number(value):
    """About three figures; large ones with thousands apart."""
    if value >= 100:
        return f"{value:,.0f}"
    if value >= 10:
        return f"{value:.1f}"
    return f"{value:.2f}" if value >= 0.1 else f"{value:.3f}"


def spread(values):
    """Median, and from-to where there are several."""
    middle = number(median(values))
    if len(values) == 1:
        return middle
    return f"{middle} ({number(min(values))}-{number(max(values))})"


def table(head, rows):
    """A Markdown table; columns after the first are numbers."""
    lines = ["| " + " | ".join(head) + " |", "|---" + "|--:" * (len(head) - 1) + "|"]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])


def busy_s():
    """CPU time of the whole machine that was used, or taken by its host, in seconds."""
    field = [int(x) for x in pathlib.Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    return (sum(field) - field[3] - field[4]) / TICKS
