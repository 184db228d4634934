"""Makes a Python kernel a Tidegate subject (docs/protocol.md). One file, Python >= 3.8 and NumPy only; copy it freely.

    from tidegate_subject import serve, Skip
    def kernel(q, k, v, g, beta, scale, initial_state, cu_seqlens, head_map="grouped", **options):
        ...                                 # raise Skip("why") for what the kernel does not do
        return o, final_state               # or write into options["out"]["o"], options["out"]["final_state"]
    serve(kernel)

    tidegate check --suite quick --subject "exec:python my_kernel.py" [--persistent]

q, k [B,T,H,K]; v, o [B,T,HV,V]; g [B,T,HV] (kda, gdn2, dplr, rwkv7: [B,T,HV,K]), natural log of the decay; beta
[B,T,HV]; states [N,HV,K,V]; cu_seqlens [N+1], or None where B > 1 (then N = B). g and beta are given for raw logits
too, g is clamped to gate_min. With a rule that has no g it is zeros (deltanet: as gdn's; iplr: as dplr's), without beta
that is None; initial_state is None where there is none. bf16 comes as float32; results (NumPy's or PyTorch's) of any
float type are rounded to the type asked for. options:
    erase [B,T,HV,K], write [B,T,HV,V] (gdn2); lr_a, lr_b [B,T,HV,K] (dplr, iplr, rwkv7); n_householder (gdp: n, then k
        [B,T n,H,K], v [B,T n,HV,V], beta [B,T n,HV]); else None, and 1. A kernel is asked for such a rule only if its
        signature names what the rule has: def kernel(q, ..., cu_seqlens, lr_a, lr_b, **options)
    out         name -> array to write in place; elements left unwritten are counted and fail
    rule, head_map ("grouped" or "tiled"), qk_l2norm (still to be done by the kernel: only with serve(l2norm=False)),
    out_dtype, state_dtype, metadata (str -> str), tensors (name -> array as in the file), dtypes (name -> type there)

Other passes have kernels of their own, serve(kernel, backward=..., decode=..., packed=...):
    backward(q, k, v, g, beta, scale, initial_state, cu_seqlens, do, dht, **options)
returns a dictionary, or writes into options["out"], the gradients of what it is handed, each in its shape: dq dk dv dg
dbeta derase dwrite dlr_a dlr_b, and always dh0 [N,HV,K,V]. options["out"] holds those asked for. do [B,T,HV,V] is the
gradient of o, dht that of the final state, None for zeros. Normalisation, clamping and logits are gone through here:
from dg and dbeta come da db dA_log ddt_bias, unless the kernel answers those itself. No out_dtype, no state_dtype.
    decode(q, k, v, g, beta, scale, state, state_indices, num_accepted=None, null_slot=None, **options)
    packed(mixed_qkv, a, b, A_log, dt_bias, scale, state, state_indices, null_slot=None, **options)
state [P,HV,K,V] is a copy of the pool, updated in place; state_indices [B] or [B,W] is always there, dt_bias and
num_accepted [B] may be None. Both return o [B,T,HV,V], or o, state, or (decode) o, state, state_tokens [B,T,HV,K,V],
which is asked for where options["out"] holds it. packed: mixed_qkv [B, 2 H K + HV V]; raw logits a [B,HV] (kda:
[B,HV,K]; deltanet: None, and A_log) and b [B,HV]; more options: gate_form, lower_bound, gate_min (or None),
allow_neg_eigval.
"""
import inspect
import json
import os
import sys
import traceback

import numpy as np

# rule -> whether its gates have channels, what its kernels take by name
RULES = {"deltanet": (False, ()), "gdn": (False, ()), "kda": (True, ()), "gdn2": (True, ("erase", "write")),
         "gdp": (False, ("n_householder",)), "dplr": (True, ("lr_a", "lr_b")), "iplr": (True, ("lr_a", "lr_b")),
         "rwkv7": (True, ("lr_a", "lr_b"))}
