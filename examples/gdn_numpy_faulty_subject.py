"""gdn_numpy_subject.py with one real fault: cases.md, "Lengths and layout", line 1 (g at the last row of a short chunk
read at C-1). The chunk's final state needs G at its last token; read at row C-1 it lies past the end of a short chunk,
where a masked load gives 0. So the tail's decay is missing from the state, though every o of the call is right."""
import numpy as np
from gdn_numpy_subject import kernel as right_kernel
from tidegate_subject import serve

C = 64


def kernel(q, k, v, g, beta, scale, initial_state, cu_seqlens, **options):
    o, state = right_kernel(q, k, v, g, beta, scale, initial_state, cu_seqlens, **options)
    spans = [(n, 0, g.shape[1]) for n in range(len(g))]
    if cu_seqlens is not None:
        spans = [(0, start, stop) for start, stop in zip(cu_seqlens, cu_seqlens[1:])]
    for n, (row, start, stop) in enumerate(spans):
        tail = g[row, stop - (stop - start) % C:stop].astype(np.float32)
        lost = -tail.sum(axis=0).reshape(state.shape[1], -1, 1)  # G_last, taken for 0 in exp(G_last - G_i)
        with np.errstate(over="ignore", invalid="ignore"):
            state[n] *= np.exp(lost)
    return o, state


if __name__ == "__main__":
    serve(kernel)
