"""What berth says of a model's folder and config.pbtxt: what is wrong, and where; what has no effect, or
less than it says.

In a config here @ marks the place that is told."""

import json
import subprocess

import pytest

from conftest import BERTH, ROOT, add_model, wait_until
from test_load_failures import IDENTITY, INPUT, ONNX, onnx, parameter

NANO = ROOT / "tests" / "models" / "parakeet-nano-en"
WHISPER = ROOT / "models" / "whisper-tiny.en" / "1"
STEPS = 'backend: "null"\n' + parameter("steps", "2")
ENGINE = "engine 'parrot', which this build does not have (it has null, parakeet, onnx, whisper)"


def value(key, text):
    return f'parameters {{ key: "{key}" value {{\n  @string_value: "{text}" }} }}\n'


def place(config):
    """(config without the mark, ":line:column")"""
    before = config[:config.index("@")]
    return config.replace("@", ""), f":{before.count(chr(10)) + 1}:{len(before) - before.rfind(chr(10))}"


def look(folder, *flags):
    """(rows by name, what else is said)"""
    done = subprocess.run([BERTH, "models", "--models", folder, "--json", *flags], capture_output=True, text=True,
                          timeout=120)
    return {row["name"]: row for row in json.loads(done.stdout)}, done.stderr


def speech_model(repository, name, source, config):
    """A config over the files of a model that is there."""
    folder = repository / name
    folder.mkdir()
    (folder / "1").symlink_to(source)
    (folder / "config.pbtxt").write_text(config)


# config, files or the folder of a speech model, what is said at the mark
WRONG = [
    *((f'backend: "null"\n{value(key, "soon")}', (), f"parameter '{key}' is 'soon'; it takes 0 to ")
      for key in ("sleep_ms", "sleep_ms_load", "step_ms", "steps", "bytes")),
    *((value("slots", number), NANO, f"parameter 'slots' is '{number}'; it takes 1 to 64")
      for number in ("0", "65", "100", "-1", "many", "")),
    *((value("window_seconds", number), NANO, f"parameter 'window_seconds' is '{number}'; it takes 4 to 120")
      for number in ("3", "121")),
    (value("precision", "fp9"), NANO, "parameter 'precision' is 'fp9'; it takes fp16 or fp8"),
    (value("languages", "parrot"), NANO, "parameter 'languages' is 'parrot'; it takes codes such as en"),
    ('@input [{ name: "x" data_type: TYPE_FP32 dims: [-1] }]\n', NANO, "a speech model has one input, audio"),
    (value("slots", "33"), WHISPER, "parameter 'slots' is '33'; it takes 1 to 32"),
    ('name: "m"\n  @backend: "parrot"\n', (), ENGINE),
    ('@platform: "parrot"\n', (), ENGINE),
    ('@backend: "parrot"\nplatform: "onnxruntime_onnx"\n', (), ENGINE),
    ('backend: "null"\n@sequence_batching {}\n', (), "it uses sequence_batching, which is not supported yet"),
    ('platform: "ensemble"\n@ensemble_scheduling {}\n', (), "it is an ensemble"),
    (IDENTITY + '@output [{ name: "O" data_type: TYPE_FP32 dims: [-1] }]\n', (), None),
    (ONNX + INPUT.replace("input", "@input"), (("model.onnx", onnx(element=7)),), "'x' is FP32 in the config"),
    (ONNX + INPUT.replace("input", "@input"), (("model.onnx", onnx(dims=(4, 4))),), "dimensions"),
    (ONNX + INPUT.replace("input", "@input"), (("model.onnx", onnx(dims=(5,))),), "dimension 0 of 'x'"),
    (ONNX + INPUT.replace("input", "@input").replace('"x"', '"z"'), (("model.onnx", onnx()),), "not in the model"),
    ("backend: \"null\"\n@max_batch_size: -1\n", (), "'max_batch_size' is -1; it takes 0 to 65536"),
    ("backend: \"null\"\nmax_batch_size: 8\ndynamic_batching {\n preferred_batch_size: [4, @9] }\n", (),
     "'preferred_batch_size' is 9; it takes 1 to max_batch_size (8)"),
    ("backend: \"null\"\ninstance_group { @count: -1 }\n", (), "'count' is -1; it takes 0 to 64"),
]