GIVEN, LOGITS = ("g", "beta"), ("a", "b", "A_log", "dt_bias")  # what metadata `gates` chooses between
OWN = ("erase", "write", "lr_a", "lr_b")
GRADIENTS = tuple("d" + name for name in ("q", "k", "v") + GIVEN + OWN + LOGITS + ("h0",))
STATE = ("N", "HV", "K", "V")
STATES = ("final_state", "state", "state_tokens", "dh0")
# pass -> output -> (shape, metadata key of the dtype, where that is absent: an input whose dtype it is, or a dtype);
# gradients() for backward
OUTPUTS = {"forward": {"o": (("B", "T", "HV", "V"), "out_dtype", "v"), "final_state": (STATE, "state_dtype", "fp32")},
           "backward": None,
           "decode": {"o": (("B", "T", "HV", "V"), "out_dtype", "v"), "state": (STATE, None, "state"),
                      "state_tokens": (("B", "T") + STATE[1:], None, "state")},
           "packed": {"o": (("B", "T", "HV", "V"), "out_dtype", "mixed_qkv"), "state": (STATE, None, "state")}}
POISON = {np.dtype("f4"): (np.uint32, 0x7FA5A5A5), np.dtype("f8"): (np.uint64, 0x7FF5A5A5A5A5A5A5)}
FILE_TYPES = {"F32": ("fp32", "<f4"), "F64": ("fp64", "<f8"), "F16": ("fp16", "<f2"), "BF16": ("bf16", "<u2"),
              "I32": ("int32", "<i4"), "I64": ("int64", "<i8")}
FILE_NAMES = {dtype: file_name for file_name, (dtype, _) in FILE_TYPES.items()}


class Skip(Exception):
    """Raised by a kernel for a request that it does not serve."""


# ---- files ----------------------------------------------------------------------------------------------------------
def read(path):
    """metadata, {name: array}, {name: dtype name}; bf16 as float32."""
    with open(path, "rb") as file:
        return parse(file.read())


def parse(content):
    """read() of a file's bytes."""
    start = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:start].decode("utf-8"))
    metadata, arrays, dtypes = header.pop("__metadata__", {}), {}, {}
    for name, entry in header.items():
        dtypes[name], storage = FILE_TYPES[entry["dtype"]]
        begin, end = entry["data_offsets"]
        array = np.frombuffer(content[start + begin:start + end], storage).reshape(entry["shape"])
        arrays[name] = from_bf16(array) if dtypes[name] == "bf16" else array.copy()
    return metadata, arrays, dtypes


def write(path, metadata, arrays):
    """arrays: name -> (dtype name, array already stored in that type). Renamed into place: never half-written."""
    with open(path + ".part", "wb") as file:
        file.write(serialize(metadata, arrays))
    os.replace(path + ".part", path)


def serialize(metadata, arrays):
    """The bytes that write() writes."""
    header, data, size = {"__metadata__": metadata}, [], 0
    for name, (dtype, array) in arrays.items():
        data.append(np.ascontiguousarray(array, FILE_TYPES[FILE_NAMES[dtype]][1]).tobytes())
        header[name] = {"dtype": FILE_NAMES[dtype], "shape": list(np.shape(array)),
                        "data_offsets": [size, size + len(data[-1])]}
        size += len(data[-1])
    text = json.dumps(header).encode("utf-8")
    text += b" " * (-len(text) % 8)
    return b"".join([len(text).to_bytes(8, "little"), text] + data)


