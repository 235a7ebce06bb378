#!/usr/bin/env python3
"""Turns a .nemo file of a FastConformer (TDT, RNN-T, CTC) into the folder that berth serves.

usage: nemo_to_hf.py MODEL.nemo FOLDER [--dtype keep|bf16|f32] [--head transducer|ctc]

--dtype: type of the weights written (default: keep, as in the file). --head: which one of a hybrid
model, that has both (default: the transducer, TDT or RNN-T).

A .nemo is a tar, packed or not, of model_config.yaml, model_weights.ckpt and the tokenizer. The
checkpoint is a PyTorch zip: a pickle that says which tensors there are, and their bytes. A pickle
is a program. This one is run by Python's own machine with every door shut: it can name a few types
of torch and gets inert stand-ins for them; any other name is an error. numpy is all that is needed.

Written: config.json, generation_config.json, preprocessor_config.json, tokenizer.json,
tokenizer_config.json, model.safetensors, in the layout of transformers' ParakeetFor*. What the
engine could not run is refused here, by name.
"""
import argparse
import collections
import json
import math
import pathlib
import pickle
import re
import shutil
import struct
import sys
import tarfile
import tempfile
import zipfile

import numpy as np

CONFIG_BYTES_MAX = 8 << 20
TOKENIZER_BYTES_MAX = 64 << 20
PICKLE_BYTES_MAX = 64 << 20
WEIGHT_BYTES_MAX = 64 << 30
RANK_MAX = 8


class Failure(Exception):
    """What is wrong with the file, in words for whoever runs this."""


# --- the archive ---


def unpack(path, folder):
    """The parts of a .nemo: (config's text, path of the checkpoint, tokenizer's bytes or None).

    Members are known by the last part of their names and written under names of our own, so no name
    in the archive ever becomes a path here."""
    config = checkpoint = tokenizer = None
    try:
        with tarfile.open(path, "r:*") as archive:
            for member in archive:
                if not member.isfile():
                    continue
                name = member.name.rsplit("/", 1)[-1]
                if name == "model_config.yaml":
                    config = read_member(archive, member, CONFIG_BYTES_MAX).decode("utf-8")
                elif name == "model_weights.ckpt":
                    if member.size > WEIGHT_BYTES_MAX:
                        raise Failure(f"{name} has {member.size} bytes")
                    checkpoint = pathlib.Path(folder) / "weights"
                    with archive.extractfile(member) as source, open(checkpoint, "wb") as out:
                        shutil.copyfileobj(source, out, 1 << 20)
                elif name.endswith("tokenizer.model"):
                    tokenizer = read_member(archive, member, TOKENIZER_BYTES_MAX)
    except FileNotFoundError:
        raise Failure(f"there is no file {path}") from None
    except (tarfile.TarError, EOFError, OSError, UnicodeDecodeError) as error:
        first = str(error).split("\n", 1)[0].rstrip(":")  # the rest: each packing that was tried
        raise Failure(f"{path} is no whole .nemo: {first}") from None
    if config is None or checkpoint is None:
        missing = "model_config.yaml" if config is None else "model_weights.ckpt"
        raise Failure(f"{path} holds no {missing}")
    return config, checkpoint, tokenizer


def read_member(archive, member, bytes_max):
    if member.size > bytes_max:
        raise Failure(f"{member.name[:80]} has {member.size} bytes, more than {bytes_max}")
    with archive.extractfile(member) as source:
        content = source.read()
    if len(content) != member.size:
        raise Failure(f"{member.name[:80]} ends early")
    return content


# --- the checkpoint ---

# Storage type: (numpy's type, safetensors' name, bytes). numpy has no bfloat16: its bits.
STORAGES = {
    "FloatStorage": ("<f4", "F32"), "HalfStorage": ("<f2", "F16"),
    "BFloat16Storage": ("<u2", "BF16"), "DoubleStorage": ("<f8", "F64"),
    "LongStorage": ("<i8", "I64"), "IntStorage": ("<i4", "I32"), "ByteStorage": ("u1", "U8"),
    "BoolStorage": ("?", "BOOL"),
}

Storage = collections.namedtuple("Storage", "kind key count")
View = collections.namedtuple("View", "storage offset shape stride")
Tensor = collections.namedtuple("Tensor", "dtype array")


