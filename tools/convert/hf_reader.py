"""Reads a Hugging Face Whisper folder (model.safetensors, whole or in shards) with numpy only."""
import json
import pathlib

import numpy as np

DTYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}


def read_safetensors(path):
    """{name: array}; bfloat16 comes as float32."""
    data = np.memmap(path, np.uint8, "r")
    size = int(data[:8].view("<u8")[0])
    if size > len(data) - 8:
        raise ValueError(f"{path}: the header is longer than the file")
    out = {}
    for name, entry in json.loads(data[8:8 + size].tobytes()).items():
        if name == "__metadata__":
            continue
        if entry["dtype"] not in DTYPES:
            raise ValueError(f"{path}: {name} has the type {entry['dtype']}")
        begin, end = entry["data_offsets"]
        value = data[8 + size + begin:8 + size + end].view(DTYPES[entry["dtype"]])
        if entry["dtype"] == "BF16":
            value = (value.astype(np.uint32) << 16).view(np.float32)
        out[name] = value.reshape(entry["shape"])
    return out


def load_whisper(folder):
    """(weights without the "model." before their names, head count, generation_config.json)"""
    folder = pathlib.Path(folder)
    index = folder / "model.safetensors.index.json"
    files = ["model.safetensors"]
    if index.exists():
        files = sorted(set(json.loads(index.read_text())["weight_map"].values()))
    weights = {}
    for file in files:
        for name, value in read_safetensors(folder / pathlib.PurePath(file).name).items():
            weights[name.removeprefix("model.")] = value
    weights.pop("proj_out.weight", None)  # tied to the embedding
    config = json.loads((folder / "config.json").read_text())
    if config.get("model_type") != "whisper":
        raise ValueError(f"{folder}: not a Whisper model")
    if config["d_model"] != 64 * config["decoder_attention_heads"]:
        raise ValueError(f"{folder}: heads are not 64 wide")
    generation = folder / "generation_config.json"
    return (weights, config["decoder_attention_heads"],
            json.loads(generation.read_text()) if generation.exists() else {})
