"""A model that serves, and files that are broken since: who asks for the reload hears why, the index and `berth models`
say so, the log says it once, and what was loaded before serves."""

import json
import os
import subprocess

import pytest

from conftest import BERTH, IDENTITY, add_model, wait_until
from test_load_failures import KINDS, name_of

INDEX = "/v2/repository/index"
BODY = b'{"inputs":[{"name":"INPUT0","shape":[1,1],"datatype":"FP32","data":[1]}]}'
GOES_ON = "; the one loaded before serves"
TRITON = "failed to poll from model repository: "
CHANGED = [kind for kind, (config, files, _) in KINDS.items() if config is not None and not files and kind != "policy"]


def write(folder, name, text):
    """At once, so that who looks meanwhile sees the old file or the new one."""
    (folder / "config.new").write_text(text)
    os.replace(folder / "config.new", folder / name / "config.pbtxt")


def index(server):
    return {row["name"]: row for row in json.loads(server.call("POST", INDEX, b"{}")[2])}


@pytest.fixture(scope="module")
def explicit(tmp_path_factory):
    folder = tmp_path_factory.mktemp("explicit")
    for kind in CHANGED:
        add_model(folder, name_of(kind), IDENTITY)
    return folder


@pytest.mark.parametrize("flags", [[], ["--errors=typed"], ["--errors=typed", "--cpu-worker=process"]])
def test_a_failed_reload_says_why_everywhere(explicit, serve, flags):
    server = serve(explicit, "--model-control-mode=explicit", "--load-model=*", "--device-bytes-max=1G", *flags)
    wait_until(lambda: all(row["state"] == "READY" for row in index(server).values()))
    for kind in CHANGED:
        config, _, why = KINDS[kind]
        name = name_of(kind)
        load = f"/v2/repository/models/{name}/load"
        write(explicit, name, config)
        for _ in range(2):
            status, _, answer = server.call("POST", load, b"{}")
            text = json.loads(answer)["error"]
            assert status >= 400 and why in text, text
            assert flags or text.startswith((f"failed to load '{name}', {TRITON}", f"failed to load '{name}': ")), text
        row = index(server)[name]
        assert row["state"] == "READY" and row["reason"].startswith("reload failed: "), row
        assert why in row["reason"] and row["reason"].endswith(GOES_ON), row
        table = subprocess.run([BERTH, "models", "--server", server.url], capture_output=True, text=True, check=True).stdout
        assert any(line.startswith(name + " ") and row["reason"] in line for line in table.splitlines()), table
        assert server.call("POST", f"/v2/models/{name}/infer", BODY)[0] == 200
        write(explicit, name, IDENTITY + "# mended\n")
        status, _, answer = server.call("POST", load, b"{}")
        assert status == 200, answer
        assert "reason" not in index(server)[name]


def test_a_clients_own_config_says_nothing_about_the_files(explicit, serve):
    server = serve(explicit, "--model-control-mode=explicit", "--load-model=" + name_of("text"))
    wait_until(lambda: index(server)[name_of("text")]["state"] == "READY")
    body = json.dumps({"parameters": {"config": '{"max_batch_size": "many"}'}}).encode()
    status, _, answer = server.call("POST", f"/v2/repository/models/{name_of('text')}/load", body)
    assert status == 500 and b"max_batch_size" in answer
    assert "reason" not in index(server)[name_of("text")]


def test_a_folder_that_is_gone(tmp_path, serve):
    add_model(tmp_path, "here", IDENTITY)
    server = serve(tmp_path, "--model-control-mode=explicit", "--load-model=here")
    wait_until(lambda: index(server)["here"]["state"] == "READY")
    os.rename(tmp_path / "here", tmp_path / ".away")
    status, _, answer = server.call("POST", "/v2/repository/models/here/load", b"{}")
    assert status == 500 and json.loads(answer)["error"].endswith(TRITON + "it is not in the repository"), answer
    assert index(server)["here"]["reason"] == "reload failed: it is not in the repository" + GOES_ON
    os.rename(tmp_path / ".away", tmp_path / "here")
    assert server.call("POST", "/v2/repository/models/here/load", b"{}")[0] == 200
    assert "reason" not in index(server)["here"]


def test_polling_warns_once_a_change(tmp_path, serve):
    # "large" has two reasons: it took too much, and then it is not loaded again for what it took
    names = {name_of(kind): KINDS[kind] for kind in CHANGED if kind != "large"}
    for name in names:
        add_model(tmp_path, name, IDENTITY)
    server = serve(tmp_path, "--model-control-mode=poll", "--repository-poll=20ms", "--load-backoff=1ms",
                   "--device-bytes-max=1G")

    def looks(count):
        end = server.metric("berth_repository_scans_total") + count
        wait_until(lambda: server.metric("berth_repository_scans_total") >= end)

    def warned(name):
        return sum(" WARN " in line and f"model '{name}' could not be loaded" in line
                   for line in server.logged().splitlines())

    def reasons(wanted):
        rows = index(server)
        return all(rows[name]["state"] == "READY" and wanted(rows[name].get("reason", ""), name) for name in names)

    wait_until(lambda: reasons(lambda reason, _: reason == ""))
    for name, (config, _, _) in names.items():
        write(tmp_path, name, config)
    wait_until(lambda: reasons(lambda reason, name: names[name][2] in reason and reason.endswith(GOES_ON)))
    looks(5)
    assert {name: warned(name) for name in names} == dict.fromkeys(names, 1)
    for name in names:
        write(tmp_path, name, 'backend: "null"\nmax_batch_size: "another mistake"\n')
    wait_until(lambda: reasons(lambda reason, _: "config.pbtxt:2" in reason))
    looks(5)
    same = name_of("field")  # has the same mistake again
    assert {name: warned(name) for name in names} == {name: 1 if name == same else 2 for name in names}
    for name in names:
        write(tmp_path, name, IDENTITY + "# mended\n")
    wait_until(lambda: reasons(lambda reason, _: reason == ""))