class Kind(str):
    """The name of a storage type; calling it is not possible."""

    def __setstate__(self, _):
        raise Failure("the checkpoint tries to change a type")


class Mapping(dict):
    """A dictionary; what a pickle hangs on it besides (torch: _metadata) is dropped."""

    def __setstate__(self, _):
        pass


class Door:
    """What a name stands for: it can be called, and nothing else."""

    __slots__ = ("_act",)

    def __init__(self, act):
        self._act = act

    def __call__(self, *arguments):
        return self._act(*arguments)

    def __setstate__(self, _):
        raise Failure("the checkpoint tries to change a function")


class Shut(pickle.Unpickler):
    """Knows a handful of names. A name is all that a pickle can reach code by."""

    KNOWN = {
        ("collections", "OrderedDict"): Door(lambda: Mapping()),
        ("torch._utils", "_rebuild_tensor_v2"): Door(
            lambda storage, offset, shape, stride, *_: View(storage, offset, shape, stride)),
        ("torch._utils", "_rebuild_parameter"): Door(lambda value, *_: value),
    }

    def find_class(self, module, name):
        if module == "torch" and name in STORAGES:
            return Kind(name)
        if (module, name) not in self.KNOWN:
            raise Failure(f"the checkpoint names {module[:60]}.{name[:60]}, which no state of "
                          "tensors needs; it was not run")
        return self.KNOWN[(module, name)]

    def persistent_load(self, identity):
        if (not isinstance(identity, tuple) or len(identity) != 5 or identity[0] != "storage"
                or not isinstance(identity[1], Kind) or not isinstance(identity[2], str)
                or not isinstance(identity[4], int)):
            raise Failure("the checkpoint refers to something that is no storage")
        return Storage(identity[1], identity[2], identity[4])


def read_checkpoint(path):
    """name -> Tensor, of a file as torch.save writes it since 1.6."""
    if not zipfile.is_zipfile(path):
        raise Failure("model_weights.ckpt is no PyTorch zip file, or is cut short (files older "
                      "than PyTorch 1.6 are not read)")
    try:
        with zipfile.ZipFile(path) as archive:
            return read_tensors(archive)
    except (zipfile.BadZipFile, KeyError, NotImplementedError, EOFError) as error:
        raise Failure(f"model_weights.ckpt: {error}") from None


def read_tensors(archive):
    names = [info for info in archive.infolist() if info.filename.endswith("/data.pkl")]
    if len(names) != 1:
        raise Failure("model_weights.ckpt holds no data.pkl")
    prefix = names[0].filename[: -len("data.pkl")]
    for info in archive.infolist():
        if info.compress_type != zipfile.ZIP_STORED:  # torch never packs; a bomb would
            raise Failure(f"model_weights.ckpt: {info.filename[:80]} is compressed")
    if names[0].file_size > PICKLE_BYTES_MAX:
        raise Failure(f"data.pkl has {names[0].file_size} bytes")
    if prefix + "byteorder" in archive.namelist() and archive.read(
            prefix + "byteorder") != b"little":
        raise Failure("the checkpoint was written big-endian")
    with archive.open(names[0]) as file:
        try:
            state = Shut(file).load()
        except Failure:
            raise
        except Exception as error:  # a broken pickle can raise anything
            raise Failure(f"data.pkl is broken: {type(error).__name__}: {error}") from None
    if not isinstance(state, dict):
        raise Failure("the checkpoint is no dictionary of tensors")
    tensors, room = {}, sum(info.file_size for info in archive.infolist())
    for name, view in state.items():
        check_name(name)
        tensor = tensors[name] = take_view(archive, prefix, name, view)
        room -= tensor.array.nbytes
        if room < 0:
            raise Failure("the tensors are larger than their storages together")
    return tensors


def check_name(name):
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z0-9_.]{1,200}", name):
        raise Failure(f"the checkpoint holds something named {str(name)[:80]!r}")


