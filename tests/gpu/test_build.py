"""What `make cuda` built, looked at on a machine that need not have a GPU."""

import os
import re
import shutil
import struct
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build-cuda"
PROGRAMS = [BUILD / "berth-cuda", *sorted(p for p in (BUILD / "tests").glob("gpu_*") if p.is_file())]
TARGETS = {"80", "89", "90a", "120"}
FATBIN = struct.pack("<I", 0xBA55ED50)
MACHINE_CODE = 2
SPECIFIC = 0x100000  # of the flags: code for that architecture alone, the a of 90a
LIMIT_S = 60

# Without a GPU in sight, on a machine that has one.
BLIND = dict(os.environ, CUDA_VISIBLE_DEVICES="-1")


def fatbins(path):
    """For each compiled .cu file of a program: the GPUs that it has machine code for."""
    data = path.read_bytes()
    at = data.find(FATBIN)
    while at >= 0:
        _, _, header, size = struct.unpack_from("<IHHQ", data, at)
        end = at + header + size
        if header == 16 and end <= len(data):
            found = set()
            entry = at + header
            while entry < end:
                kind, _, head, length = struct.unpack_from("<HHIQ", data, entry)
                (number,) = struct.unpack_from("<I", data, entry + 28)
                (flags,) = struct.unpack_from("<I", data, entry + 40)
                if kind == MACHINE_CODE:
                    found.add(f"{number}a" if flags & SPECIFIC else str(number))
                entry += head + length
            yield found
        at = data.find(FATBIN, at + 4)


def needed(path):
    out = subprocess.run(["readelf", "-d", path], check=True, capture_output=True, text=True)
    return re.findall(r"\(NEEDED\).*\[(.*)\]", out.stdout)


@pytest.mark.parametrize("program", ["berth-cuda", "gpu_remap"])
def test_machine_code_for_all_targets(program):
    path = BUILD / program if program == "berth-cuda" else BUILD / "tests" / program
    found = list(fatbins(path))
    assert len(found) >= 1
    for targets in found:
        assert targets == TARGETS


@pytest.mark.parametrize("folder", ["build", "build-cuda"])
def test_berth_is_free_of_cuda(folder):
    path = ROOT / folder / "berth"
    if not path.exists():
        pytest.skip(f"there is no {folder}/berth")
    assert not [name for name in needed(path) if re.search("cuda|cublas|nv", name)]
    assert FATBIN not in path.read_bytes()


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda p: p.name)
def test_programs_link_no_driver(path):
    assert "libcuda.so.1" not in needed(path)
    assert not [name for name in needed(path) if name.startswith("libcudart")]


def test_errors_that_end_a_process_are_known():
    """Whatever CUDA's header says that of, and the two that no process gets over either."""
    header = (ROOT / ".deps" / "cuda" / "include" / "driver_types.h").read_text()
    said = re.findall(r"/\*\*((?:(?!\*/).)*)\*/\s*(cudaError\w+)\s*=", header, re.DOTALL)
    ends = {name for text, name in said
            if "must be terminated" in re.sub(r"[\s*]+", " ", text)}
    source = (ROOT / "src" / "engine" / "cuda" / "gpu.c").read_text()
    known = set(re.findall(r"case (cudaError\w+):", source))
    assert len(ends) >= 10
    assert known == ends | {"cudaErrorECCUncorrectable", "cudaErrorNvlinkUncorrectable"}


@pytest.mark.parametrize("arguments", [[], ["--probe"]])
def test_berth_cuda_says_that_there_is_no_gpu(arguments):
    done = subprocess.run([BUILD / "berth-cuda", *arguments], env=BLIND, capture_output=True,
                          text=True, timeout=LIMIT_S)
    assert done.returncode == 1
    assert "no GPU" in done.stdout + done.stderr


def test_bundle_joins_to_a_tree_that_runs_by_itself(tmp_path):
    out, tree = tmp_path / "bundle", tmp_path / "tree"
    subprocess.run([ROOT / "tools" / "bundle", "--out", out], check=True, timeout=10 * LIMIT_S)
    pieces = sorted(out.glob("berth.tar.xz.*"))
    assert pieces and all(p.stat().st_size <= 30 << 20 for p in pieces)
    subprocess.run([out / "unpack", tree], check=True, cwd=tmp_path, timeout=10 * LIMIT_S,
                   env=dict(os.environ, CUDA_HOME=str(ROOT / ".deps" / "cuda")))
    version = subprocess.run([tree / "bin" / "berth", "--version"], check=True, capture_output=True,
                             text=True, cwd=tmp_path, timeout=LIMIT_S).stdout
    assert version.startswith("berth ")
    assert (tree / "models" / "parakeet-nano-en" / "1" / "model.safetensors").exists()
    assert (tree / "models" / "parakeet-nano-en" / "config.pbtxt").exists()
    env = dict(os.environ, LD_LIBRARY_PATH=f"{tree / 'lib'}:{tree / 'cuda'}")
    for program in sorted((tree / "libexec").iterdir()):
        lines = subprocess.run(["ldd", program], check=True, capture_output=True, text=True,
                               env=env).stdout.splitlines()
        for line in lines:
            name, _, path = line.strip().partition(" => ")
            outside = path and not path.startswith((f"{tree}/lib/", f"{tree}/cuda/"))
            libc = re.match(r"lib(c|m|dl|pthread|rt|resolv|util|mvec)\.so\.", name)
            assert not outside or libc or "ld-linux" in name, f"{program.name}: {line.strip()}"
    # A piece that was damaged on the way is refused.
    with open(pieces[-1], "r+b") as file:
        file.seek(100)
        file.write(b"damaged")
    assert subprocess.run([out / "unpack", tmp_path / "other"], capture_output=True,
                          timeout=LIMIT_S).returncode != 0
    shutil.rmtree(tree)
