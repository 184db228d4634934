"""The library's operations. A public function is its `__wrapped__`, which only collects the call, and then runs it."""
import functools

from . import _core
from ._tensors import dtype_name, empty, exported, finished, stream_of


class _Call:
    """One call, ready to run: what the extension is given, and what it returns."""

    def __init__(self, operation, tensors, options, returns):
        self.operation, self.tensors, self.options, self.returns = operation, tensors, options, returns

    def run(self, only_plan=False):
        outputs = ("out", "final_state", "state", "state_tokens")
        options = dict(self.options, stream=stream_of(next(iter(self.tensors.values()))))
        return getattr(_core, self.operation)(*exported(self.tensors, outputs), options, only_plan)


def _operation(collect):
    @functools.wraps(collect)
    def operation(*arguments, **named):
        call = collect(*arguments, **named)
        call.run()
        return call.returns()
    return operation


def plan(*arguments, call=None, **named):
    """The plan that `call` (default: forward) would follow with these arguments, as two lines of text.

    The first, `arithmetic`, holds all that can change a bit of the result; the second, `schedule`, what cannot."""
    return (call or forward).__wrapped__(*arguments, **named).run(only_plan=True)


def _shape(tensor):
    return tuple(getattr(tensor, "shape", ()))


def _state_shape(count, heads, k_dim, v_dim, v_first):
    return (count, heads) + ((v_dim, k_dim) if v_first else (k_dim, v_dim))


@_operation
def forward(q, k, v, g=None, beta=None, scale=None, initial_state=None, output_final_state=False,
            use_qk_l2norm_in_kernel=False, cu_seqlens=None, *, rule="gdn", a=None, b=None, A_log=None, dt_bias=None,
            gate_form="softplus", lower_bound=-5.0, gate_min=None, allow_neg_eigval=False, head_map="grouped",
            state_v_first=False, out=None, final_state=None, out_dtype=None, state_dtype=None, check_values=False,
            threads=0):
    """o and final_state of a batch of sequences, by the delta rule: per token and value head

        S = D S + k (beta (v - (D S)^T k))^T,   o = scale S^T q,   D = Diag(exp(g))

    Tensors of NumPy, PyTorch (CPU), JAX (CPU), or anything with DLPack; read where they are, with any strides (a K or V
    dimension must be dense), each fp32, bf16 or fp16. Results are of the framework of v.

    q, k            [B, T, H, K]
    v               [B, T, HV, V], HV a multiple of H
    g               [B, T, HV]; rule "kda": [B, T, HV, K]. Natural log of the decay, <= 0
    beta            [B, T, HV]
    scale           default K^-0.5
    initial_state   [N, HV, K, V] ([N, HV, V, K] with state_v_first); default zeros
    cu_seqlens      [N + 1] int32 or int64, from 0 to T: packed sequences, B = 1. Default: N = B sequences of T
    use_qk_l2norm_in_kernel     q and k become x / sqrt(sum x^2 + 1e-6)

    rule            "gdn" (Gated DeltaNet) or "kda" (Kimi Delta Attention)
    a, A_log, dt_bias   instead of g: raw logits (shape of g), [HV], and [HV] (kda [HV * K]; may be absent).
                    gate_form "softplus": g = -exp(A_log) softplus(a + dt_bias); "bounded": lower_bound
                    sigmoid(exp(A_log) (a + dt_bias)), lower_bound in [-5, 0)
    b               [B, T, HV], instead of beta: sigmoid(b), doubled with allow_neg_eigval
    gate_min        g = max(g, gate_min)
    head_map        which key head value head hv reads: "grouped" hv // (HV // H), "tiled" hv % H
    out             [B, >= T, HV, V] to write o to; final_state likewise (may be initial_state itself)
    out_dtype, state_dtype      of the results; default the dtype of v, and fp32
    check_values    also reject g > 0
    threads         0: all cores

    Returns (o, final_state); final_state is None unless output_final_state or an array for it was given.
    Raises tidegate.Error naming the argument that breaks the contract; nothing has been written then."""
    shape = _shape(v)
    made = {}
    if len(shape) == len(_shape(q)) == 4:  # else the call says what is wrong
        if out is None:
            out = made["out"] = empty("out_dtype", v, shape, dtype_name("out_dtype", out_dtype or v.dtype))
        if final_state is None and output_final_state:
            count = shape[0] if cu_seqlens is None else max((_shape(cu_seqlens) or (0,))[0] - 1, 0)
            final_state = made["final_state"] = empty(
                "state_dtype", v, _state_shape(count, shape[2], _shape(q)[3], shape[3], state_v_first),
                dtype_name("state_dtype", state_dtype or "fp32"))
    tensors = dict(q=q, k=k, v=v, g=g, beta=beta, a=a, b=b, A_log=A_log, dt_bias=dt_bias, initial_state=initial_state,
                   cu_seqlens=cu_seqlens, out=out, final_state=final_state)
    options = dict(rule=rule, scale=scale, use_qk_l2norm_in_kernel=use_qk_l2norm_in_kernel, gate_form=gate_form,
                   lower_bound=lower_bound, gate_min=gate_min, allow_neg_eigval=allow_neg_eigval, head_map=head_map,
                   state_v_first=state_v_first, check_values=check_values, threads=threads)
    return _Call("forward", tensors, options, lambda: tuple(
        finished(v, made[name]) if name in made else given for name, given in (("out", out),
                                                                              ("final_state", final_state))))