def take_view(archive, prefix, name, view):
    if not isinstance(view, View) or not isinstance(view.storage, Storage):
        raise Failure(f"{name} is no tensor")
    storage, offset, shape, stride = view
    numbers = [offset, storage.count]
    for part in (shape, stride):
        if not isinstance(part, tuple) or len(part) > RANK_MAX or len(part) != len(shape):
            raise Failure(f"{name} has no shape")
        numbers += part
    if any(type(n) is not int or n < 0 or n >= 1 << 40 for n in numbers):
        raise Failure(f"{name} has a shape that is none")
    kind, dtype = STORAGES[storage.kind]
    last = offset + sum((n - 1) * step for n, step in zip(shape, stride))
    empty = 0 in shape
    if not empty and (last >= storage.count or math.prod(shape) > storage.count):
        raise Failure(f"{name} reaches past its storage")
    if not re.fullmatch(r"[A-Za-z0-9_]{1,64}", storage.key):
        raise Failure(f"{name} lies in a storage named {storage.key[:40]!r}")
    content = archive.read(f"{prefix}data/{storage.key}")
    size = np.dtype(kind).itemsize
    if len(content) < storage.count * size:
        raise Failure(f"{name}: its storage has {len(content)} bytes, not {storage.count * size}")
    flat = np.frombuffer(content, kind, storage.count)
    if empty:
        return Tensor(dtype, np.zeros(shape, kind))
    steps = tuple(step * size for step in stride)
    array = np.lib.stride_tricks.as_strided(flat[offset:], shape, steps, writeable=False)
    return Tensor(dtype, np.ascontiguousarray(array).reshape(shape))


# --- model_config.yaml: as much of YAML as NeMo writes ---


def yaml_sections(text, wanted):
    """The wanted top-level keys' values. Other sections are not even looked into."""
    sections, lines, key = {}, [], None
    for line in text.splitlines() + ["end:"]:
        top = re.match(r"([A-Za-z_][\w.]*):(?:\s+(.*))?$", line)
        if top and key in wanted and key is not None:
            sections[key] = Yaml(lines).value(0) if lines else None
        if top:
            key, rest = top.group(1), (top.group(2) or "").strip()
            lines = [(0, rest)] if rest else []
        elif line.strip() and not line.lstrip().startswith("#") and key is not None:
            lines.append((len(line) - len(line.lstrip(" ")), line.strip()))
    return sections


class Yaml:
    """Blocks of `key: value` and `- value`, flow lists of scalars, scalars plain and quoted."""

    KEY = re.compile(r"""("(?:[^"\\]|\\.)*"|'(?:[^']|'')*'"""
                     r"""|[^\s'"\[\]{}#&*!|>%@,-][^:#]*?|-[^\s:]+):(?:\s+(.*))?$""")

    def __init__(self, lines):
        self.lines, self.at = lines, 0

    def value(self, depth):
        if depth > 50:
            raise Failure("model_config.yaml is nested too deeply")
        indent, text = self.lines[self.at]
        if text == "-" or text.startswith("- "):
            return self.list(indent, depth)
        if self.KEY.match(text):
            return self.map(indent, depth)
        self.at += 1
        return scalar(self.folded(text, indent - 1))

    def list(self, indent, depth):
        items = []
        while self.at < len(self.lines) and self.lines[self.at][0] == indent and (
                self.lines[self.at][1] == "-" or self.lines[self.at][1].startswith("- ")):
            rest = self.lines[self.at][1][1:].lstrip(" ")
            if rest == "":
                self.at += 1
                items.append(self.below(indent, depth))
            else:  # the item begins on this line, further in
                inner = indent + len(self.lines[self.at][1]) - len(rest)
                self.lines[self.at] = (inner, rest)
                items.append(self.value(depth + 1))
        return items

    def map(self, indent, depth):
        result = {}
        while self.at < len(self.lines) and self.lines[self.at][0] == indent:
            match = self.KEY.match(self.lines[self.at][1])
            if not match:
                raise Failure(f"model_config.yaml: not understood: {self.lines[self.at][1][:60]!r}")
            self.at += 1
            rest = match.group(2)
            key = scalar(match.group(1))
            if rest is None or rest == "":
                listed = self.at < len(self.lines) and self.lines[self.at][0] == indent and \
                    self.lines[self.at][1].startswith("-")
                result[key] = self.list(indent, depth + 1) if listed else self.below(indent, depth)
            else:
                result[key] = scalar(self.folded(rest, indent))
        return result

    def below(self, indent, depth):
        if self.at < len(self.lines) and self.lines[self.at][0] > indent:
            return self.value(depth + 1)
        return None

    def folded(self, text, indent):
        """A scalar that goes on in the lines further in."""
        while self.at < len(self.lines) and self.lines[self.at][0] > indent and not closed(text):
            text += " " + self.lines[self.at][1]
            self.at += 1
        return text


