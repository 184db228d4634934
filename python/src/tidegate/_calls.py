"""The library's operations. A public function collects a call, runs it, and gives back what it returns."""
import functools
import inspect

import numpy as np

from . import _core
from ._error import Error
from ._tensors import dtype_name, empty, empty_like, exported, finished, is_fp64, stream_of

# The keyword arguments that operations share: `**shared` below. Defaults are the extension's own, shown by help().
_OPTIONS = dict(rule="gdn", gate_form="softplus", lower_bound=-5.0, gate_min=None, allow_neg_eigval=False,
                head_map="grouped", state_v_first=False, check_values=False, threads=0, reference=False)
_INPUTS = dict(erase=None, write=None, lr_a=None, lr_b=None, n_householder=1, a=None, b=None, A_log=None, dt_bias=None)
_OUTPUTS = frozenset(_core.gradients + ("out", "final_state", "state", "state_tokens"))


class _Call:
    """One call, ready to run: `given`, all that the extension reads, by name."""

    def __init__(self, operation, arguments):
        self.operation, self.made, self.returns = operation, {}, None
        self.given = dict(arguments, **arguments["shared"])
        del self.given["shared"]
        self.fp64 = self.given.get("reference") is True

    def state_dtype(self, v):
        """Of a state that nothing gives a type."""
        return "fp64" if self.fp64 and is_fp64(v) else "fp32"

    def make(self, name, like, tensor):
        """An output of our own, to be returned as `like`'s framework has it."""
        if tensor is not None:
            self.given[name], self.made[name] = tensor, like

    def run(self, only_plan=False):
        arguments = dict(self.given, stream=stream_of(next(iter(self.given.values()))))
        return getattr(_core, self.operation)(*exported(arguments, _OUTPUTS), only_plan)

    def result(self, name):
        return finished(self.made[name], self.given[name]) if name in self.made else self.given[name]


def _operation(*shared):
    """Makes a function that collects a call into one that runs it. `shared`: what its **shared may be."""
    table = {name: default for part in shared for name, default in part.items()}

    def public(collect):
        signature = inspect.signature(collect)
        own = [parameter for name, parameter in signature.parameters.items() if name != "shared"]
        known = {parameter.name for parameter in own}.union(table)

        def prepare(*arguments, **named):
            for name in named:
                if name not in known:
                    raise TypeError("%s() got an unexpected keyword argument '%s'" % (collect.__name__, name))
            return collect(*arguments, **named)

        @functools.wraps(collect)
        def operation(*arguments, **named):
            call = prepare(*arguments, **named)
            call.run()
            return call.returns()

        operation.prepare = prepare
        operation.__signature__ = signature.replace(parameters=own + [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default)
            for name, default in table.items()])
        return operation
    return public


def plan(*arguments, call=None, **named):
    """The plan that `call` (default: forward) would follow with these arguments, as two lines of text.

    The first, `arithmetic`, holds all that can change a bit of the result; the second, `schedule`, what cannot."""
    return (call or forward).prepare(*arguments, **named).run(only_plan=True)


def _shape(tensor):
    return tuple(getattr(tensor, "shape", ()))


def _four(*tensors):
    """Whether all have four dimensions; where not, outputs are not made, and the call says what is wrong."""
    return all(len(_shape(tensor)) == 4 for tensor in tensors)


def _state_shape(q, v, cu_seqlens, v_first):
    """Of the states of a prefill call: one a sequence."""
    (B, _, _, K), (_, _, HV, V) = _shape(q), _shape(v)
    count = B if cu_seqlens is None else max((_shape(cu_seqlens) or (0,))[0] - 1, 0)
    return (count, HV) + ((V, K) if v_first else (K, V))


def _make_out(call, like, like_name, shape):
    dtype = call.given["out_dtype"]
    name = dtype_name("out_dtype" if dtype else like_name, dtype or like.dtype, call.fp64)
    call.make("out", like, empty("out_dtype", like, shape, name))


