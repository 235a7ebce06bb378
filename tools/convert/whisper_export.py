#!/usr/bin/env python3
"""A Whisper folder (see whisper.py) -> the common ONNX export form (Hugging Face optimum's files
and names), so that the engine's support of that form can be tested without the network.

encoder_model.onnx            input_features -> last_hidden_state
decoder_model.onnx            input_ids, encoder_hidden_states -> logits, present.*
decoder_with_past_model.onnx  input_ids, past_key_values.* -> logits, present.*.decoder.*
decoder_model_merged.onnx     both behind an If on use_cache_branch

usage: whisper_export.py MODEL_DIR OUT_DIR"""
import argparse
import pathlib

import numpy as np
from onnx_graph import BOOL, FLOAT, INT64
from whisper import load
from whisper_graphs import HEAD, WhisperGraph, count_layers


class PlainGraph(WhisperGraph):
    """Float, standard operators only. A branch of an If takes its constants from the graph around
    it, so that both branches share the weights."""

    def __init__(self, weights, heads, outer=None, prefix=""):
        super().__init__(weights, heads, False)
        self.outer, self.prefix = outer, prefix

    def const(self, value, name=None):
        return super().const(value, name) if self.outer is None else self.outer.const(value, name)

    def dense(self, x, name, scale=1.0):
        weight, bias = self.proj(name, scale)
        y = self.op("MatMul", x, self.const(weight.T, name + ".w"))
        return y if bias is None else self.op("Add", y, self.const(bias, name + ".b"))

    def layer_norm(self, x, name, out=None):
        weight, bias = (self.const(self.weight(f"{name}.{p}"), f"{name}.{p}")
                        for p in ("weight", "bias"))
        return self.op("LayerNormalization", x, weight, bias, axis=-1, epsilon=1e-5, out=out)

    def gelu(self, x):
        erf = self.op("Erf", self.op("Div", x, self.scalar(float(np.float32(np.sqrt(2))))))
        return self.op("Mul", self.op("Mul", x, self.op("Add", erf, self.scalar(1.0))),
                       self.scalar(0.5))

    def split_heads(self, x, out=None):
        """(B,T,d) -> (B,H,T,64)"""
        x = self.op("Reshape", x, self.ints(0, 0, self.heads, HEAD))
        return self.op("Transpose", x, perm=[0, 2, 1, 3], out=out)

    def attend(self, query, key, value, mask=None):
        """All (B,H,.,64) -> (B,T,d)"""
        scores = self.op("MatMul", query, self.op("Transpose", key, perm=[0, 1, 3, 2]))
        scores = scores if mask is None else self.op("Add", scores, mask)
        y = self.op("MatMul", self.op("Softmax", scores, axis=-1), value)
        return self.op("Reshape", self.op("Transpose", y, perm=[0, 2, 1, 3]), self.ints(0, 0, -1))

    def mlp(self, x, name):
        y = self.layer_norm(x, name + ".final_layer_norm")
        y = self.dense(self.gelu(self.dense(y, name + ".fc1")), name + ".fc2")
        return self.op("Add", x, y)


def encoder(weights, heads):
    g = PlainGraph(weights, heads)
    frames, width = weights["encoder.embed_positions.weight"].shape
    mels = weights["encoder.conv1.weight"].shape[1]
    x = g.input("input_features", FLOAT, ["batch_size", mels, 2 * frames])
    for conv, stride in (("conv1", 1), ("conv2", 2)):
        x = g.op("Conv", x, g.const(g.weight(f"encoder.{conv}.weight")),
                 g.const(g.weight(f"encoder.{conv}.bias")), kernel_shape=[3], pads=[1, 1],
                 strides=[stride])
        x = g.gelu(x)
    x = g.op("Add", g.op("Transpose", x, perm=[0, 2, 1]),
             g.const(g.weight("encoder.embed_positions.weight")))
    for i in range(count_layers(weights, "encoder")):
        name = f"encoder.layers.{i}"
        y = g.layer_norm(x, name + ".self_attn_layer_norm")
        parts = [g.split_heads(g.dense(y, f"{name}.self_attn.{p}_proj", 1 / 8 if p == "q" else 1))
                 for p in "qkv"]
        x = g.op("Add", x, g.dense(g.attend(*parts), name + ".self_attn.out_proj"))
        x = g.mlp(x, name)
    g.layer_norm(x, "encoder.layer_norm", out="last_hidden_state")
    g.output("last_hidden_state", FLOAT, ["batch_size", frames, width])
    return g


def _cache(i, side_name, part):
    return f"{i}.{side_name}.{part}"