def closed(text):
    """Whether a scalar that began so is at its end; a plain one goes on with the indentation."""
    if text[:1] == "'":
        return re.fullmatch(r"'(?:[^']|'')*'", text) is not None
    if text[:1] == '"':
        return re.fullmatch(r'"(?:[^"\\]|\\.)*"', text) is not None
    if text[:1] == "[":
        return text.endswith("]")
    return False


def scalar(text):
    text = text.strip()
    if text[:1] == "[" and text[-1:] == "]":
        inside = text[1:-1].strip()
        return [scalar(part) for part in inside.split(",")] if inside else []
    if text[:1] == "'" and text[-1:] == "'" and len(text) > 1:
        return text[1:-1].replace("''", "'")
    if text[:1] == '"' and text[-1:] == '"' and len(text) > 1:
        short = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", "e": "\x1b", "N": "\x85", "_": "\xa0"}

        def escape(match):
            code = match.group(1)
            return chr(int(code[1:], 16)) if len(code) > 1 else short.get(code, code)
        return re.sub(r"\\(x[0-9A-Fa-f]{2}|u[0-9A-Fa-f]{4}|U00(?:0[0-9A-Fa-f]|10)[0-9A-Fa-f]{4}|.)", escape,
                      text[1:-1])
    text = re.sub(r"\s+#.*$", "", text)
    if text in ("null", "~", "", "Null", "NULL"):
        return None
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    if re.fullmatch(r"[-+]?[0-9]{1,18}", text):
        return int(text)
    if re.fullmatch(r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?", text):
        return float(text)
    return text


# --- the configuration ---

SECTIONS = ("preprocessor", "encoder", "decoder", "joint", "decoding", "loss", "labels",
            "model_defaults", "target")
# NeMo's classes that can be run, with BPE or characters. (A model without `target` is known by its
# tensors alone.)
TARGET = re.compile(r"(?:\w+\.)*EncDec(?:RNNT|CTC|HybridRNNTCTC)(?:BPEModel|ModelBPE|Model)")


def must_be(section, key, allowed, default):
    value = section.get(key, default)
    if value not in allowed:
        raise Failure(f"{key} is {value!r}; only {', '.join(map(repr, allowed))} can be run")
    return value


def number(section, key, default=None):
    value = section.get(key, default)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise Failure(f"model_config.yaml: {key} is {value!r}, no number")
    return value


def dig(tree, *keys):
    for key in keys:
        tree = tree.get(key) if isinstance(tree, dict) else None
    return tree


def encoder_config(nemo):
    must_be(nemo, "subsampling", ["dw_striding"], "striding")
    must_be(nemo, "self_attention_model", ["rel_pos"], "rel_pos")
    must_be(nemo, "conv_norm_type", ["batch_norm"], "batch_norm")
    must_be(nemo, "causal_downsampling", [False], False)
    must_be(nemo, "reduction", [None], None)
    must_be(nemo, "untie_biases", [True], True)
    must_be(nemo, "att_context_size", [None, [-1, -1]], None)
    must_be(nemo, "conv_context_size", [None], None)
    hidden, heads = number(nemo, "d_model"), number(nemo, "n_heads")
    biased = must_be(nemo, "use_bias", [True, False], True)
    channels = number(nemo, "subsampling_conv_channels")
    return {
        "model_type": "parakeet_encoder",
        "hidden_size": hidden,
        "num_hidden_layers": number(nemo, "n_layers"),
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "intermediate_size": hidden * number(nemo, "ff_expansion_factor", 4),
        "hidden_act": "silu",
        "attention_bias": biased,
        "convolution_bias": biased,
        "conv_kernel_size": number(nemo, "conv_kernel_size", 31),
        "subsampling_factor": must_be(nemo, "subsampling_factor", [8], 4),
        "subsampling_conv_channels": hidden if channels == -1 else channels,
        "subsampling_conv_kernel_size": 3,
        "subsampling_conv_stride": 2,
        "num_mel_bins": must_be(nemo, "feat_in", [80, 128], None),
        "max_position_embeddings": number(nemo, "pos_emb_max_len", 5000),
        "scale_input": must_be(nemo, "xscaling", [True, False], True),
    }


def preprocessor_config(nemo):
    must_be(nemo, "normalize", ["per_feature"], "per_feature")
    must_be(nemo, "window", ["hann"], "hann")
    must_be(nemo, "log", [True], True)
    must_be(nemo, "frame_splicing", [1], 1)
    rate = must_be(nemo, "sample_rate", [16000], 16000)
    preemphasis = nemo.get("preemph", nemo.get("preemphasis", 0.97))
    return {
        "feature_extractor_type": "ParakeetFeatureExtractor",
        "feature_size": number(nemo, "features", 64),
        "hop_length": round(number(nemo, "window_stride", 0.01) * rate),
        "n_fft": number(nemo, "n_fft", 512),
        "win_length": round(number(nemo, "window_size", 0.02) * rate),
        "preemphasis": preemphasis,
        "sampling_rate": rate,
        "padding_side": "right",
        "padding_value": 0.0,
        "return_attention_mask": True,
    }


def check_parts(nemo, head):
    """Whether the model is of a kind, and has the head, that can be run."""
    for section in ("preprocessor", "encoder", "decoder"):
        if not isinstance(nemo.get(section), dict):
            raise Failure(f"model_config.yaml has no section {section}")
    target = nemo.get("target")
    if target is not None and not TARGET.fullmatch(str(target)):
        raise Failure(f"target is {str(target)[:120]!r}, no RNN-T, TDT or CTC model, nor a hybrid of "
                      "them")
    if head not in (None, "transducer", "ctc"):
        raise Failure(f"head is {head!r}")
    if head == "transducer" and not isinstance(nemo.get("joint"), dict):
        raise Failure("this file has a CTC head and no TDT or RNN-T head; leave out --head transducer")


def durations_of(nemo):
    """TDT's durations; None for an RNN-T, whose configuration may still list some."""
    if dig(nemo, "loss", "loss_name") not in (None, "tdt"):
        return None
    durations = (dig(nemo, "decoding", "durations") or dig(nemo, "loss", "tdt_kwargs", "durations")
                 or dig(nemo, "model_defaults", "tdt_durations"))
    if durations is not None and not (isinstance(durations, list) and durations and all(
            type(d) is int and d >= 0 for d in durations)):
        raise Failure(f"model_config.yaml: durations are {durations!r}")
    return durations


def model_config(nemo, pieces, head=None):
    """(config.json, generation_config.json or None)"""
    check_parts(nemo, head)
    blank = len(pieces)
    config = {"vocab_size": blank + 1, "dtype": None,
              "encoder_config": encoder_config(nemo["encoder"])}
    if head == "ctc" or not isinstance(nemo.get("joint"), dict):
        return {"architectures": ["ParakeetForCTC"], "model_type": "parakeet_ctc",
                "pad_token_id": blank, **config}, None
    durations = durations_of(nemo)
    symbols = (dig(nemo, "decoding", "greedy", "max_symbols")
               or dig(nemo, "decoding", "greedy", "max_symbols_per_step") or 10)
    prednet = dig(nemo, "decoder", "prednet") or {}
    jointnet = dig(nemo, "joint", "jointnet") or {}
    prediction = number(prednet, "pred_hidden", 640)
    must_be(jointnet, "joint_hidden", [prediction], prediction)
    must_be(jointnet, "activation", ["relu"], "relu")
    config.update({
        "architectures": ["ParakeetForTDT" if durations else "ParakeetForRNNT"],
        "model_type": "parakeet_tdt" if durations else "parakeet_rnnt",
        "blank_token_id": blank,
        "pad_token_id": pieces.index("<pad>") if "<pad>" in pieces else blank,
        "decoder_hidden_size": prediction,
        "num_decoder_layers": number(prednet, "pred_rnn_layers", 2),
        "max_symbols_per_step": number({"max_symbols": symbols}, "max_symbols"),
        "hidden_act": "relu",
        "is_encoder_decoder": True,
    })
    generation = {"decoder_start_token_id": blank, "bos_token_id": blank,
                  "pad_token_id": config["pad_token_id"]}
    if durations:
        config["durations"] = durations
        generation["suppress_tokens"] = [blank + 1 + i for i in range(len(durations))]
    return config, generation


# --- names and weights ---

NAMES = [(re.compile(pattern), replacement) for pattern, replacement in [
    (r"encoder\.pre_encode\.conv\.(\d+)\.(weight|bias)", r"encoder.subsampling.layers.\1.\2"),
    (r"encoder\.pre_encode\.out\.(weight|bias)", r"encoder.subsampling.linear.\1"),
    (r"(encoder\.layers\.\d+\.conv)\.batch_norm\.(\w+)", r"\1.norm.\2"),
    (r"(encoder\.layers\.\d+\.self_attn)\.linear_([qkv])\.(weight|bias)", r"\1.\2_proj.\3"),
    (r"(encoder\.layers\.\d+\.self_attn)\.linear_out\.(weight|bias)", r"\1.o_proj.\2"),
    (r"(encoder\.layers\.\d+\.self_attn)\.linear_pos\.weight", r"\1.relative_k_proj.weight"),
    (r"(encoder\.layers\.\d+\.self_attn)\.pos_bias_([uv])", r"\1.bias_\2"),
    (r"(encoder\.layers\.\d+\.(?:feed_forward[12]\.linear[12]|norm_\w+"
     r"|conv\.(?:pointwise_conv[12]|depthwise_conv))\.(?:weight|bias))", r"\1"),
    (r"decoder\.prediction\.embed\.weight", r"decoder.embedding.weight"),
    (r"decoder\.prediction\.dec_rnn\.lstm\.((?:weight|bias)_[ih]h_l\d+)", r"decoder.lstm.\1"),
    (r"joint\.enc\.(weight|bias)", r"encoder_projector.\1"),
    (r"joint\.pred\.(weight|bias)", r"decoder.decoder_projector.\1"),
    (r"joint\.joint_net\.[12]\.(weight|bias)", r"joint.head.\1"),  # 1: trained without dropout
    (r"(?:ctc_)?decoder\.decoder_layers\.0\.(weight|bias)", r"ctc_head.\1"),
]]
# The front end's constants, positions that are computed; then the head of a hybrid that is not asked
# for, by the head that is.
LEFT_OUT = r"preprocessor\..*|encoder\.pos_enc\..*|spec_augmentation\..*"
OTHER_HEAD = {"ctc": r"joint\..*|decoder\.prediction\..*", "transducer": r"ctc_decoder\..*"}


def rename(tensors, head):
    """The tensors of the encoder and that head ("ctc" or "transducer"), by transformers' names."""
    left_out = re.compile(f"{LEFT_OUT}|{OTHER_HEAD[head]}")
    renamed = {}
    for name, tensor in tensors.items():
        if left_out.fullmatch(name):
            continue
        for pattern, replacement in NAMES:
            if pattern.fullmatch(name):
                renamed[pattern.sub(replacement, name)] = tensor
                break
        else:
            raise Failure(f"the tensor {name} belongs to no part of a FastConformer")
    return renamed


def convert(tensor, dtype):
    """A floating tensor as `dtype`, others as they are."""
    wanted = {"bf16": "BF16", "f32": "F32"}.get(dtype, tensor.dtype)
    if tensor.dtype not in ("F64", "F32", "F16", "BF16"):
        return tensor
    if tensor.dtype == "F64" and wanted == "F64":
        wanted = "F32"  # nothing runs in float64
    if wanted == tensor.dtype:
        return tensor
    if tensor.dtype == "BF16":
        values = (tensor.array.astype("<u4") << 16).view("<f4")
    else:
        values = tensor.array.astype("<f4")
    if not np.isfinite(values).all():
        raise Failure("a weight is no finite number")
    if wanted == "F32":
        return Tensor("F32", values)
    bits = np.ascontiguousarray(values).view("<u4")
    return Tensor("BF16", ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype("<u2"))


def write_safetensors(path, tensors):
    """Wide types first, then by name, so that every tensor is aligned to its type."""
    order = sorted(tensors, key=lambda name: (-tensors[name].array.itemsize, name))
    header, at = {"__metadata__": {"format": "pt"}}, 0
    for name in order:
        end = at + tensors[name].array.nbytes
        header[name] = {"dtype": tensors[name].dtype, "shape": list(tensors[name].array.shape),
                        "data_offsets": [at, end]}
        at = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name in order:
            file.write(tensors[name].array.tobytes())


# --- the tokenizer ---


def fields(message):
    """(number, wire type, value) of a protobuf message."""
    at = 0

    def varint():
        nonlocal at
        value = shift = 0
        while True:
            if at >= len(message) or shift > 63:
                raise Failure("the tokenizer's model is cut short")
            byte = message[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(message):
        tag = varint()
        wire = tag & 7
        if wire == 0:
            yield tag >> 3, wire, varint()
            continue
        length = {1: 8, 5: 4}.get(wire)
        if wire == 2:
            length = varint()
        if length is None or at + length > len(message):
            raise Failure("the tokenizer's model is no SentencePiece model")
        yield tag >> 3, wire, message[at:at + length]
        at += length


NORMAL, UNKNOWN, CONTROL, USER, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
UNIGRAM, BPE = 1, 2


def read_sentencepiece(content):
    """([(piece, score, type)], model type)"""
    pieces, model_type = [], UNIGRAM
    for field, wire, value in fields(content):
        if field == 1 and wire == 2:
            piece, score, kind = "", 0.0, NORMAL
            for inner, inner_wire, part in fields(value):
                if inner == 1 and inner_wire == 2:
                    piece = part.decode("utf-8", "replace")
                elif inner == 2 and inner_wire == 5:
                    score = struct.unpack("<f", part)[0]
                elif inner == 3 and inner_wire == 0:
                    kind = part
            pieces.append((piece, score, kind))
        elif field == 2 and wire == 2:
            for inner, inner_wire, part in fields(value):
                if inner == 3 and inner_wire == 0:
                    model_type = part
    if model_type not in (UNIGRAM, BPE):
        raise Failure("the tokenizer is neither BPE nor Unigram")
    if len({piece for piece, _, _ in pieces}) != len(pieces):
        raise Failure("the tokenizer has a piece twice")
    return pieces, model_type


def tokenizer_json(pieces, model_type):
    space = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "always",
             "split": True}
    unknown = next((piece for piece, _, kind in pieces if kind == UNKNOWN), None)
    special = [(i, piece) for i, (piece, _, kind) in enumerate(pieces)
               if kind in (UNKNOWN, CONTROL) or piece in ("<pad>", "<unk>", "<s>", "</s>")]
    if model_type == BPE:
        vocabulary = {piece: i for i, (piece, _, _) in enumerate(pieces)}
        model = {"type": "BPE", "dropout": None, "unk_token": unknown,
                 "continuing_subword_prefix": None, "end_of_word_suffix": None, "fuse_unk": True,
                 "byte_fallback": False, "ignore_merges": False, "vocab": vocabulary,
                 "merges": merges(pieces, vocabulary)}
    else:
        model = {"type": "Unigram", "vocab": [[piece, score] for piece, score, _ in pieces],
                 "unk_id": next((i for i, p in enumerate(pieces) if p[2] == UNKNOWN), None),
                 "byte_fallback": False}
    added = [{"id": i, "content": piece, "single_word": False, "lstrip": False, "rstrip": False,
              "normalized": False, "special": True} for i, piece in special]
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added,
            "normalizer": {"type": "NFKC"}, "pre_tokenizer": space, "post_processor": None,
            "decoder": space, "model": model}


