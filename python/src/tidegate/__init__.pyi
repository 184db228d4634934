import os
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, Protocol, TypeVar

class _Tensor(Protocol):
    """NumPy, PyTorch (CPU), JAX (CPU), or whatever else has DLPack."""

    @property
    def shape(self) -> Any: ...
    @property
    def dtype(self) -> Any: ...

__all__ = [
    "CaseResult", "CheckFailed", "CheckResult", "Error", "Skip", "TensorResult", "as_subject", "check", "decode",
    "forward", "packed_decode", "plan",
]

_T = TypeVar("_T", bound=_Tensor)
_Rule = Literal["gdn", "kda"]
_Pass = Literal["forward", "decode", "packed"]

__version__: str

class Error(ValueError):
    argument: str
    def __init__(self, argument: str, text: str) -> None: ...

class CheckFailed(AssertionError):
    result: CheckResult
    def __init__(self, result: CheckResult) -> None: ...

class Skip(Exception): ...

def forward(
    q: _Tensor,  # [B, T, H, K]
    k: _Tensor,  # [B, T, H, K]
    v: _T,  # [B, T, HV, V]
    g: _Tensor | None = None,  # [B, T, HV], kda [B, T, HV, K]
    beta: _Tensor | None = None,  # [B, T, HV]
    scale: float | None = None,
    initial_state: _Tensor | None = None,  # [N, HV, K, V]
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    cu_seqlens: _Tensor | None = None,  # [N + 1]
    *,
    rule: _Rule = "gdn",
    a: _Tensor | None = None,  # shape of g
    b: _Tensor | None = None,  # shape of beta
    A_log: _Tensor | None = None,  # [HV]
    dt_bias: _Tensor | None = None,  # [HV], kda [HV * K]
    gate_form: Literal["softplus", "bounded"] = "softplus",
    lower_bound: float = -5.0,
    gate_min: float | None = None,
    allow_neg_eigval: bool = False,
    head_map: Literal["grouped", "tiled"] = "grouped",
    state_v_first: bool = False,
    out: _Tensor | None = None,  # [B, >= T, HV, V]
    final_state: _Tensor | None = None,  # [N, HV, K, V]
    out_dtype: Any = None,
    state_dtype: Any = None,
    check_values: bool = False,
    threads: int = 0,
) -> tuple[_T, _T | None]: ...
def decode(
    q: _Tensor,  # [B, T, H, K]
    k: _Tensor,  # [B, T, H, K]
    v: _T,  # [B, T, HV, V]
    g: _Tensor | None = None,  # [B, T, HV], kda [B, T, HV, K]
    beta: _Tensor | None = None,  # [B, T, HV]
    scale: float | None = None,
    state: _Tensor | None = None,  # [P, HV, K, V]
    state_indices: _Tensor | None = None,  # [B] or [B, W]
    num_accepted: _Tensor | None = None,  # [B]
    use_qk_l2norm_in_kernel: bool = False,
    *,
    null_slot: int | None = None,
    rule: _Rule = "gdn",
    a: _Tensor | None = None,  # shape of g
    b: _Tensor | None = None,  # shape of beta
    A_log: _Tensor | None = None,  # [HV]
    dt_bias: _Tensor | None = None,  # [HV], kda [HV * K]
    gate_form: Literal["softplus", "bounded"] = "softplus",
    lower_bound: float = -5.0,
    gate_min: float | None = None,
    allow_neg_eigval: bool = False,
    head_map: Literal["grouped", "tiled"] = "grouped",
    state_v_first: bool = False,
    out: _Tensor | None = None,  # [B, >= T, HV, V]
    state_tokens: _Tensor | None = None,  # [B, T, HV, K, V]
    out_dtype: Any = None,
    check_values: bool = False,
    threads: int = 0,
) -> _T: ...
def packed_decode(
    mixed_qkv: _T,  # [B, 2 H K + HV V]
    a: _Tensor,  # [B, HV], kda [B, HV, K]
    b: _Tensor,  # [B, HV]
    A_log: _Tensor,  # [HV]
    dt_bias: _Tensor | None = None,  # [HV], kda [HV * K]
    state: _Tensor | None = None,  # [P, HV, K, V]
    state_indices: _Tensor | None = None,  # [B]
    scale: float | None = None,
    use_qk_l2norm_in_kernel: bool = False,
    *,
    null_slot: int | None = None,
    rule: _Rule = "gdn",
    gate_form: Literal["softplus", "bounded"] = "softplus",
    lower_bound: float = -5.0,
    gate_min: float | None = None,
    allow_neg_eigval: bool = False,
    head_map: Literal["grouped", "tiled"] = "grouped",
    state_v_first: bool = False,
    out: _Tensor | None = None,  # [B, 1, HV, V]
    out_dtype: Any = None,
    check_values: bool = False,
    threads: int = 0,
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