def test_a_mistake_has_its_place(tmp_path):
    said = {}
    for i, (config, files, text) in enumerate(WRONG):
        config, where = place(config.replace('name: "m"', f'name: "m{i}"'))
        if files == WHISPER and not WHISPER.exists():
            continue
        said[f"m{i}"] = f"m{i}/config.pbtxt{where}: ", text
        if isinstance(files, tuple):
            add_model(tmp_path, f"m{i}", config, files=files)
        else:
            speech_model(tmp_path, f"m{i}", files, config)
    rows, _ = look(tmp_path)
    for name, (where, text) in said.items():
        reason = rows[name]["reason"]
        if text is None:  # which of the places is the null engine's matter
            assert reason.startswith(f"{name}/config.pbtxt:"), reason
        else:
            assert reason.startswith(where) and text in reason, (where, text, reason)


def delay(field):
    return f"dynamic_batching {{\n  max_queue_delay_microseconds: 0 @{field} default_queue_policy {{ max_queue_size: 9 }} }}\n"


def steps_delay(us, mark="@"):
    return f"dynamic_batching {{ {mark}max_queue_delay_microseconds: {us} priority_levels: 2 default_priority_level: 1 }}\n"


NO_EFFECT = "'max_queue_delay_microseconds' has no effect: this model runs in steps"
PREFERRED = "'preferred_batch_size' has no effect: this model runs in steps"
GPUS = "'gpus' lists 1, which has no effect: of GPUs cuda:0 alone serves"
NOT_ALL = "; 64 is taken, the most"
# config, files or speech model, the warning at the mark; None: there is no warning
WARNED = [
    (steps_delay(3000000), NANO, NO_EFFECT),
    (steps_delay(3000000), WHISPER, NO_EFFECT),
    (STEPS + steps_delay(1), (), NO_EFFECT),
    (STEPS + steps_delay(0, ""), (), None),
    (IDENTITY.replace("dynamic_batching {}", "") + steps_delay(3000000, ""), (), None),  # this one gathers batches
    (STEPS + "max_batch_size: 8\n" + delay("preferred_batch_size: [4]"), (), PREFERRED),
    (delay("preferred_batch_size: 4"), NANO, PREFERRED),
    (STEPS + delay("").replace("@", ""), (), None),
    ("@max_batch_size: 1000\n", NANO, "'max_batch_size' is 1000" + NOT_ALL),
    ("@max_batch_size: 65\n", NANO, "'max_batch_size' is 65" + NOT_ALL),
    ("max_batch_size: 64\n", NANO, None),
    ("@max_batch_size: 33\n", WHISPER, "'max_batch_size' is 33; 32 is taken, the most"),
    ("max_batch_size: 32\n", WHISPER, None),
    (STEPS + "@max_batch_size: 1025\n", (), "'max_batch_size' is 1025; 1024 is taken, the most"),
    ('backend: "null"\nmax_batch_size: 1025\n', (), None),
    ('backend: "null"\n@max_batch_size: 65537\n', (), "'max_batch_size' is 65537; 65536 is taken, the most"),
    ("instance_group { @count: 1000 }\n", NANO, "'count' is 1000" + NOT_ALL),
    ('backend: "null"\ninstance_group { @count: 65 }\n', (), "'count' is 65" + NOT_ALL),
    ('backend: "null"\ninstance_group [ { count: 60 }, { @count: 5 } ]\n', (), "'count' is 5; 4 is taken, the most"),
    ('backend: "null"\ninstance_group { count: 64 }\n', (), None),
    ("instance_group { kind: KIND_GPU gpus: [0, @1, 2] }\n", NANO, GPUS),
    ('backend: "null"\ninstance_group { @gpus: 1 }\n', (), GPUS),
    ("instance_group { gpus: [0] }\n", NANO, None),
]


def test_what_has_no_effect_is_warned_of_once(tmp_path):
    said = {}
    for i, (config, files, text) in enumerate(WARNED):
        config, where = place(config) if text else (config, "")
        if files == WHISPER and not WHISPER.exists():
            continue
        said[f"m{i}"] = f"m{i}/config.pbtxt{where}: {text}" if text else None
        if isinstance(files, tuple):
            add_model(tmp_path, f"m{i}", config, files=files)
        else:
            speech_model(tmp_path, f"m{i}", files, config)
    rows, errors = look(tmp_path)
    for name, text in said.items():
        assert rows[name]["state"] == "ON DISK", rows[name]
        lines = [line for line in errors.splitlines() if f'"{name}/config.pbtxt' in line]
        assert len(lines) == (1 if text else 0) and all(text in line for line in lines), (name, text, lines)