@_operation(_INPUTS, _OPTIONS)
def forward(q, k, v, g=None, beta=None, scale=None, initial_state=None, output_final_state=False,
            use_qk_l2norm_in_kernel=False, cu_seqlens=None, *, out=None, final_state=None, out_dtype=None,
            state_dtype=None, **shared):
    """o and final_state of a batch of sequences, by the delta rule: per token and value head

        S = D S + k (beta (v - (D S)^T k))^T,   o = scale S^T q,   D = Diag(exp(g))

    or another rule's form of it. Tensors are NumPy's, PyTorch's (CPU), JAX's (CPU), or anybody's with DLPack; they are
    read where they are, with any strides (a K or V dimension must be dense), each fp32, bf16 or fp16. Results are of
    the framework of v.

    q, k            [B, T, H, K]
    v               [B, T, HV, V], HV a multiple of H
    g               [B, T, HV]; kda, gdn2, dplr, rwkv7: [B, T, HV, K]. Natural log of the decay, <= 0
    beta            [B, T, HV]
    scale           default K^-0.5; rwkv7: 1
    initial_state   [N, HV, K, V] ([N, HV, V, K] with state_v_first); default zeros
    cu_seqlens      [N + 1] int32 or int64, from 0 to T: packed sequences, B = 1. Default: N = B sequences of T
    use_qk_l2norm_in_kernel     q and k become x / sqrt(sum x^2 + 1e-6)

    rule            what there is besides q, k and v:
                    "gdn" (Gated DeltaNet), "kda" (Kimi Delta Attention): g, beta
                    "deltanet" (DeltaNet): beta
                    "gdn2" (Gated DeltaNet-2): g, erase, write.  S = D S + k (write o v - (D S)^T (erase o k))^T
                    "gdp" (Gated DeltaProduct): g, beta.  n_householder steps of gdn a token, the decay in the first
                    "dplr", "rwkv7" (RWKV-7): g, lr_a, lr_b.  S = D S + lr_b (lr_a^T S) + k v^T
                    "iplr": lr_a, lr_b.  The same without decay
    erase, write    [B, T, HV, K], [B, T, HV, V]
    lr_a, lr_b      [B, T, HV, K]
    n_householder   n steps a token: k [B, T n, H, K], v [B, T n, HV, V], beta [B, T n, HV]
    a, A_log, dt_bias   instead of g: raw logits (shape of g), [HV], and [HV] ([HV * K] where g has channels; may be
                    absent). gate_form "softplus": g = -exp(A_log) softplus(a + dt_bias); "bounded": lower_bound
                    sigmoid(exp(A_log) (a + dt_bias)), lower_bound in [-5, 0)
    b               shape of beta, instead of it: sigmoid(b), doubled with allow_neg_eigval
    gate_min        g = max(g, gate_min)
    head_map        which key head value head hv reads: "grouped" hv // (HV // H), "tiled" hv % H
    out             [B, >= T, HV, V] to write o to; final_state likewise (may be initial_state itself)
    out_dtype, state_dtype      of the results; default the dtype of v, and fp32
    check_values    also reject g > 0
    threads         0: all cores
    reference       True: the oracle that kernels are judged by, token by token in fp64. Slow; takes fp64 tensors too
                    (the final state of an fp64 v is fp64)

    Returns (o, final_state); final_state is None unless output_final_state or an array for it was given.
    Raises tidegate.Error naming the argument that breaks the contract; nothing has been written then."""
    call = _Call("forward", locals())
    if out is None and _four(q, v):
        _make_out(call, v, "v", _shape(q)[:2] + _shape(v)[2:])
    if final_state is None and output_final_state and _four(q, v):
        dtype = dtype_name("state_dtype", state_dtype or call.state_dtype(v), call.fp64)
        shape = _state_shape(q, v, cu_seqlens, call.given.get("state_v_first"))
        call.make("final_state", v, empty("state_dtype", v, shape, dtype))
    call.returns = lambda: (call.result("out"), call.result("final_state"))
    return call


