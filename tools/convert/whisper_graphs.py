"""Whisper as ONNX graphs in berth's own form: the encoder in pieces, one decoder step.

Why not the common export form: there a batch must run in lock-step and the caches are copied at
every step. Here every row has its own length, the caches are written in place, and the encoder is
cut so that no call is long.

Shapes: M = B*T rows of the residual stream (M,d); H heads of 64; V vocabulary; S = 1500 frames.
int8: weights have a scale per output column, limited to +-64 so that pairs of u8 x s8 products
cannot saturate 16 bits on AVX2 without VNNI; activations have a scale per row, so that what else
is in the batch never moves an answer.
The query scale 1/sqrt(64) = 1/8 is folded into the query weights (a power of two: lossless)."""
import numpy as np
from onnx_graph import BOOL, FLOAT, INT32, INT64, Graph

HEAD = 64
LN_EPS = 1e-5
PIECE_GFLOP = 22.0  # per encoder call: about 0.3 s of one AVX2 core in fp32


def count_layers(weights, side):
    i = 0
    while f"{side}.layers.{i}.fc1.weight" in weights:
        i += 1
    return i


class WhisperGraph(Graph):
    def __init__(self, weights, heads, int8):
        super().__init__()
        self.weights, self.heads, self.int8 = weights, heads, int8
        self.rows = {}   # activation -> (u8, scale per row), so that q, k, v share one
        self.zeros = {}  # row set -> its vector of zero points: one for all rows, one for logits

    def weight(self, name):
        return self.weights[name].astype(np.float32)

    def proj(self, name, scale=1.0):
        """(weight [out,in], bias [out] or None where it is absent or all zero)."""
        bias = self.weights.get(name + ".bias")
        bias = None if bias is None or not bias.any() else bias.astype(np.float32) * scale
        return self.weight(name + ".weight") * np.float32(scale), bias

    def quantised_weight(self, weight, name):
        """[out,in] -> s8 [in,out] and scale [out]."""
        if name + ".q" in self.named:
            return self.named[name + ".q"], self.named[name + ".s"]
        scale = np.maximum(np.abs(weight).max(1), 1e-8) / np.float32(64)
        quantised = np.clip(np.rint(weight / scale[:, None]), -64, 64).astype(np.int8).T
        return self.const(quantised, name + ".q"), self.const(scale, name + ".s")

    def quantised_rows(self, x, row_set):
        """(M,K) f32 -> u8 with zero point 128, and the scale (M,1)."""
        if x not in self.rows:
            peak = self.op("ReduceMax", self.op("Abs", x), axes=[-1], keepdims=1)
            scale = self.op("Mul", self.op("Max", peak, self.scalar(1e-6)),
                            self.scalar(float(np.float32(1 / 127))))
            flat = self.op("Squeeze", scale, self.ints(1))
            if row_set not in self.zeros:
                self.zeros[row_set] = self.op("Expand", self.scalar(128, np.uint8),
                                              self.op("Shape", flat))
            self.rows[x] = self.op("QuantizeLinear", x, flat, self.zeros[row_set], axis=0), scale
        return self.rows[x]

    def matmul(self, x, weight, name, row_set="all"):
        """(M,K) x [out,K] -> (M,out); inputs of the same row_set have the same M."""
        if not self.int8:
            return self.op("MatMul", x, self.const(weight.T, name + ".w"))
        rows, scale = self.quantised_rows(x, row_set)
        quantised, columns = self.quantised_weight(weight, name)
        y = self.ms("MatMulIntegerToFloat", rows, quantised, self.scalar(1.0), columns,
                    self.scalar(128, np.uint8))
        return self.op("Mul", y, scale)

    def linear(self, x, weight, bias, name):
        y = self.matmul(x, weight, name)
        return y if bias is None else self.op("Add", y, self.const(bias, name + ".b"))

    def norm(self, x, name, out=None):
        return self.op("LayerNormalization", x, self.const(self.weight(name + ".weight")),
                       self.const(self.weight(name + ".bias")), axis=-1, epsilon=LN_EPS, out=out)

    def add_norm(self, x, y, bias, name):
        """x + y + bias and its layer norm -> (sum, norm). Three operators: the fused
        SkipLayerNormalization takes five times as long on a CPU (1.32: 3.3 against 0.6 ms)."""
        if bias is not None:
            y = self.op("Add", y, self.const(bias))
        total = self.op("Add", x, y)
        return total, self.norm(total, name)

    def feed_forward(self, y, name):
        """(M,d) -> (M,d) without the last bias, which add_norm takes."""
        weight, bias = self.proj(name + ".fc1")
        y = self.matmul(y, weight, name + ".fc1")
        y = self.ms("BiasGelu", y, self.const(bias, name + ".fc1.b"))
        weight, bias = self.proj(name + ".fc2")
        return self.matmul(y, weight, name + ".fc2"), bias

    def out_proj(self, y, name):
        weight, bias = self.proj(name + ".out_proj")
        return self.matmul(y, weight, name + ".o"), bias

    def to_heads(self, x, rows, perm, out=None):
        """(B*rows,d) -> (B,rows,H,64) -> perm"""
        x = self.op("Reshape", x, self.ints(-1, rows, self.heads, HEAD))
        return self.op("Transpose", x, perm=perm, out=out)