def from_bf16(bits):
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def to_bf16(values):
    """Bits, rounded to nearest even from whatever float type, once."""
    values = np.asarray(values)
    with np.errstate(over="ignore", invalid="ignore"):
        single = values.astype(np.float32)
        bits = single.view(np.uint32)
        # A double that only became a tie by the first rounding lies on one side of it: step there before the second.
        near = (bits & 0xFFFF == 0x8000) & (single != values)
        bits = np.where(near, np.where(np.abs(values) > np.abs(single), bits + 1, bits - 1), bits).astype(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return np.where(np.isnan(values), (bits >> 16) | 0x40, rounded).astype(np.uint16)


def stored_as(dtype, values):
    """The array that a file of that dtype holds."""
    if dtype == "bf16":
        return to_bf16(values)
    with np.errstate(over="ignore", invalid="ignore"):
        return np.asarray(values).astype(FILE_TYPES[FILE_NAMES[dtype]][1])


# ---- what a kernel is handed ----------------------------------------------------------------------------------------
def sigmoid(x):
    small = np.exp(-np.abs(x))
    return np.where(x >= 0, 1 / (1 + small), small / (1 + small))


def at_least(meta, g):
    """g clamped to gate_min; NaN stays NaN."""
    least = float(meta.get("gate_min", -np.inf))
    return np.where(g < least, least, g).astype(g.dtype)


def of_heads(parameter, wide):
    """[HV] or [HV * K] against gates [B, T, HV] or [B, T, HV, K], in float64."""
    parameter = parameter.astype(np.float64)
    return parameter.reshape(wide if parameter.size == np.prod(wide) else (-1,) + (1,) * (len(wide) - 1))


def gate(meta, tensors, wide):
    """g before gate_min, its derivatives by the logit and by A_log, all in float64. wide: extents of one token's g."""
    rate = np.exp(of_heads(tensors["A_log"], wide))
    x = tensors["a"].astype(np.float64) + (of_heads(tensors["dt_bias"], wide) if "dt_bias" in tensors else 0)
    if meta.get("gate_form", "softplus") == "bounded":
        bound, y = float(meta.get("lower_bound", -5)), np.where(x == 0, 0.0, rate * x)
        slope = bound * sigmoid(y) * sigmoid(-y)
        return bound * sigmoid(y), np.where(slope == 0, 0, slope * rate), np.where(slope == 0, 0, slope * y)
    softplus = np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))
    # In float32 exp(A_log) may be inf and softplus 0; here neither is, but a still larger A_log gets there.
    g = np.where(softplus == 0, 0.0, -rate * softplus)
    return g, np.where(softplus == 0, 0.0, -rate * sigmoid(x)), g


def gates_from_logits(meta, tensors, state_heads, k_dim):
    """g and beta in float32 from a, b, A_log, dt_bias, computed in float64; None where there are no logits."""
    g = beta = None
    with np.errstate(over="ignore", invalid="ignore"):
        if "a" in tensors:
            wide = (state_heads, k_dim)[:tensors["a"].ndim - 2]
            g = at_least(meta, gate(meta, tensors, wide)[0]).astype(np.float32)
        if "b" in tensors:
            beta = sigmoid(tensors["b"].astype(np.float64)) * (2 if meta.get("allow_neg_eigval") == "1" else 1)
            beta = beta.astype(np.float32)
    return g, beta


def norm_of(wide):
    return np.sqrt(np.sum(wide * wide, axis=-1, keepdims=True) + 1e-6)