def merges(pieces, vocabulary):
    """Pairs that make a piece; the better piece first, as SentencePiece would join them."""
    found = []
    for piece, score, kind in pieces:
        if kind not in (NORMAL, USER):
            continue
        pairs = [(piece[:i], piece[i:]) for i in range(1, len(piece))]
        pairs = [pair for pair in pairs if pair[0] in vocabulary and pair[1] in vocabulary]
        found += [(-score, vocabulary[left], vocabulary[right], left, right)
                  for left, right in pairs]
    return [[left, right] for _, _, _, left, right in sorted(found)]


def tokenizer_of(nemo, content):
    """Pieces with scores and types, from the model or, where there is none, the labels."""
    if content is not None:
        return read_sentencepiece(content)
    labels = nemo.get("labels") or dig(nemo, "joint", "vocabulary") or dig(
        nemo, "decoder", "vocabulary")
    if not isinstance(labels, list) or not labels:
        raise Failure("there is neither a tokenizer.model nor a list of labels")
    kinds = {"<unk>": UNKNOWN, "<pad>": CONTROL, "<s>": CONTROL, "</s>": CONTROL}
    return [(str(label), -float(i), kinds.get(str(label), NORMAL))
            for i, label in enumerate(labels)], BPE


# --- all of it ---


# The tensor that says that there is such a head.
HEADS = {"transducer": r"joint\.joint_net\.[12]\.bias", "ctc": r"(?:ctc_)?decoder\.decoder_layers\.0\.bias"}