# --- encoder ---


def _layer_gflop(width, frames):
    return (2 * 12 * width * width * frames + 4 * width * frames * frames) / 1e9


def encoder_cuts(weights):
    """Layers per piece, so that no piece costs more than PIECE_GFLOP (one layer at least)."""
    frames, width = weights["encoder.embed_positions.weight"].shape
    mels = weights["encoder.conv1.weight"].shape[1]
    cost = 2 * 3 * width * (2 * frames * mels + frames * width) / 1e9
    cuts, layers = [[]], count_layers(weights, "encoder")
    for i in range(layers):
        layer = _layer_gflop(width, frames)
        if cuts[-1] and cost + layer > PIECE_GFLOP:
            cuts.append([])
            cost = 0
        cuts[-1].append(i)
        cost += layer
    cross = 4 * width * width * frames * count_layers(weights, "decoder") / 1e9
    if cost + cross > PIECE_GFLOP:
        cuts.append([])  # a last piece with the cross projections only
    return cuts


def _encoder_stem(g, frames):
    """mel (B,mels,2*frames) -> (B*frames,d)"""
    mels = g.weights["encoder.conv1.weight"].shape[1]
    width = g.weights["encoder.conv1.weight"].shape[0]
    x = g.input("input_features", FLOAT, ["B", mels, 2 * frames])
    for conv, stride in (("conv1", 1), ("conv2", 2)):
        x = g.op("Conv", x, g.const(g.weight(f"encoder.{conv}.weight")),
                 g.const(g.weight(f"encoder.{conv}.bias")), kernel_shape=[3], pads=[1, 1],
                 strides=[stride])
        x = g.ms("Gelu", x)
    x = g.op("Transpose", x, perm=[0, 2, 1])
    x = g.op("Add", x, g.const(g.weight("encoder.embed_positions.weight"), "positions"))
    return g.op("Reshape", x, g.ints(-1, width))


def _encoder_attention(g, y, name, frames):
    width = g.heads * HEAD
    parts = []
    for part, scale in (("q", 1 / 8), ("k", 1.0), ("v", 1.0)):
        z = g.linear(y, *g.proj(f"{name}.{part}_proj", scale), f"{name}.{part}")
        parts.append(g.op("Reshape", z, g.ints(-1, frames, width)))
    y = g.ms("MultiHeadAttention", *parts, num_heads=g.heads, scale=1.0)
    return g.out_proj(g.op("Reshape", y, g.ints(-1, width)), name)


def _cross_caches(g, x, frames):
    """Keys transposed (B,H,64,S) and values (B,H,S,64) of every decoder layer."""
    for i in range(count_layers(g.weights, "decoder")):
        name = f"decoder.layers.{i}.encoder_attn"
        key = g.linear(x, *g.proj(name + ".k_proj"), name + ".k")
        g.to_heads(key, frames, [0, 2, 3, 1], out=f"cross_k_{i}")
        value = g.linear(x, *g.proj(name + ".v_proj"), name + ".v")
        g.to_heads(value, frames, [0, 2, 1, 3], out=f"cross_v_{i}")
        g.output(f"cross_k_{i}", FLOAT, ["B", g.heads, HEAD, frames])
        g.output(f"cross_v_{i}", FLOAT, ["B", g.heads, frames, HEAD])


