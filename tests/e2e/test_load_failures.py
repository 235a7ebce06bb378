"""Who names the model (src/sched/README.md, S18): every kind of failed load says once which model it is, in the
answer, in `berth models` and in the log, and why."""

import json
import re

import pytest

from conftest import IDENTITY, add_model
from test_cli import berth

ONNX = 'backend: "onnxruntime"\n'
INPUT = 'input [{ name: "x" data_type: TYPE_FP32 dims: [4] }]\noutput [{ name: "y" data_type: TYPE_FP32 dims: [4] }]\n'


def parameter(key, value):
    return f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}\n'


def varint(number):
    out = b""
    while number > 127:
        out += bytes([number & 127 | 128])
        number >>= 7
    return out + bytes([number])


def message(*fields):
    """Protobuf: (number, int or bytes or str) each."""
    out = b""
    for number, value in fields:
        if isinstance(value, int):
            out += varint(number << 3) + varint(value)
        else:
            value = value.encode() if isinstance(value, str) else value
            out += varint(number << 3 | 2) + varint(len(value)) + value
    return out


def onnx(element=1, dims=(4,), op="Identity"):
    """y = op(x), both of that type and shape."""
    shape = message(*((1, message((1, d))) for d in dims))

    def io(name):
        return message((1, name), (2, message((1, message((1, element), (2, shape))))))

    node = message((1, "x"), (2, "y"), (4, op))
    graph = message((1, node), (2, "g"), (11, io("x")), (12, io("y")))
    return message((1, 8), (7, graph), (8, message((1, ""), (2, 13))))


# name: (config or None, files of version 1, what the reason says)
KINDS = {
    "text": ("nonsense", (), "config.pbtxt:1"),
    "field": ('backend: "null"\nmax_batch_size: "many"\n', (), "config.pbtxt:2"),
    "name": ('name: "other"\nbackend: "null"\n', (), "'other' is not the name of its folder"),
    "backend": ('backend: "tensorflow"\n', (), "engine"),
    "nothing": (None, (), "cannot be told"),
    "ensemble": ('platform: "ensemble"\n', (), "ensemble"),
    "sequence": ('backend: "null"\nsequence_batching {}\n', (), "sequence_batching"),
    "policy": (IDENTITY + "version_policy { specific { versions: [7] } }\n", (), "version_policy"),
    "missing": (ONNX, (), "cannot open"),
    "garbage": (ONNX, (("model.onnx", b"hello"),), "usable ONNX"),
    "types": (ONNX + INPUT, (("model.onnx", onnx(element=7)),), "'x' is FP32 in the config"),
    "ranks": (ONNX + INPUT, (("model.onnx", onnx(dims=(4, 4))),), "dimensions"),
    "dims": (ONNX + INPUT, (("model.onnx", onnx(dims=(5,))),), "dimension 0 of 'x'"),
    "batch": (ONNX + INPUT + "max_batch_size: 4\n", (("model.onnx", onnx(dims=(2, 4))),), "cannot batch"),
    "input": (ONNX + INPUT.replace('"x"', '"z"'), (("model.onnx", onnx()),), "'z' is not in the model"),
    "operator": (ONNX, (("model.onnx", onnx(op="NoSuchThing")),), "NoSuchThing"),
    "echo": (IDENTITY + 'output [{ name: "O" data_type: TYPE_FP32 dims: [-1] }]\n', (), "2 outputs and 1 inputs"),
    "kinds": (IDENTITY.replace('"OUTPUT0" data_type: TYPE_FP32', '"OUTPUT0" data_type: TYPE_INT32'), (), "'OUTPUT0' is INT32"),
    "parameter": (IDENTITY + parameter("sleep_ms", "soon"), (), "parameter 'sleep_ms' is 'soon'"),
    "fails": (IDENTITY + parameter("fail_load", "out of luck"), (), "out of luck"),
    "large": (IDENTITY + parameter("bytes", "4000000000"), (), "bytes"),
    "warmup": (IDENTITY + 'model_warmup [{ name: "w" batch_size: 1 inputs { key: "INPUT0" value { data_type: TYPE_FP32 '
               'dims: [1] input_data_file: "none" } } }]\n', (), "warm-up file 'none'"),
    "warms": (IDENTITY + parameter("fail_run", "cold feet") + 'model_warmup [{ name: "w" batch_size: 1 inputs { key: '
              '"INPUT0" value { data_type: TYPE_FP32 dims: [1] zero_data: true } } }]\n', (), "cold feet"),
    "whisper": (None, (("config.json", b'{"model_type": "whisper"}'),), "holds neither encoder_0.onnx"),
    "slots": (parameter("slots", "many"), (("config.json", b'{"model_type": "parakeet_ctc"}'),), "parameter 'slots'"),
    "parakeet": (None, (("config.json", b'{"model_type": "parakeet_tdt"}'),), "config.json"),
    "json": (None, (("config.json", b"{"),), "config.json"),
}
LOADS = ("operator", "fails", "large", "warmup", "warms")  # describe finds nothing wrong with these


def name_of(kind):
    return f"zebra-{kind}"


