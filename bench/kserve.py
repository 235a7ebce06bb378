"""Tensors over KServe HTTP: berth's null engine beside Triton's python backend, both as `identity`.

Every measurement of berth is followed by the same one of Triton; a ratio is taken within such a
pair, and the median of the rounds' ratios is what counts. Both servers run all the time; the one
that is not measured is idle.
"""
import resource
import time

from common import (
    BENCH, QUICK, Failure, berth, berth_bench, berth_bench_command, busy_s, median, missing, number,
    perf_analyzer, perf_analyzer_command, run, say, spread, table, triton, wrk, wrk_command)

SIZES = {"64 B": 16, "600 KB": 150_000, "3 MB": 786_432}  # floats in, as many out
CLIENTS = (1, 8, 32)
ROUNDS = 1 if QUICK else 5
# perf_analyzer counts only what begins and ends within one of its three windows.
WINDOW_MS = {16: 700, 150_000: 700, 786_432: 1500}
BENCH_S = 0.7 if QUICK else 1.5
CACHE = "--cache-config=local,size=67108864"
PEER = "Triton, python backend"


def measure(server, model, client):
    """What the client saw, and CPU time per request of the server (all of its processes)."""
    count, cpu_s, busy, t = server.served(model), server.cpu_s(), busy_s(), time.monotonic()
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    result = client(server, model)
    elapsed_s = time.monotonic() - t
    now = resource.getrusage(resource.RUSAGE_CHILDREN)
    client_s = now.ru_utime + now.ru_stime - used.ru_utime - used.ru_stime
    cpu_s = server.cpu_s() - cpu_s
    count = result.get("requests") or server.served(model) - count
    if count < 1:
        raise Failure(f"{server.name} counts no request")
    result["cpu_ms"] = cpu_s * 1e3 / count
    result["client_ms"] = client_s * 1e3 / count
    result["others"] = max(0.0, (busy_s() - busy - cpu_s - client_s) / elapsed_s)
    return result


class Case:
    """One load, measured on both servers in turn."""

    def __init__(self, label, client, model="identity", peer_model="identity"):
        self.label, self.client = label, client
        self.models = (model, peer_model)
        self.results = ([], [])

    def round(self, servers):
        """A measurement that fails takes its partner's with it, and no other."""
        try:
            pair = [measure(server, model, self.client)
                    for server, model in zip(servers, self.models) if server is not None]
        except Failure as failure:
            say(f"{' '.join(self.label)}: left out of this round: {failure}")
            return
        for results, result in zip(self.results, pair):
            results.append(result)

    def values(self, side, key):
        return [result[key] for result in self.results[side]]

    def ratios(self, key):
        """berth / peer, a ratio for each round."""
        return [a / b for a, b in zip(self.values(0, key), self.values(1, key)) if b > 0]

    def row(self):
        cells = [*self.label]
        for key in ("requests_per_s", "p50_ms", "p99_ms", "cpu_ms"):
            cells += [number(median(self.values(side, key))) if self.results[side] else "-"
                      for side in (0, 1)]
            if key in ("requests_per_s", "cpu_ms"):
                cells.append(spread(self.ratios(key)) if self.results[1] else "-")
        cells.append(number(max(self.values(0, "others") + self.values(1, "others"), default=0)))
        return cells


HEAD = ["requests/s: berth", "Triton", "ratio", "p50 ms: berth", "Triton", "p99 ms: berth",
        "Triton", "CPU ms a request: berth", "Triton", "ratio", "other load, cores"]


def with_perf_analyzer(floats, clients):
    return lambda server, model: perf_analyzer(server, model, floats, clients,
                                               WINDOW_MS[floats])


def with_berth_bench(floats, clients):
    seconds = BENCH_S if floats < 500_000 else 2 * BENCH_S
    return lambda server, model: berth_bench(server, model, floats, clients, seconds)


def with_wrk(path, clients, script=None):
    return lambda server, model: wrk(server, path, clients, BENCH_S, script)


def cases_of(client):
    return [Case((size, str(clients)), client(floats, clients))
            for size, floats in SIZES.items() for clients in CLIENTS]


def run_rounds(cases, servers, rounds, name):
    for server, model in zip(servers, ("identity", "identity")):
        if server is not None:  # the first requests load and touch what later ones find
            berth_bench(server, model, 786_432, 8, 0.5)
    for i in range(rounds):
        say(f"{name}: round {i + 1} of {rounds}")
        for case in cases:
            case.round(servers)


def shown(command):
    """A command as one would type it in the project's folder."""
    return " ".join(part.replace(str(BENCH.parent) + "/", "") for part in command)


def note_missing():
    reason = missing("triton")
    if reason is None:
        return ""
    return f"\nTriton could not be installed here ({reason}); berth's figures stand alone.\n"


class Servers:
    """Both, or berth alone where the peer is not there."""

    def __enter__(self):
        self.ours = berth().__enter__()
        self.peer = None
        try:
            if missing("triton") is None:
                self.peer = triton(CACHE).__enter__()
        except BaseException:
            self.ours.stop()
            raise
        return self.ours, self.peer

    def __exit__(self, *_):
        for server in (self.peer, self.ours):
            if server is not None:
                server.stop()


# --- comparisons: each returns (text, goals); a goal is (what, wanted, ratios of the rounds) ---


