"""Our files against PyPI's safetensors and NumPy, both ways. Usage: io_cross_check.py PATH_OF_IO_COPY"""
import itertools
import json
import pathlib
import struct
import subprocess
import sys
import tempfile

import numpy as np
import safetensors
import safetensors.numpy

IO_COPY = sys.argv[1]
DTYPES = {"F32": "<f4", "F16": "<f2", "F64": "<f8", "I32": "<i4", "I64": "<i8"}
SHAPES = [(1,), (7,), (0,), (3, 5), (2, 0, 4), (2, 3, 4), (2, 1, 3, 2), (1, 2, 3, 2, 2)]
rng = np.random.default_rng(7)
checks = 0


def check(condition, what):
    global checks
    checks += 1
    if not condition:
        sys.exit(f"io_cross_check: {what}")


def array(dtype, shape):
    """Random bits, NaNs and infinities included: files carry bits, not values."""
    return np.frombuffer(rng.bytes(int(np.prod(shape)) * np.dtype(dtype).itemsize), dtype).reshape(shape)


def same(a, b):
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


def ours(source, target):
    done = subprocess.run([IO_COPY, source, target], capture_output=True, text=True)
    check(done.returncode == 0, f"io_copy {source}: {done.stderr}")


def refuses(path, part):
    done = subprocess.run([IO_COPY, path, str(path) + ".out"], capture_output=True, text=True)
    check(done.returncode == 2 and part in done.stderr and str(path) in done.stderr, f"{path}: {done}")


def raw_safetensors(path, tensors):
    """tensors: name -> (dtype, shape, bytes)."""
    header, offset = {}, 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, offset + len(data)]}
        offset += len(data)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(t[2] for t in tensors.values()))


def check_safetensors(folder):
    theirs, back = folder / "theirs.safetensors", folder / "ours.safetensors"
    tensors = {f"{name}.{i}": array(dtype, shape)
               for (name, dtype), (i, shape) in itertools.product(DTYPES.items(), enumerate(SHAPES))}
    metadata = {"rule": "gdn", "quote \" \\ \n \x01 é 潮": "é\t\u2028 \U0001F30A", "": ""}
    safetensors.numpy.save_file(tensors, theirs, metadata=metadata)
    ours(theirs, back)
    loaded = safetensors.numpy.load_file(back)
    check(loaded.keys() == tensors.keys(), "names differ")
    for name, value in tensors.items():
        check(same(loaded[name], value), f"{name} differs")
    with safetensors.safe_open(back, "numpy") as file:
        check(file.metadata() == metadata, f"metadata differs: {file.metadata()}")

    # Without metadata (whose order their writer leaves open) the bytes are the same.
    safetensors.numpy.save_file(tensors, theirs)
    ours(theirs, back)
    check(theirs.read_bytes() == back.read_bytes(), "our bytes are not those of the official writer")

    # NumPy has no bf16: a header by hand, their reader's view of ours through its raw interface.
    bits = rng.bytes(2 * 3 * 5)
    raw_safetensors(theirs, {"b": ("BF16", [3, 5], bits), "f": ("F32", [2], bytes(8))})
    ours(theirs, back)
    entries = dict(safetensors.deserialize(back.read_bytes()))
    check(entries["b"]["dtype"] == "BF16" and entries["b"]["shape"] == [3, 5], f"bf16 header differs: {entries}")
    check(bytes(entries["b"]["data"]) == bits, "bf16 bits differ")

    safetensors.numpy.save_file({"x": np.zeros(3, np.uint8)}, theirs)
    refuses(theirs, '"U8"')
    safetensors.numpy.save_file({"x": np.array(1.0, np.float32)}, theirs)
    refuses(theirs, "scalars")


def check_npy(folder):
    theirs, back = folder / "theirs.npy", folder / "ours.npy"
    for dtype, shape, order in itertools.product(DTYPES.values(), SHAPES, "CF"):
        value = np.asarray(array(dtype, shape), order=order)
        np.save(theirs, value)
        ours(theirs, back)
        check(same(np.load(back), value), f"{dtype} {shape} {order} differs")
    value = array("<f4", (2, 3))
    for version in [(1, 0), (2, 0), (3, 0)]:
        with open(theirs, "wb") as file:
            np.lib.format.write_array(file, value, version=version)
        ours(theirs, back)
        check(same(np.load(back), value), f"version {version} differs")
    for value, part in [(np.zeros(2, ">f4"), "big-endian"), (np.zeros(2, "O"), "object"), (np.float32(1), "scalars"),
                        (np.zeros(2, [("x", "<f4")]), "structured"), (np.zeros(2, np.uint8), "not taken")]:
        np.save(theirs, value)
        refuses(theirs, part)


with tempfile.TemporaryDirectory() as name:
    check_safetensors(pathlib.Path(name))
    check_npy(pathlib.Path(name))
print(f"io_cross_check: {checks} checks passed (numpy {np.__version__}, safetensors {safetensors.__version__})")