@_operation(_INPUTS, _OPTIONS)
def backward(q, k, v, g=None, beta=None, scale=None, initial_state=None, *, do, dht=None,
             use_qk_l2norm_in_kernel=False, cu_seqlens=None, gradients=None, out=None, memory_limit=0, **shared):
    """Gradients of every input of forward() from those of o and final_state: a dictionary by docs/protocol.md's names,
    dq dk dv dg dbeta derase dwrite dlr_a dlr_b da db dA_log ddt_bias, and dh0, that of initial_state.

    The inputs are those of forward(), and:
    do              [B, T, HV, V], dL/do of a scalar L
    dht             [N, HV, K, V] ([N, HV, V, K] with state_v_first), dL/d(final_state); default zeros
    gradients       names of those wanted. Default: of every input that is given
    out             name -> memory to write that gradient to; it is then wanted too
    memory_limit    bytes that the call may allocate beside the results, which may cost time; 0: no limit

    Each gradient has the shape, the type and the framework of its input. dh0 without initial_state, on request alone,
    is that of an initial state of zeros, in fp32. Where g is below -128 or below gate_min its gradient is 0; q and k
    are those before L2 normalisation. With reference=True the exact adjoint in fp64."""
    call = _Call("backward", locals())
    given = call.given
    if not isinstance(given.pop("out"), (dict, type(None))):
        raise Error("out", "out: given a %s, expected a dictionary: the name of a gradient -> memory for it"
                    % type(out).__name__)
    out = out or {}
    inputs = {name: given.get("initial_state" if name == "dh0" else name[1:]) for name in _core.gradients}
    if gradients is None:
        gradients = [name for name, tensor in inputs.items() if tensor is not None]
    for name in [*gradients, *out]:
        if name not in inputs:
            raise Error("gradients", "gradients: given %r, expected some of %s" % (name, ", ".join(inputs)))
    wanted = [name for name in inputs if name in gradients or out.get(name) is not None]
    for name in wanted:
        if out.get(name) is not None:
            given[name] = out[name]
        elif inputs[name] is not None:
            call.make(name, inputs[name], empty_like(name, inputs[name]))
        elif name != "dh0":
            given[name] = np.empty(0, np.float32)  # the call says that there is no such input
        elif _four(q, v):
            shape = _state_shape(q, v, cu_seqlens, given.get("state_v_first"))
            call.make(name, v, empty(name, v, shape, call.state_dtype(v)))
    call.returns = lambda: {name: call.result(name) for name in wanted}
    return call


@_operation(_INPUTS, _OPTIONS)
def decode(q, k, v, g=None, beta=None, scale=None, state=None, state_indices=None, num_accepted=None,
           use_qk_l2norm_in_kernel=False, *, null_slot=None, out=None, state_tokens=None, out_dtype=None, **shared):
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
    call = _Call("decode", locals())
    if out is None and _four(q, v):
        _make_out(call, v, "v", _shape(q)[:2] + _shape(v)[2:])
    call.returns = lambda: call.result("out")
    return call


@_operation(_OPTIONS)
def packed_decode(mixed_qkv, a, b, A_log, dt_bias=None, state=None, state_indices=None, scale=None,
                  use_qk_l2norm_in_kernel=False, *, null_slot=None, out=None, out_dtype=None, **shared):
    """One token of every request, as serving engines hold it. Returns o [B, 1, HV, V]; the state is updated in place.
    Rules: gdn, kda, deltanet.

    mixed_qkv       [B, 2 H K + HV V]: q, k and v of a request side by side, any row stride. H follows from the width
    a, b            [B, HV] (kda: a [B, HV, K]): raw logits; A_log and dt_bias as for forward(). deltanet: a and A_log
                    are None
    state           [P, HV, K, V] ([P, HV, V, K] with state_v_first)
    state_indices   [B], null_slot: as for decode()"""
    call = _Call("packed_decode", locals())
    if out is None and _four(state) and len(_shape(mixed_qkv)) == 2:
        _, HV, *last = _shape(state)
        shape = (_shape(mixed_qkv)[0], 1, HV, last[0 if call.given.get("state_v_first") else 1])
        _make_out(call, mixed_qkv, "mixed_qkv", shape)
    call.returns = lambda: call.result("out")
    return call
