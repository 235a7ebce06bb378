"""What `berth bench` says of a server that refuses, what each command's help speaks of, and what a newcomer sees."""

import json
import re
import subprocess

import pytest

from conftest import BERTH, IDENTITY, ROOT, add_model


def test_the_demo_shows_a_recording_that_is_heard():
    clip = int(re.search(r"clip=(\d+)", (ROOT / "tools" / "demo").read_text())[1])
    golden = json.loads((ROOT / "tests/models/parakeet-nano-en/golden/golden.json").read_text())
    assert golden[clip]["text"] == golden[clip]["reference"]


def berth(*arguments):
    return subprocess.run([BERTH, *map(str, arguments)], capture_output=True, text=True, timeout=120)


COMMANDS = ("serve", "transcribe", "models", "doctor", "bench")


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_a_command_speaks_of_that_one_only(command):
    text = berth(command, "--help").stdout
    words = " ".join(text.split())  # as it was before its lines were cut
    for other in set(COMMANDS) - {command, "models"}:  # models are what all is about
        if (command, other) != ("bench", "transcribe"):  # one of its own
            assert not re.search(rf"(?<!berth )\b{other}\b", words), f"{other} in {words}"
    assert ("parakeet:" in words or "with parakeet" in words) == (command == "bench")
    lines = text.splitlines()
    assert all(line == line.rstrip() and len(line) <= 100 for line in lines), lines
    assert lines[0].split()[:2] == ["berth", command]


@pytest.mark.parametrize("command", COMMANDS)
def test_help_says_what_the_exit_status_means(command):
    text = " ".join(berth(command, "--help").stdout.split())
    assert re.search(r"Exit status: 0.*2 where what was typed cannot be\.$", text), text


@pytest.mark.parametrize("asked", [["help", "help"], ["help", "--help"], ["help", "-h"], ["help"], ["--help"], ["-h"]])
def test_every_way_to_ask_for_help(asked):
    result = berth(*asked)
    assert result.returncode == 0 and result.stderr == "" and "berth serve " in result.stdout
    assert result.stdout == berth("--help").stdout


def test_a_list_with_failed_models_is_a_list(tmp_path, serve):
    """Status 0 means that there is a list, from a folder as from a server."""
    add_model(tmp_path, "good", IDENTITY)
    add_model(tmp_path, "bad", 'backend: "nothing of that name"\n')
    server = serve(tmp_path)
    for where in (["--models", tmp_path], ["--server", server.url]):
        result = berth("models", *where)
        assert result.returncode == 0 and result.stderr == "", result.stderr
        assert re.search(r"^bad .*(FAILED|UNAVAILABLE)", result.stdout, re.M), result.stdout
    assert berth("models", "--models", tmp_path / "none").returncode == 1
    assert berth("models", "--server", "http://127.0.0.1:1").returncode == 1


@pytest.mark.parametrize("arguments, needed", [
    (["infer"], "--model is needed"), (["infer", "--model", "m"], "--input is needed: NAME:TYPE:DIMS"),
    (["infer", "--model="], "--model is needed"), (["infer", "--model", "m", "--input="], "--input is needed"),
    (["infer", "--input", "INPUT0:FP32:1,16"], "--model is needed"),
    (["parakeet"], "--model is needed"), (["parakeet", "--model="], "--model is needed"),
])
def test_what_bench_needs_is_named(arguments, needed):
    result = berth("bench", *arguments)
    assert result.returncode == 2 and needed in result.stderr and result.stdout == ""
    assert "whisper" not in result.stderr
