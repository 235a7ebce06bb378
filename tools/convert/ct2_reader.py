"""Reads a CTranslate2 Whisper folder (model.bin, binary version 6 or older) with numpy only, and
gives its tensors the names Hugging Face uses, so that every converter sees one naming."""
import json
import pathlib
import struct

import numpy as np

DTYPES = {0: np.float32, 1: np.int8, 2: np.int16, 3: np.int32, 4: np.float16}


class _Cursor:
    def __init__(self, data):
        self.data, self.at = data, 0

    def number(self, fmt):
        value = struct.unpack_from("<" + fmt, self.data, self.at)[0]
        self.at += struct.calcsize("<" + fmt)
        return value

    def text(self):
        count = self.number("H")  # counts the closing NUL
        value = self.data[self.at:self.at + count - 1].decode()
        self.at += count
        return value

    def tensor(self):
        dims = [self.number("I") for _ in range(self.number("B"))]
        dtype = np.dtype(DTYPES[self.number("B")])
        size = self.number("I")
        value = np.frombuffer(self.data, dtype, size // dtype.itemsize, self.at).reshape(dims)
        self.at += size
        return value


def read_variables(path):
    """{name: array} of a model.bin whose spec is WhisperSpec; aliases resolved."""
    cursor = _Cursor(pathlib.Path(path).read_bytes())
    version = cursor.number("I")
    if not 3 <= version <= 6:
        raise ValueError(f"{path}: binary version {version}, want 3 to 6")
    spec = cursor.text()
    if spec != "WhisperSpec":
        raise ValueError(f"{path}: {spec}, want WhisperSpec")
    cursor.number("I")  # revision
    variables = {}
    for _ in range(cursor.number("I")):
        name = cursor.text()
        variables[name] = cursor.tensor()
    for _ in range(cursor.number("I")):
        alias = cursor.text()
        variables[alias] = variables[cursor.text()]
    if cursor.at != len(cursor.data):
        raise ValueError(f"{path}: {len(cursor.data) - cursor.at} bytes left over")
    return variables


def _split(out, name, parts, weight, bias):
    """A fused projection [len(parts)*d, d] -> one per part."""
    for part, w, b in zip(parts, np.split(weight, len(parts)), np.split(bias, len(parts))):
        out[f"{name}.{part}_proj.weight"], out[f"{name}.{part}_proj.bias"] = w, b


def _norm(out, name, variables, prefix):
    out[name + ".weight"] = variables[prefix + "/gamma"]
    out[name + ".bias"] = variables[prefix + "/beta"]


def _layer(out, side, i, variables):
    ours, theirs = f"{side}.layers.{i}", f"{side}/layer_{i}"

    def fused(prefix):
        return variables[prefix + "/weight"], variables[prefix + "/bias"]

    def plain(name, prefix):
        out[f"{ours}.{name}.weight"], out[f"{ours}.{name}.bias"] = fused(f"{theirs}/{prefix}")

    _norm(out, ours + ".self_attn_layer_norm", variables, theirs + "/self_attention/layer_norm")
    _split(out, ours + ".self_attn", "qkv", *fused(theirs + "/self_attention/linear_0"))
    plain("self_attn.out_proj", "self_attention/linear_1")
    if side == "decoder":
        _norm(out, ours + ".encoder_attn_layer_norm", variables, theirs + "/attention/layer_norm")
        plain("encoder_attn.q_proj", "attention/linear_0")
        _split(out, ours + ".encoder_attn", "kv", *fused(theirs + "/attention/linear_1"))
        plain("encoder_attn.out_proj", "attention/linear_2")
    _norm(out, ours + ".final_layer_norm", variables, theirs + "/ffn/layer_norm")
    plain("fc1", "ffn/linear_0")
    plain("fc2", "ffn/linear_1")


def load_whisper(folder):
    """(weights under Hugging Face's names, head count, the folder's config.json)."""
    folder = pathlib.Path(folder)
    variables = read_variables(folder / "model.bin")
    config = json.loads((folder / "config.json").read_text())
    out = {}
    for conv in ("conv1", "conv2"):
        for part in ("weight", "bias"):
            out[f"encoder.{conv}.{part}"] = variables[f"encoder/{conv}/{part}"]
    out["decoder.embed_tokens.weight"] = variables["decoder/embeddings/weight"]
    for side in ("encoder", "decoder"):
        out[f"{side}.embed_positions.weight"] = variables[f"{side}/position_encodings/encodings"]
        _norm(out, f"{side}.layer_norm", variables, f"{side}/layer_norm")
        i = 0
        while f"{side}/layer_{i}/ffn/layer_norm/gamma" in variables:
            _layer(out, side, i, variables)
            i += 1
    return out, int(variables["decoder/num_heads"]), config
