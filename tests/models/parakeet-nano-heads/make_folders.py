#!/usr/bin/env python3
"""Puts together the two small models parakeet-nano-ctc and parakeet-nano-rnnt.

usage: make_folders.py FOLDER [STAMP]
       writes FOLDER/parakeet-nano-ctc and FOLDER/parakeet-nano-rnnt, then an empty file STAMP

Each is the encoder of ../parakeet-nano-en (the RNN-T also has its prediction net) with the tensors of
HEAD.safetensors here, in the layout of transformers' ParakeetForCTC and ParakeetForRNNT; golden/ in it
has golden.json, and the sound as links to that of parakeet-nano-en. Python alone is needed.
"""
import json
import pathlib
import shutil
import struct
import sys

HERE = pathlib.Path(__file__).resolve().parent
NANO = HERE.parent / "parakeet-nano-en"
SIZES = {"F32": 4, "F16": 2, "BF16": 2, "I64": 8}
HEADS = {"ctc": ("encoder.",), "rnnt": ("encoder.", "decoder.")}  # what of nano's each has


def read_safetensors(path):
    """name -> (type, shape, bytes)"""
    content = path.read_bytes()
    end = 8 + struct.unpack("<Q", content[:8])[0]
    header = json.loads(content[8:end])
    header.pop("__metadata__", None)
    return {name: (entry["dtype"], entry["shape"],
                   content[slice(*(end + offset for offset in entry["data_offsets"]))])
            for name, entry in header.items()}


def write_safetensors(path, tensors):
    """Wide types first, then by name, so that every tensor is aligned to its type."""
    header, at = {"__metadata__": {"format": "pt"}}, 0
    order = sorted(tensors, key=lambda name: (-SIZES[tensors[name][0]], name))
    for name in order:
        dtype, shape, content = tensors[name]
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(content)]}
        at += len(content)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name in order:
            file.write(tensors[name][2])


def configs(head):
    """config.json, and generation_config.json where the head has one."""
    nano = json.loads((NANO / "config.json").read_text())
    if head == "ctc":
        kept = ("dtype", "encoder_config", "initializer_range", "transformers_version", "vocab_size")
        return {**{key: nano[key] for key in kept}, "architectures": ["ParakeetForCTC"],
                "model_type": "parakeet_ctc", "pad_token_id": nano["blank_token_id"],
                "ctc_loss_reduction": "mean", "ctc_zero_infinity": True}, None
    nano.pop("durations")
    nano.update(architectures=["ParakeetForRNNT"], model_type="parakeet_rnnt")
    generation = json.loads((NANO / "generation_config.json").read_text())
    generation.pop("suppress_tokens")
    return nano, generation


def make_folder(head, folder):
    """The model with that head ("ctc" or "rnnt") in a folder, made new."""
    folder = pathlib.Path(folder)
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "golden").mkdir(parents=True)
    tensors = {name: tensor for name, tensor in read_safetensors(NANO / "model.safetensors").items()
               if name.startswith(HEADS[head])}
    tensors.update(read_safetensors(HERE / f"{head}.safetensors"))
    write_safetensors(folder / "model.safetensors", tensors)
    config, generation = configs(head)
    (folder / "config.json").write_text(json.dumps(config, indent=1, sort_keys=True) + "\n")
    if generation is not None:
        (folder / "generation_config.json").write_text(json.dumps(generation, indent=1) + "\n")
    for name in ("preprocessor_config.json", "tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(NANO / name, folder / name)
    shutil.copyfile(HERE / f"golden_{head}.json", folder / "golden" / "golden.json")
    for path in (NANO / "golden").glob("pcm*.s16"):
        (folder / "golden" / path.name).symlink_to(path)
    return folder


def make_folders(out):
    """{head: folder} under `out`."""
    return {head: make_folder(head, pathlib.Path(out) / f"parakeet-nano-{head}") for head in HEADS}


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3) or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    make_folders(sys.argv[1])
    for stamp in sys.argv[2:]:
        pathlib.Path(stamp).touch()