def identity():
    with Servers() as servers:
        has_peer = servers[1] is not None
        client = with_perf_analyzer if has_peer else with_berth_bench
        cases = cases_of(client)
        run_rounds(cases, servers, ROUNDS, "identity")
    small, large = cases[1], cases[7]
    goals = []
    if has_peer:
        goals = [
            ("64 B, 8 clients: CPU a request", "<= 0.25", small.ratios("cpu_ms")),
            ("3 MB, 8 clients: CPU a request", "<= 0.333", large.ratios("cpu_ms")),
            ("64 B, 8 clients: requests/s", ">= 2", small.ratios("requests_per_s")),
            ("3 MB, 8 clients: requests/s", ">= 1.5", large.ratios("requests_per_s")),
            ("64 B, 1 client: median latency", "<= 0.5", cases[0].ratios("p50_ms")),
        ]
    windows = ", ".join(f"{size}: {WINDOW_MS[floats]}" for size, floats in SIZES.items())
    command = (perf_analyzer_command("ADDR:PORT", "identity", "N", "C", "MS") if has_peer
               else berth_bench_command("ADDR:PORT", "identity", "N", "C", BENCH_S))
    client_ms, berth_ms = (number(median(small.values(0, key) or [0])) for key in
                           ("client_ms", "cpu_ms"))
    return f"""One FP32 tensor in, the same out, binary both ways. berth: `null` engine. Peer: {PEER}.
Medians of {ROUNDS} rounds; ratios are berth / Triton, with the range of the rounds in brackets.
The client takes part of the same cores (at 64 B and 8 clients {client_ms} ms of CPU a request,
beside berth's {berth_ms}), so a low server cost shows in requests/s only as far as the client keeps up.
{note_missing()}
Command, for N floats, C clients and windows of MS milliseconds ({windows}): `{shown(command)}`
Servers: `{shown(servers[0].command)}`
{f"and `{shown(servers[1].command)}`" if has_peer else ""}

{table(["tensor", "clients", *HEAD], [case.row() for case in cases])}
""", goals


def second_opinion():
    rounds = min(ROUNDS, 3)
    with Servers() as servers:
        cases = cases_of(with_berth_bench)
        run_rounds(cases, servers, rounds, "second opinion")
    command = berth_bench_command("ADDR:PORT", "identity", "N", "C", BENCH_S)
    return f"""The same loads from berth's own load generator, which costs less CPU. Peer: {PEER}. {rounds} rounds.
{note_missing()}
Command: `{shown(command)}`

{table(["tensor", "clients", *HEAD], [case.row() for case in cases])}
""", []


def front():
    rounds = min(ROUNDS, 3)
    cases, notes = [], []
    with Servers() as servers:
        if missing("wrk") is None:
            cases += [Case((what, clients), with_wrk(path, int(clients)))
                      for what, path in (("GET /v2/health/live", "/v2/health/live"),
                                         ("GET /v2/models/identity", "/v2/models/identity"))
                      for clients in ("1", "8")]
        else:
            notes.append(f"Health and metadata are left out: wrk is missing ({missing('wrk')}).")
        if servers[1] is not None:
            cases += [Case((f"infer, {size}; Triton from its response cache", "8"),
                           with_perf_analyzer(floats, 8), peer_model="identity_cached")
                      for size, floats in SIZES.items()]
        run_rounds(cases, servers, rounds, "front end")
    wrk_line = shown(wrk_command("ADDR:PORT", "/PATH", "C", BENCH_S))
    return f"""What the HTTP side costs where no backend runs. Triton answers infer from its response cache (its
wheel carries the local one, `{CACHE}`), so its python backend takes no part; berth
has no cache and runs its `null` engine. {rounds} rounds. {' '.join(notes)}
{note_missing()}
Commands: `{wrk_line}`; infer as above.

{table(["request", "clients", *HEAD], [case.row() for case in cases])}
""", []


def clients():
    """Whether three load generators see the same server."""
    rounds = min(ROUNDS, 3)
    kinds = [("berth bench", with_berth_bench(16, 8))]
    if missing("triton") is None:
        kinds.append(("perf_analyzer", with_perf_analyzer(16, 8)))
    if missing("wrk") is None:
        kinds.append(("wrk", with_wrk("/v2/models/identity/infer", 8, BENCH / "infer.lua")))
    cases = [Case((kind,), client) for kind, client in kinds]
    with Servers() as servers:
        run_rounds(cases, servers, rounds, "clients")
    rows = []
    for side, name in enumerate(("berth", PEER)):
        for case in cases:
            if case.results[side]:
                rows.append([case.label[0], name, *(spread(case.values(side, key)) for key in
                             ("requests_per_s", "p50_ms", "p99_ms", "cpu_ms", "client_ms"))])
    head = ["client", "server", "requests/s", "p50 ms", "p99 ms", "server CPU ms a request",
            "client CPU ms a request"]
    return f"""identity, 64 B, 8 clients, closed loop: the same load by three generators, {rounds} rounds, interleaved. Where
they differ, it is by what the client itself takes of the shared cores.
{note_missing()}
Command of wrk: `{shown(wrk_command("ADDR:PORT", "/v2/models/identity/infer", 8, BENCH_S, BENCH / "infer.lua"))}`

{table(head, rows)}
""", []


def versions():
    found = {}
    if missing("triton") is None:
        found["Triton"] = "2.51.0 (tritonserver of nvidia-pytriton 0.7.0), python backend, 1 instance"
        found["perf_analyzer"] = "of tritonclient 2.50.0"
    if missing("wrk") is None:
        try:
            found["wrk"] = run(["dpkg-query", "-W", "-f=${Version}", "wrk"])
        except Failure:
            found["wrk"] = "unknown"
    return found