def encoder_piece(weights, heads, int8, cuts, index):
    """The layers cuts[index]; the first piece has the stem, the last the cross projections."""
    g = WhisperGraph(weights, heads, int8)
    frames, width = weights["encoder.embed_positions.weight"].shape
    if index == 0:
        x = _encoder_stem(g, frames)
    else:
        x = g.op("Reshape", g.input("hidden_in", FLOAT, ["B", frames, width]), g.ints(-1, width))
    last, pending = index == len(cuts) - 1, None  # pending: (branch, bias) still to be added to x
    for i in cuts[index]:
        name = f"encoder.layers.{i}"
        norm = name + ".self_attn_layer_norm"
        if pending is None:
            y = g.norm(x, norm)
        else:
            x, y = g.add_norm(x, *pending, norm)
        branch = _encoder_attention(g, y, name + ".self_attn", frames)
        x, y = g.add_norm(x, *branch, name + ".final_layer_norm")
        pending = g.feed_forward(y, name)
    if last:
        x = g.norm(x, "encoder.layer_norm") if pending is None \
            else g.add_norm(x, *pending, "encoder.layer_norm")[1]
        _cross_caches(g, x, frames)
    else:
        x = g.op("Add", x, g.op("Add", pending[0], g.const(pending[1])))
        g.op("Reshape", x, g.ints(-1, frames, width), out="hidden_out")
        g.output("hidden_out", FLOAT, ["B", frames, width])
    return g


# --- decoder ---


def _embed(g, lengths, steps):
    """input_ids (B,T) and lengths (B) -> (B*T,d)"""
    table = g.weight("decoder.embed_tokens.weight")
    width = table.shape[1]
    ids = g.op("Reshape", "input_ids", g.ints(-1))
    if g.int8:  # one int8 copy [d,V] serves here and as the output projection
        quantised, scale = g.quantised_weight(table, "embed")
        x = g.op("Transpose", g.op("Gather", quantised, ids, axis=1), perm=[1, 0])
        scale = g.op("Unsqueeze", g.op("Gather", scale, ids, axis=0), g.ints(1))
        x = g.op("Mul", g.op("Cast", x, to=FLOAT), scale)
    else:
        x = g.op("Gather", g.const(table, "embed"), ids, axis=0)
    steps = g.op("Range", g.scalar(0, np.int32), steps, g.scalar(1, np.int32))       # (T)
    position = g.op("Add", g.op("Unsqueeze", lengths, g.ints(1)), steps)             # (B,T)
    table = g.const(g.weight("decoder.embed_positions.weight"), "positions")
    place = g.op("Gather", table, g.op("Reshape", position, g.ints(-1)), axis=0)
    return g.op("Add", x, g.op("Reshape", place, g.ints(-1, width)))


def _self_attention(g, y, i, shape, last, total):
    """Appends k and v to the caches in place; row b sees its own last[b]+1 positions only."""
    name, width = f"decoder.layers.{i}.self_attn", g.heads * HEAD
    parts = [(g.weight(f"{name}.{p}_proj.weight"), g.weights.get(f"{name}.{p}_proj.bias"))
             for p in "qkv"]
    weight = np.concatenate([w / 8 if p == 0 else w for p, (w, _) in enumerate(parts)])
    bias = np.concatenate([np.zeros(width, np.float32) if b is None
                           else b.astype(np.float32) / (8 if p == 0 else 1)
                           for p, (_, b) in enumerate(parts)])
    y = g.linear(y, weight, bias, name + ".qkv")
    y = g.op("Reshape", y, g.op("Concat", shape, g.ints(3 * width), axis=0))
    present = [f"present_k_{i}", f"present_v_{i}"]
    out = g._name("attention")
    g.ms("GroupQueryAttention", y, "", "", f"past_k_{i}", f"past_v_{i}", last, total,
         out=[out] + present, num_heads=g.heads, kv_num_heads=g.heads, scale=1.0)
    for past, now in zip((f"past_k_{i}", f"past_v_{i}"), present):
        g.input(past, FLOAT, ["B", g.heads, "C", HEAD])
        g.output(now, FLOAT, ["B", g.heads, "C", HEAD])
    return g.out_proj(g.op("Reshape", out, g.ints(-1, width)), name)