@_operation
def decode(q, k, v, g=None, beta=None, scale=None, state=None, state_indices=None, num_accepted=None,
           use_qk_l2norm_in_kernel=False, *, null_slot=None, rule="gdn", a=None, b=None, A_log=None, dt_bias=None,
           gate_form="softplus", lower_bound=-5.0, gate_min=None, allow_neg_eigval=False, head_map="grouped",
           state_v_first=False, out=None, state_tokens=None, out_dtype=None, check_values=False, threads=0):
    """A few tokens of every request, on states that live in a pool and are updated in place. Returns o [B, T, HV, V].

    The inputs are those of forward(), and:
    state           [P, HV, K, V] ([P, HV, V, K] with state_v_first), any stride between slots; read and written
    state_indices   [B] int32 or int64: request n reads slot state_indices[n] and leaves its last state there. Default:
                    slot n. [B, W] with T <= W: it reads slot state_indices[n, num_accepted[n] - 1] (column 0 without
                    num_accepted), and the state after token t goes to slot state_indices[n, t]
    num_accepted    [B] int32 or int64
    null_slot       a slot that stands for "none", as negative ones do
    state_tokens    [B, T, HV, K, V] to write the state after every token to

    A request whose first slot is none, or whose num_accepted is not in 1..W, is a pad: its rows of o and state_tokens
    are zeros, and the pool is not touched. Slots that no request names keep every bit."""
    shape = _shape(v)
    made = out is None and len(shape) == len(_shape(q)) == 4
    if made:
        out = empty("out_dtype", v, shape, dtype_name("out_dtype", out_dtype or v.dtype))
    tensors = dict(q=q, k=k, v=v, g=g, beta=beta, a=a, b=b, A_log=A_log, dt_bias=dt_bias, state=state,
                   state_indices=state_indices, num_accepted=num_accepted, out=out, state_tokens=state_tokens)
    options = dict(rule=rule, scale=scale, use_qk_l2norm_in_kernel=use_qk_l2norm_in_kernel, gate_form=gate_form,
                   lower_bound=lower_bound, gate_min=gate_min, allow_neg_eigval=allow_neg_eigval, head_map=head_map,
                   state_v_first=state_v_first, check_values=check_values, threads=threads, null_slot=null_slot)
    return _Call("decode", tensors, options, lambda: finished(v, out) if made else out)


@_operation
def packed_decode(mixed_qkv, a, b, A_log, dt_bias=None, state=None, state_indices=None, scale=None,
                  use_qk_l2norm_in_kernel=False, *, null_slot=None, rule="gdn", gate_form="softplus", lower_bound=-5.0,
                  gate_min=None, allow_neg_eigval=False, head_map="grouped", state_v_first=False, out=None,
                  out_dtype=None, check_values=False, threads=0):
    """One token of every request, as serving engines hold it. Returns o [B, 1, HV, V]; the state is updated in place.

    mixed_qkv       [B, 2 H K + HV V]: q, k and v of a request side by side, any row stride. H follows from the width
    a, b            [B, HV] (kda: a [B, HV, K]): raw logits; A_log and dt_bias as for forward()
    state           [P, HV, K, V] ([P, HV, V, K] with state_v_first)
    state_indices   [B], null_slot: as for decode()"""
    pool = _shape(state)
    made = out is None and len(pool) == 4 and len(_shape(mixed_qkv)) == 2
    if made:
        out = empty("out_dtype", mixed_qkv, (_shape(mixed_qkv)[0], 1, pool[1], pool[2 if state_v_first else 3]),
                    dtype_name("out_dtype", out_dtype or mixed_qkv.dtype))
    tensors = dict(mixed_qkv=mixed_qkv, a=a, b=b, A_log=A_log, dt_bias=dt_bias, state=state,
                   state_indices=state_indices, out=out)
    options = dict(rule=rule, scale=scale, use_qk_l2norm_in_kernel=use_qk_l2norm_in_kernel, gate_form=gate_form,
                   lower_bound=lower_bound, gate_min=gate_min, allow_neg_eigval=allow_neg_eigval, head_map=head_map,
                   state_v_first=state_v_first, check_values=check_values, threads=threads, null_slot=null_slot)
    return _Call("packed_decode", tensors, options, lambda: finished(mixed_qkv, out) if made else out)
