"""What `berth bench` says of a server that refuses, what each command's help speaks of, and what a newcomer sees."""

import json
import re

from conftest import ROOT


def test_the_demo_shows_a_recording_that_is_heard():
    clip = int(re.search(r"clip=(\d+)", (ROOT / "tools" / "demo").read_text())[1])
    golden = json.loads((ROOT / "tests/models/parakeet-nano-en/golden/golden.json").read_text())
    assert golden[clip]["text"] == golden[clip]["reference"]