def _cross_attention(g, y, i, shape):
    """-> ((branch, bias), the queries (B,H,T,64) for the alignment)"""
    name, width = f"decoder.layers.{i}.encoder_attn", g.heads * HEAD
    y = g.linear(y, *g.proj(name + ".q_proj", 1 / 8), name + ".q")
    y = g.op("Reshape", y, g.op("Concat", shape, g.ints(g.heads, HEAD), axis=0))
    query = g.op("Transpose", y, perm=[0, 2, 1, 3])
    scores = g.op("Softmax", g.op("MatMul", query, f"cross_k_{i}"), axis=-1)
    y = g.op("Transpose", g.op("MatMul", scores, f"cross_v_{i}"), perm=[0, 2, 1, 3])
    return g.out_proj(g.op("Reshape", y, g.ints(-1, width)), name), query


def _alignment(g, queries, pairs, frames):
    """align_scores (B,n,T,S), computed only when `align` is true; else an empty tensor."""
    asked, empty = Graph(prefix="asked_"), Graph(prefix="empty_")
    parts = []
    for i, query in enumerate(queries):
        chosen = [head for layer, head in pairs if layer == i]
        if chosen:
            index = asked.const(np.array(chosen, np.int64))
            parts.append(asked.op("MatMul", asked.op("Gather", query, index, axis=1),
                                  asked.op("Gather", f"cross_k_{i}", index, axis=1)))
    asked.op("Concat", *parts, axis=1, out="scores_asked")
    asked.output("scores_asked", FLOAT, None)
    empty.op("Identity", empty.const(np.zeros((0, 0, 0, 0), np.float32)), out="scores_empty")
    empty.output("scores_empty", FLOAT, None)
    g.op("If", "align", out="align_scores", then_branch=asked.proto("asked"),
         else_branch=empty.proto("empty"))
    g.output("align_scores", FLOAT, ["B", len(pairs), "T", frames])


def decoder(weights, heads, int8, pairs):
    """One step for B rows (T=1), or a prompt (B=1). pairs: (layer, head) of the alignment heads."""
    g = WhisperGraph(weights, heads, int8)
    frames = weights["encoder.embed_positions.weight"].shape[0]
    vocab, width = weights["decoder.embed_tokens.weight"].shape
    g.input("input_ids", INT64, ["B", "T"])
    lengths = g.input("lengths", INT32, ["B"])
    rows = g.input("logit_rows", INT64, ["R"])
    g.input("align", BOOL, [])
    shape = g.op("Shape", "input_ids")                                                # (2) = B,T
    steps = g.op("Cast", g.op("Gather", shape, g.const(np.array(1, np.int64), "one_i64"), axis=0),
                 to=INT32)
    total = g.op("Add", g.op("ReduceMax", lengths, keepdims=0), steps)
    last = g.op("Add", lengths, g.op("Sub", steps, g.scalar(1, np.int32)))            # (B)
    x = _embed(g, lengths, steps)
    y, queries = g.norm(x, "decoder.layers.0.self_attn_layer_norm"), []
    layers = count_layers(weights, "decoder")
    for i in range(layers):
        name = f"decoder.layers.{i}"
        x, y = g.add_norm(x, *_self_attention(g, y, i, shape, last, total),
                          name + ".encoder_attn_layer_norm")
        branch, query = _cross_attention(g, y, i, shape)
        queries.append(query)
        x, y = g.add_norm(x, *branch, name + ".final_layer_norm")
        branch = g.feed_forward(y, name)
        after = f"decoder.layers.{i + 1}.self_attn_layer_norm" if i + 1 < layers \
            else "decoder.layer_norm"
        x, y = g.add_norm(x, *branch, after)
    for i in range(layers):
        g.input(f"cross_k_{i}", FLOAT, ["B", heads, HEAD, frames])
        g.input(f"cross_v_{i}", FLOAT, ["B", heads, frames, HEAD])
    y = g.op("Gather", y, rows, axis=0)                                               # (R,d)
    if int8:
        logits = g.matmul(y, g.weight("decoder.embed_tokens.weight"), "embed", "logits")
        g.op("Identity", logits, out="logits")
    else:
        g.op("Gemm", y, g.const(None, "embed"), transB=1, out="logits")
    g.output("logits", FLOAT, ["R", vocab])
    if pairs:
        _alignment(g, queries, pairs, frames)
    return g
