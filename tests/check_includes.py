#!/usr/bin/env python3
"""Checks that includes point one way through src/ (STYLE.md, section 1).

A file includes only its own folder and folders to its left in ORDER. Folders of one step never
include each other. What is inside of one engine is known there and to cli/'s benchmarks only. A library
is included only where it belongs. A .c file includes its own header first. Prints file:line for each finding and ends with counts; exit status 1 if there are any.

usage: tests/check_includes.py [SRC]        (default: src beside this script's folder)
"""

import os
import re
import sys

# Each step may include the steps before it, and within itself only the same folder.
ORDER = [
    ["base"],
    ["request"],
    ["model"],
    ["net", "repo", "media", "engine"],
    ["worker"],
    ["residency"],
    ["sched"],
    ["task"],
    ["api", "jobs", "fleet"],
    ["cli"],
    ["main"],
]
RANK = {folder: rank for rank, step in enumerate(ORDER) for folder in step}

ENGINES = ["engine/whisper/", "engine/parakeet/"]

# What is known in one folder only: pattern of the header, folders that may include it.
LIBRARIES = [
    (re.compile(r"onnxruntime"), {"engine"}),
    (re.compile(r"^(libav|libsw)\w+/|turbojpeg\.h$"), {"media"}),
    (re.compile(r"^http_parser\.h$|^llhttp\.h$|^nghttp2/|^openssl/ssl\.h$"), {"net"}),
    (re.compile(r"^cuda|^nvml\.h$|^cublas"), {"engine", "residency", "worker"}),
]

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')


def folder_of(path):
    """The module a file of src/ belongs to; files right in src/ are composition roots."""
    parts = path.split("/")
    return parts[0] if len(parts) > 1 else "main"


def sources(root):
    for folder, folders, names in os.walk(root):
        folders.sort()
        for name in sorted(names):
            if name.endswith((".c", ".h", ".cu", ".cuh")):
                yield os.path.relpath(os.path.join(folder, name), root)


def resolve(path, target, known, by_name):
    """The path within src/ of what `path` includes as "target", or None."""
    beside = os.path.normpath(os.path.join(os.path.dirname(path), target))
    for candidate in (os.path.normpath(target), beside):
        if candidate in known:
            return candidate
    found = by_name.get(target, [])
    return found[0] if len(found) == 1 else None


def check_quoted(path, target, known, by_name):
    """Why `path` may not include "target", or None."""
    where = resolve(path, target, known, by_name)
    if where is None:
        return f'"{target}" is not a file of src/'
    mine, theirs = folder_of(path), folder_of(where)
    if theirs not in RANK:
        return None  # said once for the folder itself
    for engine in ENGINES:
        if where.startswith(engine) and not path.startswith(engine) and mine != "cli":
            return f"{engine} is the inside of one engine"
    if mine == theirs or RANK[theirs] < RANK[mine]:
        return None
    if RANK[theirs] == RANK[mine]:
        return f"{mine}/ and {theirs}/ stand side by side and never include each other"
    return f"{mine}/ comes before {theirs}/ and may not include {where}"


def check_library(path, target):
    for pattern, folders in LIBRARIES:
        if pattern.search(target) and folder_of(path) not in folders:
            return f"<{target}> belongs to {', '.join(sorted(folders))}/ only"
    return None


def check_file(root, path, known, by_name):
    """Yields (line, message)."""
    if folder_of(path) not in RANK:
        yield 1, f"folder {folder_of(path)}/ has no place in ORDER; give it one in {__file__}"
        return
    own = os.path.splitext(path)[0] + ".h"
    first = True
    with open(os.path.join(root, path), encoding="utf-8", errors="replace") as file:
        for number, line in enumerate(file, 1):
            match = INCLUDE.match(line)
            if match is None:
                continue
            quoted, target = match.group(1) == '"', match.group(2)
            if first and path.endswith(".c") and own in known:
                if resolve(path, target, known, by_name) != own:
                    yield number, f'the first include is the file\'s own header, "{own}"'
            first = False
            if quoted and not re.search(r"onnxruntime", target):
                message = check_quoted(path, target, known, by_name)
            else:
                message = check_library(path, target)
            if message is not None:
                yield number, message


def main():
    here = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    root = sys.argv[1] if len(sys.argv) > 1 else os.path.join(here, "src")
    paths = list(sources(root))
    known = set(paths)
    by_name = {}
    for path in paths:
        by_name.setdefault(os.path.basename(path), []).append(path)
    findings = 0
    for path in paths:
        for number, message in check_file(root, path, known, by_name):
            print(f"{os.path.relpath(os.path.join(root, path))}:{number}: include: {message}")
            findings += 1
    print(f"check_includes: {len(paths)} files, {findings} findings")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