def times_named(text, kind):
    """Not counting paths: they are places."""
    return len(re.findall(rf"(?<![\w-]){name_of(kind)}(?![\w-])", re.sub(r"\S*/\S*", "", text)))


@pytest.fixture(scope="module")
def broken(tmp_path_factory):
    folder = tmp_path_factory.mktemp("broken")
    for kind, (config, files, _) in KINDS.items():
        add_model(folder, name_of(kind), config, files=files)
    return folder


@pytest.mark.parametrize("flags", [[], ["--errors=typed"], ["--errors=typed", "--cpu-worker=process"]])
def test_answers_index_table_and_log(broken, serve, flags):
    server = serve(broken, "--device-bytes-max=1G", "--request-timeout=60s", *flags)
    body = b'{"inputs":[{"name":"INPUT0","shape":[1,1],"datatype":"FP32","data":[1]}]}'
    for kind, (_, _, why) in KINDS.items():
        path = f"/v2/models/{name_of(kind)}"
        asked = body if kind != "operator" else body.replace(b"INPUT0", b"x").replace(b"[1,1]", b"[4]").replace(
            b"[1]}", b"[1,2,3,4]}")
        for method, path, sent in (("POST", path + "/infer", asked), ("POST", path + "/infer", asked),
                                   ("POST", f"/v2/repository/models/{name_of(kind)}/load", b"{}")):
            status, _, answer = server.call(method, path, sent)
            text = json.loads(answer)["error"]
            assert status >= 400 and times_named(text, kind) == 1, (path, text)
            assert why in text, (path, text)
    rows = {row["name"]: row for row in json.loads(berth("models", "--server", server.url, "--json").stdout)}
    offered = {model["id"] for model in server.json("/v1/models")["data"]}
    assert offered == {name for name, row in rows.items() if row["state"] == "READY"} != set(rows)
    for name, row in rows.items():
        status, _, answer = server.get(f"/v1/models/{name}")
        assert status == (200 if name in offered else 404)
        assert name in offered or row["reason"][:100] in json.loads(answer)["error"]["message"]
    table = berth("models", "--server", server.url).stdout.splitlines()
    for kind, (_, _, why) in KINDS.items():
        reason = rows[name_of(kind)].get("reason", "")
        assert times_named(reason, kind) == 0 and (why in reason or kind == "large"), reason
        line = next(line for line in table if line.startswith(name_of(kind) + " "))
        assert times_named(line, kind) == 1 and reason in line, line
    lines = server.logged().splitlines()
    for kind, (_, _, why) in KINDS.items():
        own = [line for line in lines if times_named(line, kind) > 0]
        assert all(times_named(line, kind) == 1 for line in own), own
        assert any(f"model '{name_of(kind)}' could not be loaded: " in line and why in line.replace('\\"', '"')
                   for line in own), own


def test_folder_and_transcribe(broken, tmp_path):
    """Without a server: the table of the folder, and the one file that needs the model."""
    rows = {row["name"]: row for row in json.loads(berth("models", "--models", broken, "--json").stdout)}
    for kind, (_, _, why) in KINDS.items():
        row = rows[name_of(kind)]
        if kind in LOADS:
            assert row["state"] == "ON DISK" and row["reason"] == ""
        else:
            assert row["state"] == "FAILED" and why in row["reason"] and times_named(row["reason"], kind) == 0, row
    sound = tmp_path / "a.wav"
    data = bytes(3200)
    sound.write_bytes(b"RIFF" + (36 + len(data)).to_bytes(4, "little") + b"WAVEfmt \x10\0\0\0\1\0\1\0\x80\x3e\0\0"
                      b"\0\x7d\0\0\2\0\x10\0data" + len(data).to_bytes(4, "little") + data)
    for kind in ("whisper", "slots"):
        result = berth("transcribe", "--models", broken, "--model", name_of(kind), "--log-level=error", sound, check=False)
        assert result.returncode == 1 and KINDS[kind][2] in result.stderr, result.stderr
        assert times_named(result.stderr, kind) == 1, result.stderr


def test_what_is_not_there(broken, serve):
    for flags in ([], ["--errors=typed"]):
        server = serve(broken, *flags)
        text = json.loads(server.call("POST", "/v2/repository/models/zebra-gone/load", b"{}")[2])["error"]
        assert times_named(text, "gone") == 1, text
    server = serve(broken, "--model-control-mode=none", "--load-model=zebra-fails")
    text = json.loads(server.call("POST", "/v2/repository/models/zebra-fails/load", b"{}")[2])["error"]
    assert text == "explicit model load / unload is not allowed if polling is enabled"


def test_config_given_with_a_load(tmp_path, serve):
    add_model(tmp_path, name_of("given"), IDENTITY)
    server = serve(tmp_path, "--errors=typed")
    body = json.dumps({"parameters": {"config": json.dumps({"backend": "null", "max_batch_size": "many"})}}).encode()
    status, _, answer = server.call("POST", f"/v2/repository/models/{name_of('given')}/load", body)
    text = json.loads(answer)["error"]
    assert status == 400 and times_named(text, "given") == 1 and "config (given)" in text, text
