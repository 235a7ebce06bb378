#!/usr/bin/env python3
"""EfficientNet-lite0's .pth -> ONNX classifier (numpy and onnx only).

Batch norms are folded in float64.
image (B,3,224,224) f32 RGB, (x-127)/128 -> logits, probs (B,1000)

usage: efficientnet.py in.pth out.onnx"""
import sys

import numpy as np
import torch_legacy
from onnx_graph import FLOAT, Graph

NORM_EPS = 1e-3
# repeats, kernel, stride, expansion, channels
STAGES = ((1, 3, 1, 1, 16), (2, 3, 2, 6, 24), (2, 5, 2, 6, 40), (3, 3, 2, 6, 80), (3, 5, 1, 6, 112),
          (4, 5, 2, 6, 192), (1, 3, 1, 6, 320))


class _Network(Graph):
    def __init__(self, weights):
        super().__init__(store="fp32")
        self.weights, self.used = weights, set()

    def take(self, name):
        self.used.add(name)
        return self.weights[name].astype(np.float64)

    def conv(self, x, name, norm, stride, size, groups=1, active=True):
        """Convolution, norm, ReLU6 -> (output, its size). TensorFlow's SAME padding: with stride 2
        the extra row and column are at the bottom and right."""
        weight = self.take(name + ".weight")
        scale = self.take(norm + ".weight") / np.sqrt(self.take(norm + ".running_var") + NORM_EPS)
        bias = self.take(norm + ".bias") - self.take(norm + ".running_mean") * scale
        kernel, out = weight.shape[2], -(-size // stride)
        pad = max((out - 1) * stride + kernel - size, 0)
        before, after = pad // 2, pad - pad // 2
        weight = (weight * scale[:, None, None, None]).astype(np.float32)
        x = self.op("Conv", x, self.const(weight), self.const(bias.astype(np.float32)),
                    kernel_shape=[kernel] * 2, strides=[stride] * 2, group=groups,
                    pads=[before, before, after, after])
        if active:
            x = self.op("Clip", x, self.scalar(0.0), self.scalar(6.0))
        return x, out

    def block(self, x, name, size, channels, stage):
        """Inverted bottleneck -> (output, its size)."""
        _, _, stride, expansion, out = stage
        y, now = x, size
        if expansion != 1:
            y, now = self.conv(y, name + "_expand_conv", name + "_bn0", 1, now)
        y, now = self.conv(y, name + "_depthwise_conv", name + "_bn1", stride, now,
                           groups=channels * expansion)
        y, now = self.conv(y, name + "_project_conv", name + "_bn2", 1, now, active=False)
        if stride == 1 and channels == out:
            y = self.op("Add", y, x)
        return y, now


def convert(source, out):
    weights = torch_legacy.load(source)
    g = _Network(weights)
    x, size = g.conv(g.input("image", FLOAT, ["B", 3, 224, 224]), "_conv_stem", "_bn0", 2, 224)
    channels, index = 32, 0
    for stage in STAGES:
        for i in range(stage[0]):
            this = stage if i == 0 else (*stage[:2], 1, *stage[3:])
            x, size = g.block(x, f"_blocks.{index}.", size, channels, this)
            channels, index = stage[4], index + 1
    x, size = g.conv(x, "_conv_head", "_bn1", 1, size)
    x = g.op("Flatten", g.op("GlobalAveragePool", x), axis=1)
    g.op("Gemm", x, g.const(g.take("_fc.weight").astype(np.float32)),
         g.const(g.take("_fc.bias").astype(np.float32)), transB=1, out="logits")
    g.op("Softmax", "logits", axis=-1, out="probs")
    left = {name for name in weights if not name.endswith("num_batches_tracked")} - g.used
    if left or size != 7:
        raise ValueError(f"{source}: not EfficientNet-lite0; left over: {sorted(left)[:5]}")
    g.output("logits", FLOAT, ["B", 1000])
    g.output("probs", FLOAT, ["B", 1000])
    g.save(out, "efficientnet_lite0")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    convert(*sys.argv[1:])