def decoder_body(g, past, names):
    """The decoder over input_ids; names maps an output's standard name to its name in g."""
    shape, axis = g.op("Shape", "input_ids"), g.const(np.array(1, np.int64), "one_i64")
    steps = g.op("Gather", shape, axis, axis=0)
    zero = g.const(np.array(0, np.int64), "zero_i64")
    start = zero
    if past:
        start = g.op("Gather", g.op("Shape", "past_key_values.0.decoder.key"),
                     g.const(np.array(2, np.int64), "two_i64"), axis=0)
    stop = g.op("Add", start, steps)
    position = g.op("Range", start, stop, axis)
    keys = g.op("Range", zero, stop, axis)
    future = g.op("Greater", keys, g.op("Unsqueeze", position, g.ints(1)))        # (T,P+T)
    mask = g.op("Where", future, g.scalar(-1e9), g.scalar(0.0))
    embed = g.const(g.weight("decoder.embed_tokens.weight"), "embed")
    table = g.const(g.weight("decoder.embed_positions.weight"), "positions")
    x = g.op("Add", g.op("Gather", embed, "input_ids", axis=0),
             g.op("Gather", table, position, axis=0))
    for i in range(count_layers(g.weights, "decoder")):
        name = f"decoder.layers.{i}"
        y = g.layer_norm(x, name + ".self_attn_layer_norm")
        now = []
        for part, full in (("k", "key"), ("v", "value")):
            out = names["present." + _cache(i, "decoder", full)]
            dense = g.dense(y, f"{name}.self_attn.{part}_proj")
            if past:
                old = "past_key_values." + _cache(i, "decoder", full)
                g.op("Concat", old, g.split_heads(dense), axis=2, out=out)
            else:
                g.split_heads(dense, out=out)
            now.append(out)
        query = g.split_heads(g.dense(y, name + ".self_attn.q_proj", 1 / 8))
        x = g.op("Add", x, g.dense(g.attend(query, *now, mask), name + ".self_attn.out_proj"))
        y = g.layer_norm(x, name + ".encoder_attn_layer_norm")
        query = g.split_heads(g.dense(y, name + ".encoder_attn.q_proj", 1 / 8))
        now = []
        for part, full in (("k", "key"), ("v", "value")):
            if past:
                now.append("past_key_values." + _cache(i, "encoder", full))
            else:
                dense = g.dense("encoder_hidden_states", f"{name}.encoder_attn.{part}_proj")
                now.append(g.split_heads(dense, out=names["present." + _cache(i, "encoder", full)]))
        x = g.op("Add", x, g.dense(g.attend(query, *now), name + ".encoder_attn.out_proj"))
        x = g.mlp(x, name)
    x = g.layer_norm(x, "decoder.layer_norm")
    g.op("MatMul", x, g.op("Transpose", embed, perm=[1, 0]), out=names["logits"])


def caches(g, sides):
    return [_cache(i, s, p) for i in range(count_layers(g.weights, "decoder")) for s in sides
            for p in ("key", "value")]


def declare_inputs(g, frames, width, hidden, past):
    g.input("input_ids", INT64, ["batch_size", "decoder_sequence_length"])
    if hidden:
        g.input("encoder_hidden_states", FLOAT, ["batch_size", frames, width])
    for cache in caches(g, ("decoder", "encoder")) if past else []:
        length = cache.split(".")[1] + "_past_length"
        g.input("past_key_values." + cache, FLOAT, ["batch_size", g.heads, length, HEAD])


def declare_outputs(g, names, vocab, sides, inner=False):
    g.output(names["logits"], FLOAT, None if inner else
             ["batch_size", "decoder_sequence_length", vocab])
    for cache in caches(g, sides):
        g.output(names["present." + cache], FLOAT, None if inner else
                 ["batch_size", g.heads, f"{cache.split('.')[1]}_length", HEAD])


def plain_names(g):
    names = ["logits"] + ["present." + cache for cache in caches(g, ("decoder", "encoder"))]
    return {name: name for name in names}


def decoder(weights, heads, past):
    g = PlainGraph(weights, heads)
    frames, width = weights["encoder.embed_positions.weight"].shape
    declare_inputs(g, frames, width, not past, past)
    decoder_body(g, past, plain_names(g))
    declare_outputs(g, plain_names(g), weights["decoder.embed_tokens.weight"].shape[0],
                    ("decoder",) if past else ("decoder", "encoder"))
    return g


def decoder_merged(weights, heads):
    g = PlainGraph(weights, heads)
    frames, width = weights["encoder.embed_positions.weight"].shape
    declare_inputs(g, frames, width, True, True)
    g.input("use_cache_branch", BOOL, [1])
    branches = {}
    for past, prefix in ((True, "cached_"), (False, "first_")):
        branch = PlainGraph(weights, heads, g, prefix)
        names = {name: prefix + name for name in plain_names(g)}
        decoder_body(branch, past, names)
        if past:  # as in the exports: the encoder's presents are empty here
            for cache in caches(g, ("encoder",)):
                empty = g.const(np.zeros((0, heads, 1, HEAD), np.float32), "empty")
                branch.op("Identity", empty, out=names["present." + cache])
        declare_outputs(branch, names, None, ("decoder", "encoder"), inner=True)
        branches[past] = branch.proto(prefix + "branch")
    g.op("If", "use_cache_branch", out=list(plain_names(g)), then_branch=branches[True],
         else_branch=branches[False])
    declare_outputs(g, plain_names(g), weights["decoder.embed_tokens.weight"].shape[0],
                    ("decoder", "encoder"))
    return g


def convert(source, out):
    source, out = pathlib.Path(source), pathlib.Path(out)
    out.mkdir(parents=True, exist_ok=True)
    weights, heads, _, write_side_files = load(source)
    encoder(weights, heads).save(out / "encoder_model.onnx", "encoder")
    decoder(weights, heads, False).save(out / "decoder_model.onnx", "decoder")
    decoder(weights, heads, True).save(out / "decoder_with_past_model.onnx", "decoder_with_past")
    decoder_merged(weights, heads).save(out / "decoder_model_merged.onnx", "decoder_merged")
    write_side_files(out)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("out")
    arguments = parser.parse_args()
    convert(arguments.model, arguments.out)