def l2_normalised(x):
    wide = x.astype(np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        wide = wide / norm_of(wide)
    return wide.astype(x.dtype if x.dtype == np.float64 else np.float32)


def poisoned(shape, dtype):
    bits, pattern = POISON[np.dtype(dtype)]
    return np.full(shape, pattern, bits).view(dtype)


def count_poison(array):
    """Compared as integers: arithmetic on a signalling NaN would change it."""
    if array.dtype not in POISON:
        return 0
    bits, pattern = POISON[array.dtype]
    return int(np.count_nonzero(np.ascontiguousarray(array).view(bits) == pattern))


def sizes(which, tensors):
    """Extents by name; N also stands for the pool's P."""
    if which == "packed":
        B, width = tensors["mixed_qkv"].shape
        N, HV, K, V = tensors["state"].shape
        return {"B": B, "T": 1, "HV": HV, "K": K, "V": V, "N": N, "H": (width - HV * V) // (2 * K)}
    (B, T, _, K), (HV, V) = tensors["q"].shape, tensors["v"].shape[2:]
    cu_seqlens, pool = tensors.get("cu_seqlens"), tensors.get("state")
    N = len(pool) if pool is not None else B if cu_seqlens is None else len(cu_seqlens) - 1
    return {"B": B, "T": T, "HV": HV, "K": K, "V": V, "N": N}


def gradients(meta, tensors, dtypes, size):
    """name -> (shape, dtype) of what a backward request asks for."""
    unused = GIVEN if meta.get("gates", "given") == "logits" else LOGITS
    held = [name[1:] for name in GRADIENTS if name[1:] in tensors and name[1:] not in unused]
    asked = {"d" + name: (tensors[name].shape, dtypes[name]) for name in held}
    return dict(asked, dh0=(tuple(size[extent] for extent in STATE), dtypes.get("initial_state", "fp32")))


def forward_inputs(meta, tensors, size, l2norm, out):
    """What a kernel is called with, by place and by name."""
    q, k, v = (tensors[name] for name in "qkv")
    if meta.get("gates", "given") == "logits":
        g, beta = gates_from_logits(meta, tensors, size["HV"], size["K"])
    else:
        g, beta = (tensors.get(name) for name in GIVEN)
        g = None if g is None else at_least(meta, g)
    if g is None:
        wide, _ = RULES[meta["rule"]]
        g = np.zeros((size["B"], size["T"], size["HV"]) + (size["K"],) * wide, np.float32)
    if l2norm:
        q, k = l2_normalised(q), l2_normalised(k)
    cu_seqlens = tensors.get("cu_seqlens")
    if cu_seqlens is None and size["B"] == 1:
        cu_seqlens = np.array([0, size["T"]], np.int64)
    own = {name: tensors.get(name) for name in OWN}
    return ((q, k, v, g, beta, scale_of(meta, size), tensors.get("initial_state"), cu_seqlens),
            dict(own, n_householder=int(float(meta.get("n_householder", 1)))))


def backward_inputs(meta, tensors, size, l2norm, out):
    inputs, options = forward_inputs(meta, tensors, size, l2norm, out)
    return inputs + (tensors["do"], tensors.get("dht")), options


def decode_inputs(meta, tensors, size, l2norm, out):
    inputs, options = forward_inputs(meta, tensors, size, l2norm, out)
    return (inputs[:-2] + (out["state"], slots(tensors, size)),
            dict(options, num_accepted=tensors.get("num_accepted"), null_slot=null_slot(meta)))


def packed_inputs(meta, tensors, size, l2norm, out):
    mixed, heads = tensors["mixed_qkv"], 2 * size["H"]
    if l2norm:
        both = l2_normalised(mixed[:, :heads * size["K"]].reshape(-1, heads, size["K"]))
        mixed = np.concatenate([both.reshape(len(mixed), -1), mixed[:, heads * size["K"]:]], axis=1)
    return ((mixed,) + tuple(tensors.get(name) for name in LOGITS) + (scale_of(meta, size), out["state"],
                                                                      slots(tensors, size)),
            dict(null_slot=null_slot(meta), gate_form=meta.get("gate_form", "softplus"),
                 lower_bound=float(meta.get("lower_bound", -5)), allow_neg_eigval=meta.get("allow_neg_eigval") == "1",
                 gate_min=float(meta["gate_min"]) if "gate_min" in meta else None))


INPUTS = {"forward": forward_inputs, "backward": backward_inputs, "decode": decode_inputs, "packed": packed_inputs}


def scale_of(meta, size):
    return float(meta["scale"]) if meta.get("scale") else 1.0 if meta["rule"] == "rwkv7" else size["K"] ** -0.5


def slots(tensors, size):
    return tensors["state_indices"] if "state_indices" in tensors else np.arange(size["B"], dtype=np.int64)


def null_slot(meta):
    return int(float(meta["null_slot"])) if meta.get("null_slot") else None


def as_array(value):
    if hasattr(value, "detach"):  # PyTorch's, on whatever device; NumPy lacks its bf16
        value = value.detach().cpu()
        value = value.float() if "bfloat16" in str(value.dtype) else value
    return np.asarray(value)


def check_names(kernel, rule):
    """A kernel that does not name what only this rule has was not written for it."""
    try:
        parameters = inspect.signature(kernel).parameters
    except (TypeError, ValueError):  # not Python's
        return
    lacking = [name for name in RULES[rule][1] if name not in parameters]
    if lacking:
        raise Skip("rule %s: the kernel's signature names no %s" % (rule, " and no ".join(lacking)))


def times(factor, x):
    """0 where the factor is: what is flat takes no part, whatever is infinite beside it."""
    return np.where(factor == 0, 0, factor * x)


def raised(meta, tensors, size, out, l2norm):
    """Gradients of what the file holds from those of what the kernel was handed, and how many elements of each were
    never written. Misshapen ones are left as they are: the judge names them."""
    unwritten = {name: count_poison(array) for name, array in out.items()}
    least = max(float(meta.get("gate_min", -128)), -128)

    def form(name, source, value):
        if name in out and unwritten[name] == out[name].size:  # else the kernel answered it itself
            out[name] = value
            unwritten[name] = unwritten[source] if value.ndim > 1 else value.size * (unwritten[source] > 0)

    with np.errstate(all="ignore"):
        if "da" in out:
            dg = out["dg"]
            g, by_x, by_A_log = gate(meta, tensors, (size["HV"], size["K"])[:tensors["a"].ndim - 2])
            if dg.shape == g.shape:
                dg = np.where(g < least, 0, dg)
                da, d_A_log = times(by_x, dg), times(by_A_log, dg)
                form("dA_log", "dg", np.moveaxis(d_A_log, 2, 0).reshape(size["HV"], -1).sum(axis=1))
                if "dt_bias" in tensors:
                    form("ddt_bias", "dg", da.sum(axis=(0, 1)).reshape(tensors["dt_bias"].shape))
                dg = da
            form("da", "dg", dg)
        elif "dg" in out and out["dg"].shape == tensors["g"].shape:
            out["dg"] = np.where(tensors["g"] < least, 0, out["dg"])
        if "db" in out:
            s = sigmoid(tensors["b"].astype(np.float64))
            slope = s * sigmoid(-tensors["b"].astype(np.float64)) * (2 if meta.get("allow_neg_eigval") == "1" else 1)
            form("db", "dbeta", slope * out["dbeta"] if out["dbeta"].shape == slope.shape else out["dbeta"])
        for name in ("q", "k") if l2norm else ():
            x, d = tensors[name].astype(np.float64), out["d" + name]
            if d.shape == x.shape:
                y = x / norm_of(x)
                out["d" + name] = (d - y * np.sum(y * d, axis=-1, keepdims=True)) / norm_of(x)
    return out, unwritten


def respond(kernels, meta, tensors, dtypes, l2norm=True, twin=None):
    """One request in memory: what parse() returns, to what serialize() takes. kernels: pass -> kernel."""
    rule, which = meta.get("rule", ""), meta.get("pass", "forward")
    kernel = kernels.get(which)
    if rule not in RULES or which not in OUTPUTS or kernel is None:
        raise Skip("no kernel for %s, pass %s: see serve(kernel, backward=..., decode=..., packed=...)"
                   % (rule or "(no rule)", which))
    check_names(kernel, rule)
    vk = meta.get("state_layout", "kv") == "vk"
    turned = {name: np.ascontiguousarray(tensors[name].swapaxes(-1, -2))
              for name in ("initial_state", "dht", "state") if vk and name in tensors}
    straight = dict(tensors, **turned)
    size = sizes(which, straight)
    if which == "backward":
        asked = gradients(meta, straight, dtypes, size)
    else:
        asked = {name: ([size[extent] for extent in shape], key and meta.get(key) or dtypes.get(otherwise, otherwise))
                 for name, (shape, key, otherwise) in OUTPUTS[which].items()
                 if name != "state_tokens" or meta.get("per_token_state") == "1"}
    kinds = {name: kind for name, (_, kind) in asked.items()}
    out = {name: poisoned(shape, np.float64 if kind == "fp64" else np.float32) for name, (shape, kind) in asked.items()}
    if "state" in out:
        out["state"] = straight["state"].astype(out["state"].dtype)
    for handed, logits in (("dg", "da"), ("dbeta", "db")):
        if logits in out:
            out[handed] = poisoned(out[logits].shape, out[logits].dtype)
    normalise = meta.get("qk_l2norm") == "1"
    inputs, options = INPUTS[which](meta, straight, size, normalise and l2norm, out)
    if which != "backward":
        options.update(out_dtype=kinds["o"], state_dtype=kinds.get("final_state", kinds.get("state")))
    returned = kernel(*inputs, out=out, rule=rule, metadata=meta, tensors=tensors, dtypes=dtypes, **options,
                      head_map=meta.get("head_map", "grouped"), qk_l2norm=normalise and not l2norm)
    if returned is None:
        returned = {}
    elif which != "backward":
        returned = dict(zip(list(out), returned if isinstance(returned, (tuple, list)) else (returned,)))
    for name, value in returned.items():
        if name in out and value is not None:
            out[name] = as_array(value)
        elif name not in out and name not in GRADIENTS:
            raise ValueError("the kernel returned %r, expected some of %s" % (name, ", ".join(out)))

    if which == "backward":
        out, unwritten = raised(meta, straight, size, out, normalise and l2norm)
    else:
        unwritten = {name: count_poison(array) for name, array in out.items()}
    out = {name: out[name] for name in asked}
    if vk:  # a misshapen result is written as it is: the judge names it
        out = {name: array.swapaxes(-1, -2) if name in STATES and array.ndim > 1 else array
               for name, array in out.items()}
    told = {"protocol": "1", "rule": rule, "pass": which,
            "unwritten": ",".join("%s:%d" % (name, unwritten[name]) for name in out)}
    told.update({key: meta[key] for key in ("case", "state_layout") if key in meta})
    if twin and which == "forward":
        told["twin"] = twin.replace("{dtype}", dtypes["v"])
    return told, {name: (kinds[name], stored_as(kinds[name], array)) for name, array in out.items()}


def answer(kernel, request_path, answer_path, l2norm=True, twin=None, **others):
    """One request file in, one answer file out. others: pass -> kernel."""
    told = respond(dict(others, forward=kernel), *read(request_path), l2norm=l2norm, twin=twin)
    write(answer_path, *told)


# ---- serving --------------------------------------------------------------------------------------------------------
def serve(kernel=None, l2norm=True, twin=None, backward=None, decode=None, packed=None):
    """Answers the request named by the last two arguments, or all those on stdin if TIDEGATE_PERSISTENT=1.

    l2norm=False: the kernels normalise q and k themselves where options["qk_l2norm"] says so. twin: the arithmetic that
    `kernel` is judged by, "recurrent" (default) or "chunked:<operand dtype>:<chunk>"; {dtype} stands for that of v.
    """
    options = dict(l2norm=l2norm, twin=twin, backward=backward, decode=decode, packed=packed)
    if os.environ.get("TIDEGATE_PERSISTENT") != "1":
        if len(sys.argv) < 3:
            sys.exit("usage: %s REQUEST ANSWER (or TIDEGATE_PERSISTENT=1)" % sys.argv[0])
        try:
            return answer(kernel, sys.argv[-2], sys.argv[-1], **options)
        except Exception as error:
            if not is_skip(error):
                raise
            print(one_line(error) or "no reason given", file=sys.stderr)
            sys.exit(77)
    # Replies keep a stream of their own: what the kernel or a library prints, from C too, goes to stderr.
    replies = os.fdopen(os.dup(1), "w")
    sys.stdout.flush()
    os.dup2(2, 1)
    for line in sys.stdin:
        try:
            answer(kernel, *line.rstrip("\n").split("\t"), **options)
            reply = "ok"
        except Exception as error:  # the process serves on: the kernel failed, not the adapter
            if is_skip(error):
                reply = "skip " + one_line(error)
            else:
                traceback.print_exc()
                reply = "error " + failure(error)
        print("@tidegate " + reply, file=replies, flush=True)


def is_skip(error):
    """By name: a kernel may raise the Skip of another copy of this file."""
    return any(kind.__name__ == "Skip" for kind in type(error).__mro__)


def failure(error):
    return "%s: %s" % (type(error).__name__, one_line(error))


def one_line(error):
    return " ".join(str(error).split())
