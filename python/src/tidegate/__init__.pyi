import os
from collections.abc import Callable, Iterable
from typing import Any, Literal, NamedTuple, Protocol, TypedDict, TypeVar

from typing_extensions import Unpack

class _Tensor(Protocol):
    """NumPy, PyTorch (CPU), JAX (CPU), or whatever else has DLPack."""

    @property
    def shape(self) -> Any: ...
    @property
    def dtype(self) -> Any: ...

__all__ = [
    "CaseResult", "CheckFailed", "CheckResult", "Error", "Skip", "TensorResult", "as_subject", "backward", "check",
    "decode", "forward", "packed_decode", "plan",
]

_T = TypeVar("_T", bound=_Tensor)
_Rule = Literal["deltanet", "gdn", "kda", "gdn2", "gdp", "dplr", "iplr", "rwkv7"]
_Pass = Literal["forward", "backward", "decode", "packed"]
_Gradient = Literal[
    "dq", "dk", "dv", "dg", "dbeta", "derase", "dwrite", "dlr_a", "dlr_b", "da", "db", "dA_log", "ddt_bias", "dh0"
]

__version__: str

class Error(ValueError):
    argument: str
    def __init__(self, argument: str, text: str) -> None: ...

class CheckFailed(AssertionError):
    result: CheckResult
    def __init__(self, result: CheckResult) -> None: ...

class Skip(Exception): ...

class _Options(TypedDict, total=False):
    """Keyword arguments of every operation."""

    rule: _Rule  # "gdn"
    gate_form: Literal["softplus", "bounded"]
    lower_bound: float  # -5.0
    gate_min: float | None
    allow_neg_eigval: bool
    head_map: Literal["grouped", "tiled"]
    state_v_first: bool
    check_values: bool
    threads: int  # 0: all cores
    reference: bool  # the fp64 oracle in place of the kernels

class _Inputs(_Options, total=False):
    """And of those on q, k and v; n is n_householder."""

    erase: _Tensor | None  # gdn2 [B, T, HV, K]
    write: _Tensor | None  # gdn2 [B, T, HV, V]
    lr_a: _Tensor | None  # dplr, iplr, rwkv7 [B, T, HV, K]
    lr_b: _Tensor | None  # dplr, iplr, rwkv7 [B, T, HV, K]
    n_householder: int  # gdp
    a: _Tensor | None  # shape of g
    b: _Tensor | None  # shape of beta
    A_log: _Tensor | None  # [HV]
    dt_bias: _Tensor | None  # [HV], [HV * K] where g has channels

def forward(
    q: _Tensor,  # [B, T, H, K]
    k: _Tensor,  # [B, T n, H, K]
    v: _T,  # [B, T n, HV, V]
    g: _Tensor | None = None,  # [B, T, HV]; kda, gdn2, dplr, rwkv7 [B, T, HV, K]
    beta: _Tensor | None = None,  # deltanet, gdn, kda, gdp [B, T n, HV]
    scale: float | None = None,
    initial_state: _Tensor | None = None,  # [N, HV, K, V]
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    cu_seqlens: _Tensor | None = None,  # [N + 1]
    *,
    out: _Tensor | None = None,  # [B, >= T, HV, V]
    final_state: _Tensor | None = None,  # [N, HV, K, V]
    out_dtype: Any = None,
    state_dtype: Any = None,
    **shared: Unpack[_Inputs],
) -> tuple[_T, _T | None]: ...
def backward(
    q: _Tensor,
    k: _Tensor,
    v: _Tensor,
    g: _Tensor | None = None,
    beta: _Tensor | None = None,
    scale: float | None = None,
    initial_state: _Tensor | None = None,
    *,
    do: _Tensor,  # [B, T, HV, V], dL/do
    dht: _Tensor | None = None,  # [N, HV, K, V], dL/d(final_state)
    use_qk_l2norm_in_kernel: bool = False,
    cu_seqlens: _Tensor | None = None,
    gradients: Iterable[_Gradient] | None = None,
    out: dict[_Gradient, Any] | None = None,
    memory_limit: int = 0,
    **shared: Unpack[_Inputs],
) -> dict[_Gradient, Any]: ...
def decode(
    q: _Tensor,
    k: _Tensor,
    v: _T,
    g: _Tensor | None = None,
    beta: _Tensor | None = None,
    scale: float | None = None,
    state: _Tensor | None = None,  # [P, HV, K, V]
    state_indices: _Tensor | None = None,  # [B] or [B, W]
    num_accepted: _Tensor | None = None,  # [B]
    use_qk_l2norm_in_kernel: bool = False,
    *,
    null_slot: int | None = None,
    out: _Tensor | None = None,  # [B, >= T, HV, V]
    state_tokens: _Tensor | None = None,  # [B, T, HV, K, V]
    out_dtype: Any = None,
    **shared: Unpack[_Inputs],
) -> _T: ...
def packed_decode(
    mixed_qkv: _T,  # [B, 2 H K + HV V]
    a: _Tensor | None,  # [B, HV], kda [B, HV, K]
    b: _Tensor,  # [B, HV]
    A_log: _Tensor | None,  # [HV]
    dt_bias: _Tensor | None = None,  # [HV], kda [HV * K]
    state: _Tensor | None = None,  # [P, HV, K, V]
    state_indices: _Tensor | None = None,  # [B]
    scale: float | None = None,
    use_qk_l2norm_in_kernel: bool = False,
    *,
    null_slot: int | None = None,
    out: _Tensor | None = None,  # [B, 1, HV, V]
    out_dtype: Any = None,
    **shared: Unpack[_Options],
) -> _T: ...
def plan(*arguments: Any, call: Callable[..., Any] | None = None, **named: Any) -> str: ...

class TensorResult(NamedTuple):
    name: str
    verdict: str
    reason: str
    measures: dict[str, float]
    worst: dict[str, int]
    unwritten: int | None
    limit: float
    twin: str

class CaseResult(NamedTuple):
    id: str
    verdict: str
    reason: str
    signal: int
    seconds: float
    replay: str
    tensors: list[TensorResult]

class CheckResult:
    exit_code: int
    text: str
    records: list[dict[str, Any]]
    cases: list[CaseResult]
    counts: dict[str, int]
    def __init__(self, exit_code: int, text: str, records: list[dict[str, Any]]) -> None: ...
    @property
    def ok(self) -> bool: ...
    def __bool__(self) -> bool: ...

def check(
    fn: Callable[..., Any] | str,
    case_or_suite: str | os.PathLike[str],
    *,
    rule: _Rule | None = None,
    dtype: Literal["fp32", "bf16", "fp16"] | None = None,
    pass_: _Pass | None = None,
    gate: str = "derived",
    twin: str | None = None,
    l2norm: bool = True,
    timeout: float = 60.0,
    persistent: bool = True,
    raise_on_failure: bool = False,
) -> CheckResult: ...
def as_subject(fn: Callable[..., Any]) -> str: ...
