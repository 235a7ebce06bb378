"""Runs the comparisons and writes the report.

usage: main.py [NAME...]     all of them, into docs/benchmarks.md; or the named ones, into
                             build/bench/benchmarks.md, where short runs (BERTH_BENCH_QUICK=1) go too
"""
import datetime
import os
import pathlib
import platform
import signal
import sys
import time

import kserve
import parakeet_cpu
import speech
from common import BERTH, LOGS, QUICK, ROOT, Failure, busy_s, median, number, run, say, table

# Name, title, function. A further comparison (another model, many models on one machine) is a module
# beside these and a line here.
COMPARISONS = [
    ("identity", "Tensors over KServe HTTP", kserve.identity),
    ("front", "Front end against front end", kserve.front),
    ("speech", "Speech to text", speech.speech),
    ("parakeet", "Parakeet on the CPU", parakeet_cpu.parakeet),
    ("second-opinion", "Tensors again, by `berth bench`", kserve.second_opinion),
    ("clients", "The load generators against each other", kserve.clients),
]


def cpu_name():
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()


def memory_gib():
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30


def system_name():
    try:
        return platform.freedesktop_os_release()["PRETTY_NAME"]
    except (OSError, KeyError):
        return platform.system()


def berth_version():
    try:
        commit = run(["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=12"]).strip()
    except Failure:
        commit = "unknown commit"
    return commit


def load_before():
    """Cores that others use before anything of ours runs."""
    busy, t = busy_s(), time.monotonic()
    time.sleep(1)
    return (busy_s() - busy) / (time.monotonic() - t)


def met(wanted, value):
    sign, limit = wanted.split()
    return value <= float(limit) if sign == "<=" else value >= float(limit)


def goal_table(goals):
    rows = []
    for what, wanted, ratios in goals:
        if not ratios:
            rows.append([what, wanted, "not measured", "-"])
            continue
        value = median(ratios)
        rows.append([what, wanted, f"{value:.2f} ({min(ratios):.2f}-{max(ratios):.2f})",
                     "yes" if met(wanted, value) else "**no**"])
    return table(["berth / peer", "goal", "median of the rounds' ratios", "met"], rows)


def report(names):
    """Measures; returns the report's text, and whether all could be measured."""
    before = load_before()
    if before > 0.2:
        say(f"warning: other processes use {before:.1f} cores; the figures will suffer")
    sections, goals, complete = [], [], True
    t_start = time.monotonic()
    for name, title, compare in COMPARISONS:
        if name in names:
            say(name)
            try:
                text, wanted = compare()
            except Failure as failure:
                say(f"{name}: FAILED: {failure}")
                text, wanted, complete = f"Not measured: {failure}\n", [], False
            sections.append(f"## {title}\n\n{text}")
            goals += wanted
    versions = {"berth": berth_version(), **kserve.versions(), **speech.versions(),
                **parakeet_cpu.versions()}
    lines = [
        "# Benchmarks",
        "Written by `make bench` (bench/README.md says how it measures, and how to read a ratio). "
        "Each figure of berth was\nmeasured in turn with its peer's, on the same machine, in the same run.",
        f"- machine: {cpu_name()}, {os.cpu_count()} cores, {memory_gib():.0f} GiB; "
        f"{system_name()}, kernel {platform.release()}\n"
        f"- date: {datetime.date.today()}; the run took {(time.monotonic() - t_start) / 60:.0f} minutes; "
        f"other processes used {before:.2f} cores before it\n"
        "- versions: " + "; ".join(f"{name} {version}" for name, version in versions.items()),
        ("- command: `make bench`" if set(names) == {name for name, _, _ in COMPARISONS} else
         f"- command: `bench/run {' '.join(names)}`") if not QUICK else "- command: `BERTH_BENCH_QUICK=1 make bench`: "
        "short windows, few rounds; not figures to quote",
    ]
    if goals:
        lines.append("## Goals\n\n" + goal_table(goals))
    return "\n\n".join(lines + sections).rstrip() + "\n", complete


def main(arguments):
    known = [name for name, _, _ in COMPARISONS]
    unknown = [name for name in arguments if name not in known]
    if unknown:
        print(f"bench: unknown: {' '.join(unknown)}; there are: {' '.join(known)}", file=sys.stderr)
        return 2
    if not BERTH.exists() or not (ROOT / "models/identity").is_dir():
        print("bench: FAILED: build/berth or models/ is missing\nbench: Run: make build models",
              file=sys.stderr)
        return 1
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the servers are stopped too
    text, complete = report(arguments or known)
    path = LOGS / "benchmarks.md" if arguments or QUICK else ROOT / "docs/benchmarks.md"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    say(f"written: {path.relative_to(ROOT)}")
    return 0 if complete else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
