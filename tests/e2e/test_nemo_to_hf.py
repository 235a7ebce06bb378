"""tools/nemo_to_hf.py: the small model written as a .nemo and converted back; and files that mean
harm."""

import importlib.util
import io
import json
import pathlib
import pickle
import re
import struct
import subprocess
import sys
import tarfile
import zipfile

import numpy as np
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
NANO = ROOT / "tests" / "models" / "parakeet-nano-en"
TOOL = ROOT / "tools" / "nemo_to_hf.py"

spec = importlib.util.spec_from_file_location("nemo_to_hf", TOOL)
nemo_to_hf = importlib.util.module_from_spec(spec)
spec.loader.exec_module(nemo_to_hf)

sys.path.insert(0, str(ROOT / "tests" / "models" / "parakeet-nano-heads"))
import make_folders  # noqa: E402

STORAGE = {"BF16": ("BFloat16Storage", 2), "I64": ("LongStorage", 8), "F32": ("FloatStorage", 4)}


def read_safetensors(path):
    """name -> (type, shape, bytes)"""
    content = path.read_bytes()
    length = struct.unpack("<Q", content[:8])[0]
    header = json.loads(content[8:8 + length])
    header.pop("__metadata__", None)
    data = content[8 + length:]
    return {name: (entry["dtype"], entry["shape"], data[slice(*entry["data_offsets"])])
            for name, entry in header.items()}


def to_nemo_name(name):
    for new, old in [
            ("encoder.subsampling.layers.", "encoder.pre_encode.conv."),
            ("encoder.subsampling.linear.", "encoder.pre_encode.out."),
            (".conv.norm.", ".conv.batch_norm."), ("relative_k_proj", "linear_pos"),
            ("q_proj", "linear_q"), ("k_proj", "linear_k"), ("v_proj", "linear_v"),
            ("o_proj", "linear_out"), ("self_attn.bias_", "self_attn.pos_bias_"),
            ("decoder.embedding.", "decoder.prediction.embed."),
            ("decoder.lstm.", "decoder.prediction.dec_rnn.lstm."),
            ("encoder_projector.", "joint.enc."), ("decoder.decoder_projector.", "joint.pred."),
            ("joint.head.", "joint.joint_net.2."), ("ctc_head.", "decoder.decoder_layers.0.")]:
        name = name.replace(new, old)
    return name


# --- a pickle as torch writes it, opcode by opcode ---


def text(value):
    raw = value.encode()
    return b"X" + struct.pack("<I", len(raw)) + raw


def integer(value):
    return b"J" + struct.pack("<i", value)


def numbers(values):
    return b"(" + b"".join(map(integer, values)) + b"t"


def strides(shape):
    steps, step = [], 1
    for n in reversed(shape):
        steps.insert(0, step)
        step *= n
    return steps


def view(kind, key, count, shape, offset=0, steps=None):
    return (b"ctorch._utils\n_rebuild_tensor_v2\n(" + b"(" + text("storage") + b"ctorch\n" +
            kind.encode() + b"\n" + text(key) + text("cpu") + integer(count) + b"tQ" +
            integer(offset) + numbers(shape) + numbers(strides(shape) if steps is None else steps) +
            b"\x89" + b"ccollections\nOrderedDict\n)R" + b"tR")


def checkpoint(entries, storages, **options):
    """entries: name -> pickled value; storages: key -> bytes"""
    body = b"\x80\x02ccollections\nOrderedDict\n)R("
    body += b"".join(text(name) + value for name, value in entries.items()) + b"u"
    body += b"}" + text("_metadata") + b"ccollections\nOrderedDict\n)Rsb."
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", options.get("compression", zipfile.ZIP_STORED)) as archive:
        archive.writestr("model_weights/data.pkl", options.get("pickle", body))
        archive.writestr("model_weights/byteorder", options.get("byteorder", "little"))
        for key, content in storages.items():
            archive.writestr(f"model_weights/data/{key}", content)
        archive.writestr("model_weights/version", "3\n")
    return out.getvalue()


