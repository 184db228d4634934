"""Tidegate: delta-rule linear attention (Gated DeltaNet and seven more rules) on the CPU, and a judge of any kernel.

    o, final_state = tidegate.forward(q, k, v, g, beta, output_final_state=True)    # NumPy, PyTorch, JAX
    gradients = tidegate.backward(q, k, v, g, beta, do=do)                          # {"dq": ..., "dk": ..., ...}
    print(tidegate.check(my_kernel, "quick", rule="gdn"))                           # is my kernel right?
"""
from ._calls import backward, decode, forward, packed_decode, plan
from ._check import CaseResult, CheckResult, TensorResult, check
from ._core import version as __version__
from ._error import CheckFailed, Error
from ._isolate import as_subject
from .tidegate_subject import Skip

__all__ = ["CaseResult", "CheckFailed", "CheckResult", "Error", "Skip", "TensorResult", "as_subject", "backward",
           "check", "decode", "forward", "packed_decode", "plan"]
