"""A right kernel for gdn and kda: the recurrence, token by token, in float32 NumPy."""
import os
import sys

import numpy as np

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "python"))
from tidegate_subject import serve  # noqa: E402


def kernel(q, k, v, g, beta, scale, initial_state, cu_seqlens, head_map="grouped", **options):
    (B, T, H, K), (HV, V) = q.shape, v.shape[2:]
    head = np.arange(HV) % H if head_map == "tiled" else np.arange(HV) // (HV // H)
    q, k, v, beta, g = (x.astype(np.float32) for x in (q[:, :, head], k[:, :, head], v, beta, g))
    decay = np.exp(g).reshape(B, T, HV, g.shape[3] if g.ndim == 4 else 1, 1)  # of a row of the state; gdn: one for all rows
    spans = [(n, 0, T) for n in range(B)]  # row of the batch, first token, end
    if cu_seqlens is not None:
        spans = [(0, start, stop) for start, stop in zip(cu_seqlens, cu_seqlens[1:])]
    state = np.zeros((len(spans), HV, K, V), np.float32)
    if initial_state is not None:
        state += initial_state
    o = np.empty(v.shape, np.float32)
    for S, (row, start, stop) in zip(state, spans):
        for t in range(start, stop):
            S *= decay[row, t]
            error = v[row, t] - (k[row, t][:, None] @ S)[:, 0]
            S += k[row, t][:, :, None] * (beta[row, t][:, None] * error)[:, None]
            o[row, t] = np.float32(scale) * (q[row, t][:, None] @ S)[:, 0]
    return o, state


if __name__ == "__main__":
    serve(kernel)
