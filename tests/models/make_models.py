#!/usr/bin/env python3
"""Makes the small ONNX files beside it that tests/unit/test_onnx.c runs; the files are committed.

Needs numpy and onnx. Deterministic: the same versions give the same bytes.

usage: tests/models/make_models.py [FOLDER]        (default: this script's folder)
"""

import os
import sys

import numpy as np
from onnx import TensorProto, checker, helper, numpy_helper

FLOAT, INT64, STRING, BOOL = (
    TensorProto.FLOAT, TensorProto.INT64, TensorProto.STRING, TensorProto.BOOL,
)
MIXED = [
    ("bool", TensorProto.BOOL), ("u8", TensorProto.UINT8), ("u16", TensorProto.UINT16),
    ("u32", TensorProto.UINT32), ("u64", TensorProto.UINT64), ("i8", TensorProto.INT8),
    ("i16", TensorProto.INT16), ("i32", TensorProto.INT32), ("i64", TensorProto.INT64),
    ("f16", TensorProto.FLOAT16), ("f32", TensorProto.FLOAT), ("f64", TensorProto.DOUBLE),
    ("bf16", TensorProto.BFLOAT16),
]


def info(name, kind, shape):
    return helper.make_tensor_value_info(name, kind, shape)


def model(nodes, inputs, outputs, weights=(), check=True):
    graph = helper.make_graph(
        nodes, "test", inputs, outputs, [numpy_helper.from_array(v, k) for k, v in weights]
    )
    made = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8, producer_name="berth"
    )
    if check:
        checker.check_model(made)
    return made


def add():
    """Two inputs, batched: z = x + y, (B,N)."""
    return model(
        [helper.make_node("Add", ["x", "y"], ["z"])],
        [info("x", FLOAT, ["B", "N"]), info("y", FLOAT, ["B", "N"])],
        [info("z", FLOAT, ["B", "N"])],
    )


def linear():
    """(B,8) to (B,4), of known size; with metadata."""
    random = np.random.default_rng(7)
    made = model(
        [helper.make_node("Gemm", ["x", "w", "c"], ["y"])],
        [info("x", FLOAT, ["B", 8])],
        [info("y", FLOAT, ["B", 4])],
        [("w", random.normal(size=(8, 4)).astype(np.float32)),
         ("c", random.normal(size=4).astype(np.float32))],
    )
    helper.set_model_props(made, {"berth.test": "yes", "empty": ""})
    return made


def strings():
    """BYTES in and out, (B,N)."""
    return model(
        [helper.make_node("Identity", ["x"], ["y"])],
        [info("x", STRING, ["B", "N"])],
        [info("y", STRING, ["B", "N"])],
    )


def dynamic():
    """(B,T): twice, and the sum of each row, (B,1)."""
    return model(
        [helper.make_node("Add", ["x", "x"], ["twice"]),
         helper.make_node("ReduceSum", ["x", "axis"], ["sum"], keepdims=1)],
        [info("x", FLOAT, ["B", "T"])],
        [info("twice", FLOAT, ["B", "T"]), info("sum", FLOAT, ["B", 1])],
        [("axis", np.array([1], np.int64))],
    )


def fixed():
    """No batch: (2,3)."""
    return model(
        [helper.make_node("Neg", ["x"], ["y"])],
        [info("x", FLOAT, [2, 3])],
        [info("y", FLOAT, [2, 3])],
    )


def doubled():
    """Says it batches, but brings forth two rows for each: (B,N) to (2B,N)."""
    return model(
        [helper.make_node("Concat", ["x", "x"], ["y"], axis=0)],
        [info("x", FLOAT, ["B", "N"])],
        [info("y", FLOAT, ["C", "N"])],
    )


def unshaped():
    """An output whose shape the file leaves out."""
    output = helper.make_empty_tensor_value_info("y")
    output.type.tensor_type.elem_type = FLOAT
    return model(
        [helper.make_node("Neg", ["x"], ["y"])], [info("x", FLOAT, ["B", 5])], [output], check=False
    )


def mixed():
    """Every element type, (B,3)."""
    return model(
        [helper.make_node("Identity", [name], [name + "_out"]) for name, _ in MIXED],
        [info(name, kind, ["B", 3]) for name, kind in MIXED],
        [info(name + "_out", kind, ["B", 3]) for name, kind in MIXED],
    )


def filled():
    """As many zeros as the input says: can ask for more memory than there is. No batch."""
    return model(
        [helper.make_node("ConstantOfShape", ["count"], ["y"])],
        [info("count", INT64, [1])],
        [info("y", FLOAT, ["N"])],
    )


def slow():
    """Multiplies a matrix with itself as often as the input says: (1,), no batch."""
    body = helper.make_graph(
        [helper.make_node("MatMul", ["m", "m"], ["square"]),
         helper.make_node("Tanh", ["square"], ["m_out"]),
         helper.make_node("Identity", ["go"], ["go_out"])],
        "body",
        [info("i", INT64, []), info("go", BOOL, []), info("m", FLOAT, [96, 96])],
        [info("go_out", BOOL, []), info("m_out", FLOAT, [96, 96])],
    )
    return model(
        [helper.make_node("Squeeze", ["count"], ["trips"]),
         helper.make_node("Cast", ["shape_one"], ["yes"], to=BOOL),
         helper.make_node("ConstantOfShape", ["size"], ["start"],
                          value=helper.make_tensor("v", FLOAT, [1], [0.01])),
         helper.make_node("Loop", ["trips", "yes", "start"], ["end"], body=body),
         helper.make_node("ReduceMean", ["end"], ["y"], keepdims=0)],
        [info("count", INT64, [1])],
        [info("y", FLOAT, [])],
        [("size", np.array([96, 96], np.int64)), ("shape_one", np.array(1, np.int64))],
    )


def outside():
    """Weights that claim to lie outside the model's folder."""
    made = linear()
    tensor = made.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (("location", "../../secret"), ("offset", "0"), ("length", "128")):
        entry = tensor.external_data.add()
        entry.key, entry.value = key, value
    return made


def main():
    folder = sys.argv[1] if len(sys.argv) > 1 else os.path.dirname(os.path.abspath(__file__))
    makers = [add, linear, strings, dynamic, fixed, doubled, unshaped, mixed, filled, slow, outside]
    total = 0
    for maker in makers:
        content = maker().SerializeToString(deterministic=True)
        total += len(content)
        with open(os.path.join(folder, maker.__name__ + ".onnx"), "wb") as file:
            file.write(content)
    whole = linear().SerializeToString(deterministic=True)
    for name, content in (
        ("truncated.onnx", whole[: len(whole) // 2]),
        ("corrupt.onnx", bytes((7 * i * i + 13 * i) % 256 for i in range(300))),
        ("empty.onnx", b""),
    ):
        total += len(content)
        with open(os.path.join(folder, name), "wb") as file:
            file.write(content)
    print(f"{len(makers) + 3} files, {total} bytes")


if __name__ == "__main__":
    main()
