"""Reads a legacy (not zip) torch.save file without torch, by numpy only.

Layout: pickle(magic), pickle(1001), pickle(system), pickle(object), pickle(storage keys), then for
each key an i64 element count and raw little-endian data. The unpickler refuses every global but
the handful below, so nothing in the file can run code."""
import collections
import pickle
import struct

import numpy as np

MAGIC = 0x1950a86a20f9469cfc6c
DTYPES = {"FloatStorage": "<f4", "DoubleStorage": "<f8", "HalfStorage": "<f2", "LongStorage": "<i8",
          "IntStorage": "<i4", "ShortStorage": "<i2", "CharStorage": "i1", "ByteStorage": "u1",
          "BoolStorage": "?"}


class _Storage:
    """Its data comes after the pickles."""

    def __init__(self, dtype, count):
        self.dtype, self.count, self.values = np.dtype(dtype), count, None


class _Tensor:
    def __init__(self, storage, offset, size, stride, *_):
        self.storage, self.offset, self.size, self.stride = storage, offset, size, stride

    def array(self):
        values, size = self.storage.values, self.storage.dtype.itemsize
        last = self.offset + sum((n - 1) * s for n, s in zip(self.size, self.stride))
        if 0 not in self.size and not 0 <= last < len(values):
            raise ValueError("a tensor reaches past its storage")
        return np.lib.stride_tricks.as_strided(
            values[self.offset:], self.size, [s * size for s in self.stride]).copy()


class _Unpickler(pickle.Unpickler):
    def __init__(self, file, storages):
        super().__init__(file)
        self.storages = storages

    def find_class(self, module, name):
        if (module, name) == ("collections", "OrderedDict"):
            return collections.OrderedDict
        if module == "torch._utils" and name in ("_rebuild_tensor_v2", "_rebuild_tensor"):
            return _Tensor
        if module == "torch._utils" and name == "_rebuild_parameter":
            return lambda tensor, *_: tensor
        if module == "torch" and name in DTYPES:
            return DTYPES[name]
        raise pickle.UnpicklingError(f"refused {module}.{name}")

    def persistent_load(self, key):  # ("storage", dtype, key, location, count, view)
        _, dtype, name, _, count, view = key
        if view is not None:
            raise pickle.UnpicklingError("views of storages are not read")
        return self.storages.setdefault(name, _Storage(dtype, count))


def _arrays(value):
    if isinstance(value, _Tensor):
        return value.array()
    if isinstance(value, dict):
        return type(value)((k, _arrays(v)) for k, v in value.items())
    if isinstance(value, (list, tuple)):
        return type(value)(_arrays(v) for v in value)
    return value


def load(path):
    """The saved object, every tensor in it a numpy array."""
    storages = {}
    with open(path, "rb") as file:
        def unpickle():
            return _Unpickler(file, storages).load()

        if unpickle() != MAGIC or unpickle() != 1001 or not unpickle()["little_endian"]:
            raise ValueError(f"{path}: not a legacy torch file")
        value = unpickle()
        for key in unpickle():
            storage = storages[key]
            count = struct.unpack("<q", file.read(8))[0]
            if count != storage.count:
                raise ValueError(f"{path}: storage {key} has {count} elements, not {storage.count}")
            data = file.read(count * storage.dtype.itemsize)
            storage.values = np.frombuffer(data, storage.dtype)
    return _arrays(value)