def nano_checkpoint(extra=None, without=None, tensors=None, named=to_nemo_name, **options):
    """`tensors`: nano's, or others as read_safetensors gives them."""
    entries, storages = {}, {}
    tensors = tensors or read_safetensors(NANO / "model.safetensors")
    for name, (dtype, shape, content) in tensors.items():
        if name == without:
            continue
        kind, size = STORAGE[dtype]
        key = str(len(storages))
        # Some tensors begin inside their storage, as views do.
        lead = 3 if name.endswith("bias_u") else 0
        storages[key] = bytes(lead * size) + content
        entries[named(name)] = view(kind, key, len(content) // size + lead, shape, lead)
    window = np.ones(400, "<f4").tobytes()
    storages["window"] = window
    entries["preprocessor.featurizer.window"] = view("FloatStorage", "window", 400, [400])
    entries.update(extra or {})
    return checkpoint(entries, storages, **options)


def varint(value):
    out = b""
    while value > 127:
        out += bytes([value & 127 | 128])
        value >>= 7
    return out + bytes([value])


def sentencepiece():
    """nano's tokenizer as SentencePiece would have saved it."""
    tokenizer = json.loads((NANO / "tokenizer.json").read_text())
    special = {entry["content"] for entry in tokenizer["added_tokens"]}
    out = b""
    for index, piece in enumerate(sorted(tokenizer["model"]["vocab"],
                                         key=tokenizer["model"]["vocab"].get)):
        kind = (2 if piece == "<unk>" else 3) if piece in special else 1
        raw = piece.encode()
        inner = b"\x0a" + varint(len(raw)) + raw + b"\x15" + struct.pack("<f", -index)
        inner += b"\x18" + varint(kind)
        out += b"\x0a" + varint(len(inner)) + inner
    return out + b"\x12\x02\x18\x02"  # trainer_spec: model_type BPE


CONFIG = """\
sample_rate: 16000
train_ds:
  manifest_filepath: &some !!odd {yaml: [that, is, {not: read}]}
labels:
{labels}
model_defaults:
  enc_hidden: 256
  pred_hidden: 320
  joint_hidden: 320
  tdt_durations:
  - 0
preprocessor:
  _target_: nemo.collections.asr.modules.AudioToMelSpectrogramPreprocessor
  sample_rate: 16000
  normalize: per_feature
  window_size: 0.025
  window_stride: 0.01
  window: hann
  features: 128
  n_fft: 512
  frame_splicing: 1
  dither: 1.0e-05
  pad_to: 0
encoder:
  _target_: nemo.collections.asr.modules.ConformerEncoder
  feat_in: 128
  feat_out: -1
  n_layers: 6
  d_model: 256
  use_bias: false
  subsampling: dw_striding  # 8x
  subsampling_factor: 8
  subsampling_conv_channels: 128
  causal_downsampling: false
  ff_expansion_factor: 4
  self_attention_model: rel_pos
  n_heads: 4
  att_context_size:
  - -1
  - -1
  att_context_style: regular
  xscaling: false
  untie_biases: true
  pos_emb_max_len: 5000
  conv_kernel_size: 9
  conv_norm_type: batch_norm
  conv_context_size: null
decoder:
  _target_: nemo.collections.asr.modules.RNNTDecoder
  normalization_mode: null
  prednet:
    pred_hidden: 320
    pred_rnn_layers: 2
    t_max: null
joint:
  jointnet:
    joint_hidden: 320
    activation: relu
    dropout: 0.2
  num_extra_outputs: 5
decoding:
  strategy: greedy_batch
  model_type: tdt
  durations: [0, 1, 2, 3, 4]
  greedy:
    max_symbols: 10
loss:
  loss_name: tdt
  tdt_kwargs:
    durations:
    - 0
    - 1
    sigma: 0.02
target: nemo.collections.asr.models.rnnt_bpe_models.EncDecRNNTBPEModel
"""


def labels():
    vocabulary = json.loads((NANO / "tokenizer.json").read_text())["model"]["vocab"]
    return "\n".join("- '" + piece.replace("'", "''") + "'"
                     for piece in sorted(vocabulary, key=vocabulary.get))


def write_nemo(path, weights, config=None, tokenizer=None, mode="w", extra=()):
    parts = {"./model_config.yaml": (config or CONFIG.replace("{labels}", labels())).encode(),
             "./model_weights.ckpt": weights}
    if tokenizer is not None:
        parts["./0123abcd_tokenizer.model"] = tokenizer
    with tarfile.open(path, mode) as archive:
        for member in extra:
            archive.addfile(member, io.BytesIO(b"x" * member.size))
        for name, content in parts.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


@pytest.fixture(scope="module")
def weights():
    return nano_checkpoint()


KEPT = ["architectures", "model_type", "blank_token_id", "decoder_hidden_size", "durations",
        "hidden_act", "max_symbols_per_step", "num_decoder_layers", "pad_token_id", "vocab_size",
        "dtype"]
KEPT_ENCODER = ["attention_bias", "conv_kernel_size", "convolution_bias", "hidden_act",
                "hidden_size", "intermediate_size", "num_attention_heads", "num_hidden_layers",
                "num_key_value_heads", "num_mel_bins", "scale_input", "subsampling_conv_channels",
                "subsampling_conv_kernel_size", "subsampling_conv_stride", "subsampling_factor",
                "max_position_embeddings", "model_type"]


@pytest.mark.parametrize("mode, with_model", [("w", True), ("w:gz", False)])
def test_there_and_back(tmp_path, weights, mode, with_model):
    path = write_nemo(tmp_path / "nano.nemo", weights, mode=mode,
                      tokenizer=sentencepiece() if with_model else None)
    out = tmp_path / "out"
    done = subprocess.run([sys.executable, TOOL, path, out], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert read_safetensors(out / "model.safetensors") == read_safetensors(
        NANO / "model.safetensors")
    have, want = (json.loads((folder / "config.json").read_text()) for folder in (out, NANO))
    assert {key: have[key] for key in KEPT} == {key: want[key] for key in KEPT}
    for key in KEPT_ENCODER:
        assert have["encoder_config"][key] == want["encoder_config"][key], key
    have, want = (json.loads((f / "preprocessor_config.json").read_text()) for f in (out, NANO))
    assert have == want
    have, want = (json.loads((f / "generation_config.json").read_text()) for f in (out, NANO))
    for key in ("decoder_start_token_id", "bos_token_id", "pad_token_id", "suppress_tokens"):
        assert have[key] == want[key]
    have, want = (json.loads((f / "tokenizer.json").read_text()) for f in (out, NANO))
    assert have["model"]["vocab"] == want["model"]["vocab"]
    assert have["decoder"] == want["decoder"]
    assert [e["content"] for e in have["added_tokens"]] == ["<unk>", "<s>", "<pad>"]
    had, wanted = (set(map(tuple, t["model"]["merges"])) for t in (have, want))
    assert wanted <= had
    assert sorted(p.name for p in tmp_path.iterdir()) == ["nano.nemo", "out"]


# --- the other heads ---

CTC_DECODER = """\
decoder:
  _target_: nemo.collections.asr.modules.ConvASRDecoder
  feat_in: null
  num_classes: 512
"""
AUX_CTC = """\
aux_ctc:
  ctc_loss_weight: 0.3
  use_cer: false
  ctc_reduction: mean_batch
  decoder:
    _target_: nemo.collections.asr.modules.ConvASRDecoder
    feat_in: null
    num_classes: 512
    vocabulary: [a, b]
  decoding:
    strategy: greedy
"""
RNNT_DECODING = "decoding:\n  strategy: greedy_batch\n  greedy:\n    max_symbols_per_step: 7\n"
# loss_name says that the durations listed under model_defaults are another model's.
RNNT_LOSS = "loss:\n  loss_name: default\n  warprnnt_numba_kwargs:\n    fastemit_lambda: 0.0\n"


def replaced(config, **sections):
    """The configuration with top-level sections put in others' place, or ("") left out."""
    for name, content in sections.items():
        config, count = re.subn(rf"(?m)^{name}:.*\n(?:[ -].*\n)*", lambda _: content, config)
        assert count == 1, name
    return config


def config_of(head):
    config = CONFIG.replace("{labels}", labels())
    if head == "ctc":
        return replaced(config, decoder=CTC_DECODER, joint="", decoding="", loss="",
                        target="target: nemo.collections.asr.models.ctc_bpe_models.EncDecCTCModelBPE\n")
    if head == "rnnt":
        config = replaced(config, decoding=RNNT_DECODING, loss=RNNT_LOSS)
        return config.replace("  num_extra_outputs: 5\n", "")
    return replaced(config, target="target: nemo.collections.asr.models.hybrid_rnnt_ctc_bpe_models."
                                   "EncDecHybridRNNTCTCBPEModel\n") + AUX_CTC


@pytest.fixture(scope="module")
def heads(tmp_path_factory):
    """{"ctc": folder, "rnnt": folder}"""
    return make_folders.make_folders(tmp_path_factory.mktemp("heads"))


def same_model(have, want, keys):
    assert read_safetensors(have / "model.safetensors") == read_safetensors(want / "model.safetensors")
    configs = [json.loads((folder / "config.json").read_text()) for folder in (have, want)]
    assert {key: configs[0].get(key) for key in keys} == {key: configs[1].get(key) for key in keys}
    assert "durations" not in configs[0]


def convert(tmp_path, weights, config, *options):
    path = write_nemo(tmp_path / "x.nemo", weights, config, tokenizer=sentencepiece())
    done = subprocess.run([sys.executable, TOOL, path, tmp_path / "out", *options], capture_output=True,
                          text=True)
    assert done.returncode == 0, done.stderr
    return tmp_path / "out"


def test_ctc(tmp_path, heads):
    weights = nano_checkpoint(tensors=read_safetensors(heads["ctc"] / "model.safetensors"))
    out = convert(tmp_path, weights, config_of("ctc"))
    same_model(out, heads["ctc"], ("architectures", "model_type", "pad_token_id", "vocab_size", "dtype"))
    assert not (out / "generation_config.json").exists()


@pytest.mark.parametrize("layer", [1, 2])
def test_rnnt(tmp_path, heads, layer):
    """The joint's last layer is the second one where it was trained without dropout."""
    def named(name):
        return to_nemo_name(name).replace("joint_net.2", f"joint_net.{layer}")
    tensors = read_safetensors(heads["rnnt"] / "model.safetensors")
    out = convert(tmp_path, nano_checkpoint(tensors=tensors, named=named), config_of("rnnt"))
    same_model(out, heads["rnnt"], [key for key in KEPT if key != "max_symbols_per_step"])
    assert json.loads((out / "config.json").read_text())["max_symbols_per_step"] == 7
    generation = json.loads((out / "generation_config.json").read_text())
    assert generation["decoder_start_token_id"] == 512 and "suppress_tokens" not in generation


def hybrid_checkpoint(heads):
    ctc = read_safetensors(heads["ctc"] / "model.safetensors")
    tensors = {**read_safetensors(NANO / "model.safetensors"),
               **{name: tensor for name, tensor in ctc.items() if name.startswith("ctc_head.")}}
    return nano_checkpoint(tensors=tensors, named=lambda name: to_nemo_name(
        name.replace("ctc_head.", "ctc_decoder.decoder_layers.0.")))


@pytest.mark.parametrize("options, head", [([], "tdt"), (["--head", "transducer"], "tdt"),
                                           (["--head", "ctc"], "ctc")])
def test_hybrid(tmp_path, heads, options, head):
    out = convert(tmp_path, hybrid_checkpoint(heads), config_of("hybrid"), *options)
    want = heads["ctc"] if head == "ctc" else NANO
    assert read_safetensors(out / "model.safetensors") == read_safetensors(want / "model.safetensors")
    assert json.loads((out / "config.json").read_text())["model_type"] == f"parakeet_{head}"
    assert (out / "generation_config.json").exists() == (head == "tdt")


def test_heads_that_are_not_there(tmp_path, weights, heads):
    rnnt = read_safetensors(heads["rnnt"] / "model.safetensors")
    checkpoints = {"tdt": weights, "rnnt": nano_checkpoint(tensors=rnnt),
                   "ctc": nano_checkpoint(tensors=read_safetensors(heads["ctc"] / "model.safetensors"))}
    configs = {"tdt": None, "rnnt": config_of("rnnt"), "ctc": config_of("ctc")}
    for has, said, asked, text in [
            ("tdt", "tdt", "ctc", "a TDT head and no CTC head; leave out --head ctc"),
            ("rnnt", "rnnt", "ctc", "an RNN-T head and no CTC head; leave out --head ctc"),
            ("ctc", "ctc", "transducer", "a CTC head and no TDT or RNN-T head; leave out --head transducer"),
            ("ctc", "rnnt", "transducer", "a CTC head and no RNN-T head; leave out --head transducer"),
            ("ctc", "rnnt", None, "a CTC head and no RNN-T head; take it with --head ctc"),
            ("ctc", "tdt", None, "a CTC head and no TDT head; take it with --head ctc"),
            ("tdt", "ctc", None, "head and no CTC head, but its model_config.yaml has no section joint")]:
        path = write_nemo(tmp_path / "x.nemo", checkpoints[has], *filter(None, [configs[said]]))
        with pytest.raises(nemo_to_hf.Failure) as failure:
            nemo_to_hf.nemo_to_hf(path, tmp_path / "out", head=asked)
        assert text in str(failure.value), (has, said, asked)
    short = dict(rnnt)  # the embedding without the blank's row
    dtype, (rows, wide), content = rnnt["decoder.embedding.weight"]
    short["decoder.embedding.weight"] = (dtype, [rows - 1, wide], content[:-wide * 2])
    weights = nano_checkpoint(tensors=short)
    fails(tmp_path, write_nemo(tmp_path / "x.nemo", weights, config_of("rnnt")), "blank_as_pad")


@pytest.mark.parametrize("name", [
    "joint.blank_pred.0.weight", "decoder.prediction.embeds.0.weight", "decoder.decoder_layers.1.weight",
    "transf_decoder._embedding.token_embedding.weight", "prompt_kernel.0.weight"])
def test_other_heads_are_refused_by_name(tmp_path, name):
    extra = {name: view("FloatStorage", "window", 400, [400])}
    fails(tmp_path, write_nemo(tmp_path / "x.nemo", nano_checkpoint(extra)), f"{name} belongs to no part")


def test_types(tmp_path):
    f32 = nemo_to_hf.Tensor("F32", np.array([1, 1.00390625, 1.01171875, -3e-39], "<f4"))
    bf16 = nemo_to_hf.convert(f32, "bf16")
    assert bf16.array.tolist() == [0x3F80, 0x3F80, 0x3F82, 0x8021]
    assert nemo_to_hf.convert(bf16, "f32").array.tolist()[:3] == [1, 1, 1.015625]
    with pytest.raises(nemo_to_hf.Failure, match="finite"):
        nemo_to_hf.convert(nemo_to_hf.Tensor("F32", np.array([np.nan], "<f4")), "bf16")


class Runs:
    def __init__(self, call, *arguments):
        self.call, self.arguments = call, arguments

    def __reduce__(self):
        return self.call, self.arguments


def fails(tmp_path, path, match):
    with pytest.raises(nemo_to_hf.Failure, match=match):
        nemo_to_hf.nemo_to_hf(path, tmp_path / "out")
    assert not (tmp_path / "out" / "model.safetensors").exists()
    assert not [p for p in tmp_path.iterdir() if p.name.startswith(".nemo-")]


@pytest.mark.parametrize("protocol", [0, 2, 5])
def test_a_pickle_that_runs_something(tmp_path, protocol):
    import os
    mark = tmp_path / "mark"
    for call, argument in [(os.system, f"touch {mark}"), (eval, f"open({str(mark)!r}, 'w')"),
                           (__import__("subprocess").call, ["touch", str(mark)])]:
        evil = pickle.dumps(Runs(call, argument), protocol)
        path = write_nemo(tmp_path / "evil.nemo", checkpoint({}, {}, pickle=evil))
        fails(tmp_path, path, "it was not run")
        assert not mark.exists()


# (pickle, in the error's text)
PICKLES = {
    "getattr": (b"\x80\x04\x8c\x08builtins\x8c\x07getattr\x93.", "builtins.getattr"),
    "attribute of a known name": (
        b"\x80\x04\x8c\x0ctorch._utils\x8c\x1e_rebuild_tensor_v2.__globals__\x93.",
        "it was not run"),
    "changes a function": (
        b"\x80\x02ctorch._utils\n_rebuild_parameter\n}X\x01\x00\x00\x00aK\x01sb.",
        "change a function"),
    "calls a type": (b"\x80\x02ctorch\nFloatStorage\n)R.", "data.pkl is broken"),
    "other persistent id": (b"\x80\x02(X\x06\x00\x00\x00moduletQ.", "no storage"),
    "no dictionary": (b"\x80\x02]." , "no dictionary"),
    "not a tensor": (b"\x80\x02}X\x01\x00\x00\x00aK\x01s.", "a is no tensor"),
    "name of a path": (b"\x80\x02}X\x04\x00\x00\x00../aK\x01s.", "named '../a'"),
    "empty": (b"", "data.pkl is broken"),
    "cut": (b"\x80\x02}X\xff\x00\x00\x00a", "data.pkl is broken"),
}


@pytest.mark.parametrize("name", PICKLES)
def test_bad_pickles(tmp_path, name):
    raw, match = PICKLES[name]
    fails(tmp_path, write_nemo(tmp_path / "x.nemo", checkpoint({}, {}, pickle=raw)), match)


# (pickled value, storages, in the error's text)
VIEWS = {
    "past the storage": (view("FloatStorage", "0", 4, [5]), {"0": bytes(16)}, "past its storage"),
    "by its offset": (view("FloatStorage", "0", 4, [4], 1), {"0": bytes(16)}, "past its storage"),
    "by its strides": (view("FloatStorage", "0", 4, [2, 2], 0, [3, 1]), {"0": bytes(16)},
                       "past its storage"),
    "repeated": (view("FloatStorage", "0", 1, [2000000000], 0, [0]), {"0": bytes(4)},
                 "past its storage"),
    "negative": (view("FloatStorage", "0", 4, [2], 3, [-1]), {"0": bytes(16)}, "a shape that is"),
    "no storage": (view("FloatStorage", "7", 4, [4]), {"0": bytes(16)}, "data/7"),
    "short storage": (view("FloatStorage", "0", 4, [4]), {"0": bytes(15)}, "has 15 bytes"),
    "a path": (view("FloatStorage", "../version", 4, [4]), {"0": bytes(16)}, "storage named"),
    "a rank": (view("FloatStorage", "0", 1, [1] * 9), {"0": bytes(4)}, "has no shape"),
    "ranks differ": (view("FloatStorage", "0", 1, [1], 0, []), {"0": bytes(4)}, "has no shape"),
}


@pytest.mark.parametrize("name", VIEWS)
def test_bad_views(tmp_path, name):
    value, storages, match = VIEWS[name]
    weights = checkpoint({"a.weight": value}, storages)
    fails(tmp_path, write_nemo(tmp_path / "x.nemo", weights), match)


def test_bad_checkpoints(tmp_path, weights):
    path = tmp_path / "x.nemo"
    packed = checkpoint({}, {"0": bytes(1 << 20)}, compression=zipfile.ZIP_DEFLATED)
    fails(tmp_path, write_nemo(path, packed), "is compressed")
    fails(tmp_path, write_nemo(path, checkpoint({}, {}, byteorder="big")), "big-endian")
    fails(tmp_path, write_nemo(path, b"\x80\x02}."), "no PyTorch zip file")
    fails(tmp_path, write_nemo(path, weights[:-1000]), "no PyTorch zip file")
    broken = bytearray(weights)
    broken[len(broken) // 2] ^= 1
    fails(tmp_path, write_nemo(path, bytes(broken)), "CRC")


def test_bad_archives(tmp_path, weights):
    path = tmp_path / "x.nemo"
    path.write_bytes(b"no tar at all" * 100)
    fails(tmp_path, path, "no whole .nemo")
    whole = write_nemo(path, weights).read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    fails(tmp_path, path, "no whole .nemo|ends early|holds no")
    fails(tmp_path, tmp_path / "nowhere.nemo", "there is no file")
    with tarfile.open(path, "w") as archive:
        for name in ("model_config.yaml", "model_weights.ckpt"):
            member = tarfile.TarInfo(name)
            member.type, member.linkname = tarfile.SYMTYPE, "/etc/passwd"
            archive.addfile(member)
    fails(tmp_path, path, "holds no model_config.yaml")


def test_names_in_the_archive_become_no_paths(tmp_path, weights):
    evil = []
    for name in ("../../outside", "/outside", "a/../../outside_tokenizer.txt"):
        member = tarfile.TarInfo(name)
        member.size = 3
        evil.append(member)
    inner = tmp_path / "inner"
    inner.mkdir()
    path = write_nemo(inner / "x.nemo", weights, extra=evil)
    nemo_to_hf.nemo_to_hf(path, inner / "out")
    assert sorted(p.name for p in inner.iterdir()) == ["out", "x.nemo"]
    assert [p.name for p in tmp_path.iterdir()] == ["inner"]


@pytest.mark.parametrize("old, new, match", [
    ("self_attention_model: rel_pos", "self_attention_model: abs_pos", "self_attention_model is"),
    ("conv_norm_type: batch_norm", "conv_norm_type: layer_norm", "conv_norm_type is"),
    ("subsampling_factor: 8", "subsampling_factor: 4", "subsampling_factor is 4"),
    ("  - -1\n  - -1", "  - 70\n  - 13", "att_context_size is"),
    ("joint_hidden: 320\n    act", "joint_hidden: 640\n    act", "joint_hidden is 640"),
    ("normalize: per_feature", "normalize: all_features", "normalize is"),
    ("n_layers: 6", "n_layers: six", "n_layers is 'six', no number"),
    ("n_layers: 6", "n_layers: 1e999", "n_layers is inf, no number"),
    ("durations: [0, 1, 2, 3, 4]", "durations: [0, 1, 2, 3]", "joint.head.bias has the shape"),
    ("durations: [0, 1, 2, 3, 4]", "durations: [0, -1]", "durations are"),
    ("encoder:\n", "encodes:\n", "no section encoder"),
    ("rnnt_bpe_models.EncDecRNNTBPEModel", "aed_multitask_models.EncDecMultiTaskModel",
     "target is .*EncDecMultiTaskModel"),
    ("max_symbols: 10", "max_symbols: many", "max_symbols is 'many', no number"),
    ("  n_heads: 4\n", "  n_heads: 4\n  what is this\n", "not understood"),
])
def test_configs_that_cannot_be_run(tmp_path, weights, old, new, match):
    config = CONFIG.replace("{labels}", labels())
    assert old in config
    fails(tmp_path, write_nemo(tmp_path / "x.nemo", weights, config.replace(old, new)), match)


def test_tensors_of_another_model(tmp_path):
    path = tmp_path / "x.nemo"
    strange = {"encoder.layers.0.moe.weight": view("FloatStorage", "window", 400, [400])}
    fails(tmp_path, write_nemo(path, nano_checkpoint(strange)), "moe.weight belongs to no part")
    headless = nano_checkpoint(without="joint.head.bias")
    fails(tmp_path, write_nemo(path, headless), "no joint.head.bias")
    bodiless = nano_checkpoint(without="encoder.subsampling.linear.weight")
    fails(tmp_path, write_nemo(path, bodiless), "no encoder.pre_encode.out.weight")


def test_yaml():
    sections = nemo_to_hf.yaml_sections(
        "a:\n- 'it''s'\n- \"\\u2581\\n\"\n- plain, with\n  more\n- -1\n- 1e-05\n- [1, 2.5, x]\n"
        "- - 1\n  - 2\n- k: v\n  l:\n  - 3\n- ':'\n- '#'\n- null\nb: true\nc:\n  d:\n    e: []\n",
        ("a", "b", "c"))
    assert sections["a"] == ["it's", "\u2581\n", "plain, with more", -1, 1e-05, [1, 2.5, "x"],
                             [1, 2], {"k": "v", "l": [3]}, ":", "#", None]
    assert nemo_to_hf.scalar('"\\U0010ffff \\U00110000"') == "\U0010ffff U00110000"  # past the last
    assert sections["b"] is True and sections["c"] == {"d": {"e": []}}
