"""A right kernel for gdn and kda, forward and backward: the recurrence, token by token, in float32 NumPy."""
import os
import sys

import numpy as np

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "python"))
from tidegate_subject import serve  # noqa: E402


def prepared(q, k, v, g, beta, initial_state, cu_seqlens, head_map):
    """Rows of every value head in float32, the key head of each, the decay of a state's rows, the states to begin with,
    and where sequences lie: row of the batch, first token, end."""
    (B, T, H, K), (HV, V) = q.shape, v.shape[2:]
    head = np.arange(HV) % H if head_map == "tiled" else np.arange(HV) // (HV // H)
    q, k, v, beta, g = (x.astype(np.float32) for x in (q[:, :, head], k[:, :, head], v, beta, g))
    decay = np.exp(g).reshape(B, T, HV, g.shape[3] if g.ndim == 4 else 1, 1)  # gdn: one for all rows
    spans = [(n, 0, T) for n in range(B)]
    if cu_seqlens is not None:
        spans = [(0, start, stop) for start, stop in zip(cu_seqlens, cu_seqlens[1:])]
    state = np.zeros((len(spans), HV, K, V), np.float32)
    if initial_state is not None:
        state += initial_state
    return q, k, v, beta, decay, head, state, spans


def times(x, S):
    """x^T S of every head."""
    return (x[:, None] @ S)[:, 0]


def kernel(q, k, v, g, beta, scale, initial_state, cu_seqlens, head_map="grouped", **options):
    q, k, v, beta, decay, _, state, spans = prepared(q, k, v, g, beta, initial_state, cu_seqlens, head_map)
    o = np.empty(v.shape, np.float32)
    for S, (row, start, stop) in zip(state, spans):
        for t in range(start, stop):
            S *= decay[row, t]
            error = v[row, t] - times(k[row, t], S)
            S += k[row, t][:, :, None] * (beta[row, t][:, None] * error)[:, None]
            o[row, t] = np.float32(scale) * times(q[row, t], S)
    return o, state


def backward(q, k, v, g, beta, scale, initial_state, cu_seqlens, do, dht, head_map="grouped", **options):
    H, scale, do = q.shape[2], np.float32(scale), do.astype(np.float32)
    q, k, v, beta, decay, head, state, spans = prepared(q, k, v, g, beta, initial_state, cu_seqlens, head_map)
    dq, dk, dv, dbeta, dg = (np.zeros(x.shape, np.float32) for x in (q, k, v, beta, g))
    dh0 = np.zeros_like(state) if dht is None else dht.astype(np.float32)
    for S, G, (row, start, stop) in zip(state, dh0, spans):  # G: gradient of the state after token t, in the end of S
        before, after = [], []  # the decayed state of every token, and the written one
        for t in range(start, stop):
            before.append(S * decay[row, t])
            error = v[row, t] - times(k[row, t], before[-1])
            S = before[-1] + k[row, t][:, :, None] * (beta[row, t][:, None] * error)[:, None]
            after.append(S)
        for t in reversed(range(start, stop)):
            P, S, key, strength = before.pop(), after.pop(), k[row, t], beta[row, t][:, None]
            dq[row, t] = scale * (S @ do[row, t][:, :, None])[:, :, 0]
            G += scale * q[row, t][:, :, None] * do[row, t][:, None]
            error, du = v[row, t] - times(key, P), times(key, G)  # of the row that was written, beta error
            dv[row, t] = strength * du
            dbeta[row, t] = (error * du).sum(axis=-1)
            dk[row, t] = (G @ (strength * error)[:, :, None] - P @ dv[row, t][:, :, None])[:, :, 0]
            G -= key[:, :, None] * dv[row, t][:, None]
            dg[row, t] = (G * P).sum(axis=-1 if g.ndim == 4 else (-2, -1))
            G *= decay[row, t]
    shared = (head == np.arange(H)[:, None]).astype(np.float32)  # a key head takes the sum over its value heads
    return {"dq": shared @ dq, "dk": shared @ dk, "dv": dv, "dg": dg, "dbeta": dbeta, "dh0": dh0}


if __name__ == "__main__":
    serve(kernel, backward=backward)
