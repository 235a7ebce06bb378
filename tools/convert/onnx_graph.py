"""A small builder of ONNX graphs: numpy and onnx only, deterministic bytes."""
import numpy as np
from onnx import TensorProto, helper, numpy_helper

MS = "com.microsoft"  # ONNX Runtime's own operators
BIG = 4096            # elements from which a constant counts as a weight


class Graph:
    """Nodes and constants in order of creation.

    store="fp16" keeps float weights on disk as fp16 behind a Cast, which ONNX Runtime folds when it
    loads; lossless where the source is fp16 (checked, else the tensor stays fp32). A branch of an
    If needs a prefix: its names may not repeat those around it."""

    def __init__(self, store="fp16", prefix=""):
        self.store, self.prefix, self.nodes, self.constants = store, prefix, [], []
        self.inputs, self.outputs = [], []
        self.named, self.count = {}, 0

    def _name(self, kind):
        self.count += 1
        return f"{self.prefix}{kind}_{self.count}"

    def const(self, value, name=None):
        """A constant; the same name gives the same constant again."""
        if name is not None and name in self.named:
            return self.named[name]
        value = np.array(value, order="C")  # ascontiguousarray would give a scalar an axis
        full = name or self._name("const")
        result = full
        if self.store == "fp16" and value.dtype.kind == "f" and value.size >= BIG:
            half = value.astype(np.float16)
            if np.array_equal(half.astype(np.float32), value.astype(np.float32)):
                self.constants.append(numpy_helper.from_array(half, full + ".half"))
                result = self.op("Cast", full + ".half", to=TensorProto.FLOAT)
        if result == full:
            value = value.astype(np.float32) if value.dtype == np.float16 else value
            self.constants.append(numpy_helper.from_array(value, full))
        if name is not None:
            self.named[name] = result
        return result

    def ints(self, *values):
        return self.const(np.array(values, np.int64), "i64_" + "_".join(map(str, values)))

    def scalar(self, value, dtype=np.float32):
        return self.const(np.array(value, dtype), f"{np.dtype(dtype).name}_{value}")

    def op(self, kind, *inputs, out=None, outs=1, domain=None, **attributes):
        """Adds a node; returns its output's name, or a list where it has several."""
        name = self._name(kind)
        names = [out] if isinstance(out, str) else out or [f"{name}_{i}" for i in range(outs)]
        node = helper.make_node(kind, list(inputs), names, name=name, domain=domain, **attributes)
        self.nodes.append(node)
        return names[0] if len(names) == 1 else names

    def ms(self, kind, *inputs, **keywords):
        return self.op(kind, *inputs, domain=MS, **keywords)

    def input(self, name, dtype, shape):
        self.inputs.append(helper.make_tensor_value_info(name, dtype, shape))
        return name

    def output(self, name, dtype, shape):
        self.outputs.append(helper.make_tensor_value_info(name, dtype, shape))
        return name

    def proto(self, name):
        """The graph alone: for the branch of an If, which sees the outer names."""
        return helper.make_graph(self.nodes, name, self.inputs, self.outputs, self.constants)

    def save(self, path, name, metadata=None, opset=17):
        opsets = [helper.make_opsetid("", opset)]
        if any(node.domain == MS for node in self.nodes):
            opsets.append(helper.make_opsetid(MS, 1))
        model = helper.make_model(self.proto(name), producer_name="berth", opset_imports=opsets)
        model.ir_version = 8
        helper.set_model_props(model, metadata or {})
        with open(path, "wb") as file:
            file.write(model.SerializeToString(deterministic=True))


FLOAT, INT64, INT32, BOOL = (TensorProto.FLOAT, TensorProto.INT64, TensorProto.INT32,
                             TensorProto.BOOL)