def test_the_config_answered(tmp_path, serve):
    """Of a speech model max_batch_size is 0, since its inputs have no batch dimension; the slots are told."""
    for name, config in (("eight", "max_batch_size: 8\n"), ("many", "max_batch_size: 1000\n"),
                         ("slots", parameter("slots", "3"))):
        speech_model(tmp_path, name, NANO, config)
    (tmp_path / "bare").symlink_to(NANO)
    server = serve(tmp_path)
    for name, slots in (("eight", "8"), ("many", "64"), ("slots", "3"), ("bare", None)):
        config = server.json(f"/v2/models/{name}/config")
        assert config["max_batch_size"] == 0
        assert config["parameters"].get("slots") == (slots and {"string_value": slots}), name
        assert server.json(f"/v2/models/{name}")["inputs"][0]["shape"] == [-1]


@pytest.mark.parametrize("folder, files, text", [
    ("", (), "it has no version folder (such as m/1), nor a config.json of Hugging Face's layout"),
    ("", ("talk.nemo",), "talk.nemo is no file that berth reads: turn it into a folder with tools/nemo_to_hf.py"),
    ("1", ("talk.nemo",), "talk.nemo is no file that berth reads: turn it into a folder with tools/nemo_to_hf.py"),
    ("1", ("model.safetensors",), "what runs it cannot be told"),
])
@pytest.mark.parametrize("config", [None, 'backend: "parakeet"\n'])
def test_folders_that_are_no_model(tmp_path, folder, files, text, config):
    (tmp_path / "m" / folder).mkdir(parents=True)
    for name in files:
        (tmp_path / "m" / folder / name).write_text("x")
    if config is not None:
        (tmp_path / "m" / "config.pbtxt").write_text(config)
    rows, _ = look(tmp_path)
    if config is None or "cannot be told" not in text:
        assert text in rows["m"]["reason"]
    else:
        assert "config.json" in rows["m"]["reason"]


@pytest.mark.parametrize("kind, mark", [
    ("config", "a config.pbtxt"), ("plain", "a config.json"), ("version", "a version folder, 1"),
    ("repository", None), ("numbers", None), ("empty", None)])
def test_a_model_given_for_a_repository(tmp_path, serve, kind, mark):
    folder = tmp_path / "talk"
    folder.mkdir()
    if kind == "config":
        add_model(tmp_path, "talk", 'backend: "null"\n')
    elif kind == "plain":
        (folder / "config.json").write_text("{}")
        (folder / "model.safetensors").write_text("x")
    elif kind == "version":
        add_model(tmp_path, "talk", None, files=(("model.onnx", onnx()),))
    elif kind in ("repository", "numbers"):
        add_model(folder, "1" if kind == "numbers" else "talk", 'backend: "null"\n')
    _, said = look(folder)
    hint = f"{folder} has {mark}: it looks like a model, and a repository is a folder of such folders; give its parent"
    assert said.count("give its parent") == (mark is not None) and (mark is None or hint in said), said
    if kind == "plain":
        server = serve(folder)
        assert hint in server.logged()


def test_polling_warns_of_a_config_once(tmp_path, serve):
    add_model(tmp_path / "models", "m", 'backend: "null"\nfoo: 1\ninstance_group { count: 65 gpus: 1 }\n')
    server = serve(tmp_path / "models", "--model-control-mode=poll", "--repository-poll=50ms")

    def looks(more):
        scans = server.metric("berth_repository_scans_total")
        wait_until(lambda: server.metric("berth_repository_scans_total") > scans + more)
        return [server.logged().count(text) for text in ("no field 'foo'", "'gpus' lists 1", "'count' is 65", "'bar'")]

    assert looks(4) == [1, 1, 1, 0]
    (tmp_path / "models" / "m" / "config.pbtxt").write_text('backend: "null"\nbar: 1\n')
    wait_until(lambda: server.logged().count("'bar'"))
    assert looks(4) == [1, 1, 1, 1]
