"""Tensors of any framework: handed to the extension as they are, and outputs made where the inputs come from."""
import sys

import numpy as np

from ._error import Error

_NAMES = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16", "float64": "fp64"}
_LONG_NAMES = {short: name for name, short in _NAMES.items()}


def _name_of(dtype):
    """fp32, ... of any framework's dtype; text for what is none of them."""
    text = dtype
    if not isinstance(dtype, str):
        text = str(dtype).rpartition(".")[2]  # torch.bfloat16
        if text not in _NAMES:
            try:
                text = np.dtype(dtype).name
            except TypeError:
                pass
    return _NAMES.get(text, text)


def dtype_name(argument, dtype, fp64=False):
    """fp32, bf16 or fp16 (or fp64), from those names, NumPy's, or any framework's dtype."""
    name = _name_of(dtype)
    if name not in ("fp32", "bf16", "fp16") + ("fp64",) * fp64:
        raise Error(argument, "%s: given %s, expected %s" % (
            argument, dtype, "fp32, bf16, fp16 or fp64" if fp64 else "fp32, bf16 or fp16"))
    return name


def is_fp64(tensor):
    return _name_of(getattr(tensor, "dtype", "")) == "fp64"


def framework(tensor):
    """Whose tensor it is: torch, jax, or numpy for all others."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(tensor, torch.Tensor):
        return "torch"
    return "jax" if type(tensor).__module__.partition(".")[0] in ("jax", "jaxlib") else "numpy"


def exported(arguments, outputs):
    """Arguments as the extension takes them, and the names of those tensors whose uint16 stands for bf16."""
    handed, bf16 = {}, set()
    for name, tensor in arguments.items():
        if tensor is None:
            continue
        kind = framework(tensor)
        if kind == "torch" and tensor.requires_grad:
            if sys.modules["torch"].is_grad_enabled():
                raise Error(name, name + ": given a tensor that requires grad, expected one that does not "
                            "(no gradients are recorded: use torch.no_grad(), detach it, or call backward())")
            tensor = tensor.detach()
        if kind == "jax" and name in outputs:
            raise Error(name, name + ": given a JAX array, which is immutable, expected memory that may be written")
        # NumPy exports no bf16, neither by DLPack nor as a buffer. (The kind first: making a name takes microseconds.)
        if isinstance(tensor, np.ndarray) and tensor.dtype.kind == "V" and tensor.dtype.name == "bfloat16":
            tensor = tensor.view(np.uint16)
            bf16.add(name)
        handed[name] = tensor
    return handed, bf16


def stream_of(tensor):
    """The address of the CUDA stream that PyTorch puts work on such a tensor on; None for all others."""
    if framework(tensor) == "torch" and tensor.is_cuda:
        return sys.modules["torch"].cuda.current_stream(tensor.device).cuda_stream
    return None


def empty(argument, like, shape, dtype):
    """A new tensor of `like`'s framework, where `like` is; for JAX a NumPy array, see finished()."""
    name = _LONG_NAMES[dtype]
    if framework(like) == "torch":
        torch = sys.modules["torch"]
        return torch.empty(tuple(shape), dtype=getattr(torch, name), device=like.device)
    if name == "bfloat16":
        try:
            import ml_dtypes
        except ImportError:
            raise Error(argument, argument + ": given bf16, but NumPy has none without the package ml_dtypes; "
                        "expected fp32 or fp16, or a tensor to write to") from None
        return np.empty(shape, ml_dtypes.bfloat16)
    return np.empty(shape, name)


def empty_like(argument, tensor):
    """A new tensor of the shape and type of another; fp32 where that has a type that no call takes."""
    kind = tensor
    if not hasattr(tensor, "dtype"):
        try:
            kind = np.from_dlpack(tensor) if hasattr(tensor, "__dlpack__") else np.asarray(memoryview(tensor))
        except Exception:  # no tensor at all: the call says so
            kind = None
    name = _name_of(getattr(kind, "dtype", ""))
    return empty(argument, tensor, getattr(kind, "shape", (0,)), name if name in _LONG_NAMES else "fp32")


def finished(like, made):
    """An output that empty() made, as it is returned."""
    if made is None or framework(like) != "jax":
        return made
    import jax.numpy
    return jax.numpy.asarray(made)