def check_which_head(nemo, names, taken, asked):
    """Whether the weights have the head that is taken, or what else they have."""
    there = {head for head, name in HEADS.items() if any(re.fullmatch(name, n) for n in names)}
    other = "ctc" if taken == "transducer" else "transducer"
    if taken in there or other not in there:
        return
    words = {"ctc": "CTC", "transducer": "TDT" if durations_of(nemo) else "RNN-T"}
    article = "an" if words[other] == "RNN-T" else "a"
    said = f"this file has {article} {words[other]} head and no {words[taken]} head"
    if other == "transducer" and not isinstance(nemo.get("joint"), dict):
        raise Failure(f"{said}, but its model_config.yaml has no section joint")
    raise Failure(f"{said}; " + (f"leave out --head {asked}" if asked else f"take it with --head {other}"))


def check_head(config, tensors):
    """The joint's or CTC head's rows against the tokenizer's pieces, and the prediction net's."""
    transducer = config["model_type"] != "parakeet_ctc"
    head = "joint.head.bias" if transducer else "ctc_head.bias"
    rows = config["vocab_size"] + len(config.get("durations", []))
    if head not in tensors:
        raise Failure(f"the weights hold no {head}: no head that can be run")
    if tensors[head].array.shape != (rows,):
        raise Failure(f"{head} has the shape {tensors[head].array.shape}, by tokenizer and "
                      f"durations it has {rows} values")
    embedding = tensors.get("decoder.embedding.weight")
    if transducer and (embedding is None or embedding.array.shape[:1] != (config["vocab_size"],)):
        raise Failure("decoder.prediction.embed.weight has no row for the blank (blank_as_pad: false), "
                      "or is not there")


