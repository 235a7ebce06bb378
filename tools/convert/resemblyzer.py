#!/usr/bin/env python3
"""Resemblyzer's pretrained.pt -> ONNX speaker encoder (numpy and onnx only).

mels (B,T,40) f32, power mel, not log; T=160 is 1.6 s -> embed (B,256), L2-normalised

usage: resemblyzer.py pretrained.pt out.onnx"""
import sys

import numpy as np
import torch_legacy
from onnx_graph import FLOAT, Graph

LAYERS, HIDDEN = 3, 256


def _gates(array):
    """torch's order i,f,g,o -> ONNX's i,o,f,c"""
    i, f, g, o = np.split(array, 4)
    return np.concatenate([i, o, f, g])


def convert(source, out):
    weights = torch_legacy.load(source)["model_state"]
    g = Graph(store="fp32")
    x = g.op("Transpose", g.input("mels", FLOAT, ["B", "T", 40]), perm=[1, 0, 2])
    for i in range(LAYERS):
        bias = [_gates(weights[f"lstm.bias_{part}_l{i}"]) for part in ("ih", "hh")]
        y, last = g.op("LSTM", x, g.const(_gates(weights[f"lstm.weight_ih_l{i}"])[None]),
                       g.const(_gates(weights[f"lstm.weight_hh_l{i}"])[None]),
                       g.const(np.concatenate(bias)[None]), outs=2, hidden_size=HIDDEN)
        x = g.op("Squeeze", y, g.ints(1)) if i + 1 < LAYERS else g.op("Squeeze", last, g.ints(0))
    x = g.op("Gemm", x, g.const(weights["linear.weight"]), g.const(weights["linear.bias"]),
             transB=1)
    g.op("LpNormalization", g.op("Relu", x), axis=1, p=2, out="embed")
    g.output("embed", FLOAT, ["B", HIDDEN])
    g.save(out, "resemblyzer")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    convert(*sys.argv[1:])
