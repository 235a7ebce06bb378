"""tools/bundle: what was cut into pieces comes together again, however many there are."""

import importlib.machinery
import importlib.util
import io
import os
import random
import shutil
import subprocess
import sys
import tarfile

import pytest

from conftest import ROOT


@pytest.fixture(scope="module")
def bundle():
    loader = importlib.machinery.SourceFileLoader("bundle", str(ROOT / "tools" / "bundle"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("bundle", loader))
    loader.exec_module(module)
    return module


@pytest.mark.parametrize("count", [1, 2, 9, 10, 11, 99, 100, 101, 120, 1000, 1001])
def test_names_of_pieces_sort_as_the_pieces_do(bundle, tmp_path, count):
    content = random.Random(count).randbytes(8 * count - 3)
    (tmp_path / "whole").write_bytes(content)
    pieces = bundle.split(str(tmp_path / "whole"), 8)
    assert len(pieces) == count and pieces == sorted(pieces) and not (tmp_path / "whole").exists()
    assert b"".join(open(piece, "rb").read() for piece in pieces) == content
    listed = [line.split()[1] for line in (tmp_path / "sums").read_text().splitlines()]
    assert listed == [os.path.basename(piece) for piece in pieces]


@pytest.mark.parametrize("count", [1, 120])
@pytest.mark.parametrize("xz", [True, False])
def test_unpacked_from_any_number_of_pieces(bundle, tmp_path, count, xz):
    content = random.Random(count).randbytes(20 * count)
    archive = tmp_path / "berth.tar.xz"
    with tarfile.open(archive, "w:xz") as tar:
        info = tarfile.TarInfo("bin/berth")
        info.size = len(content)
        tar.addfile(info, io.BytesIO(content))
    pieces = [os.path.basename(path)
              for path in bundle.split(str(archive), -(-archive.stat().st_size // count))]
    assert count // 2 < len(pieces) <= count
    bundle.write_unpack(str(tmp_path))
    (tmp_path / (pieces[0] + "0")).write_bytes(b"a piece of another bundle that was carried here before")
    environment = dict(os.environ)
    if not xz:  # a machine without it: Python's own
        environment["PATH"] = path_without(tmp_path / "tools", "xz")
    out = tmp_path / "out"
    subprocess.run([tmp_path / "unpack", out], check=True, env=environment)
    assert (out / "bin" / "berth").read_bytes() == content

    # A piece that is missing, or another's, is told and nothing is unpacked.
    (tmp_path / pieces[-1]).write_bytes(b"x")
    assert subprocess.run([tmp_path / "unpack", tmp_path / "no"], env=environment, check=False).returncode != 0
    assert not (tmp_path / "no").exists()


def path_without(folder, name):
    """A folder with what unpack calls, and not `name`."""
    folder.mkdir()
    for tool in ("bash", "env", "dirname", "cat", "sha256sum", "mkdir", "tar", "python3", "ln"):
        if tool != name:
            (folder / tool).symlink_to(os.path.realpath(sys.executable) if tool == "python3" else shutil.which(tool))
    return str(folder)