def nemo_to_hf(source, folder, dtype="keep", head=None):
    folder = pathlib.Path(folder)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".nemo-") as work:
        text, checkpoint, tokenizer = unpack(source, work)
        nemo = yaml_sections(text, SECTIONS)
        pieces, kind = tokenizer_of(nemo, tokenizer)
        config, generation = model_config(nemo, [piece for piece, _, _ in pieces], head)
        front = preprocessor_config(nemo["preprocessor"])
        taken = "ctc" if config["model_type"] == "parakeet_ctc" else "transducer"
        found = read_checkpoint(checkpoint)
        check_which_head(nemo, found, taken, head)
        tensors = {name: convert(tensor, dtype) for name, tensor in rename(found, taken).items()}
        del found
        check_head(config, tensors)
        types = {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}
        first = tensors.get("encoder.subsampling.linear.weight")
        if first is None or first.dtype not in types:
            raise Failure("the weights hold no encoder.pre_encode.out.weight of floating type")
        config["dtype"] = types[first.dtype]
        folder.mkdir(parents=True, exist_ok=True)
        files = {"config.json": config, "generation_config.json": generation,
                 "preprocessor_config.json": front, "tokenizer.json": tokenizer_json(pieces, kind),
                 "tokenizer_config.json": {
                     "processor_class": "ParakeetProcessor", "tokenizer_class": "ParakeetTokenizer",
                     "unk_token": "<unk>", "pad_token": "<pad>"}}
        for name, content in files.items():
            if content is not None:
                (folder / name).write_text(
                    json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        write_safetensors(pathlib.Path(work) / "model.safetensors", tensors)
        (pathlib.Path(work) / "model.safetensors").replace(folder / "model.safetensors")
    return config


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("nemo", help="the .nemo file")
    parser.add_argument("folder", help="where to write, as models/NAME")
    parser.add_argument("--dtype", choices=["keep", "bf16", "f32"], default="keep",
                        help="type of the weights written (default: keep, as in the file)")
    parser.add_argument("--head", choices=["transducer", "ctc"],
                        help="which head of a hybrid model (default: the transducer)")
    options = parser.parse_args()
    try:
        config = nemo_to_hf(options.nemo, options.folder, options.dtype, options.head)
    except (Failure, OSError) as error:
        print(f"nemo_to_hf: {error}", file=sys.stderr)
        return 1
    pieces = config["vocab_size"] - 1
    print(f"nemo_to_hf: {options.folder}: {config['model_type']}, {pieces} pieces")
    return 0


if __name__ == "__main__":
    sys.exit(main())
