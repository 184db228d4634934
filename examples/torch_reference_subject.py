"""A right kernel for gdn and kda in PyTorch, token by token, forward and both kinds of decode: what a kernel's own test
may compare with. Skips everything where PyTorch is missing.

    tidegate check --suite quick --subject "exec:python examples/torch_reference_subject.py" --persistent
"""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "python"))
from tidegate_subject import Skip, serve  # noqa: E402

try:
    import torch
except ImportError:
    torch = None


def tensors_of(*arrays):
    if torch is None:
        raise Skip("PyTorch is not installed")
    return [torch.from_numpy(array).float() for array in arrays]


def heads_of(H, HV, head_map):
    """The key head of every value head."""
    return [hv % H if head_map == "tiled" else hv // (HV // H) for hv in range(HV)]


def step(S, q, k, v, g, beta, scale):
    """One token on a state [.., HV, K, V]; q, k [.., HV, K]; g [.., HV] or [.., HV, K]. The new state, and o."""
    decay = g.exp()
    S = S * (decay[..., None] if g.dim() == k.dim() else decay[..., None, None])
    delta = beta[..., None] * (v - torch.einsum("...kv,...k->...v", S, k))
    S = S + torch.einsum("...k,...v->...kv", k, delta)
    return S, scale * torch.einsum("...kv,...k->...v", S, q)


def kernel(q, k, v, g, beta, scale, initial_state, cu_seqlens, head_map="grouped", **options):
    q, k, v, g, beta = tensors_of(q, k, v, g, beta)
    B, T, H, K = q.shape
    HV, V = v.shape[2:]
    heads = heads_of(H, HV, head_map)
    spans = [(n, 0, T) for n in range(B)]
    if cu_seqlens is not None:
        spans = [(0, start, stop) for start, stop in zip(cu_seqlens, cu_seqlens[1:])]
    states = torch.zeros(len(spans), HV, K, V)
    if initial_state is not None:
        states += torch.from_numpy(initial_state).float()
    o = torch.empty(v.shape)
    for n, (row, start, stop) in enumerate(spans):
        for t in range(start, stop):
            at = row, t
            states[n], o[at] = step(states[n], q[at][heads], k[at][heads], v[at], g[at], beta[at], scale)
    return o, states


def decode(q, k, v, g, beta, scale, state, state_indices, num_accepted=None, null_slot=None, head_map="grouped",
           out=None, **options):
    q, k, v, g, beta = tensors_of(q, k, v, g, beta)
    B, T, H, K = q.shape
    heads = heads_of(H, v.shape[2], head_map)
    pool = torch.from_numpy(state)  # out["state"] itself: updated in place
    o = torch.zeros(v.shape)
    tokens = torch.zeros((B, T) + pool.shape[1:])
    for n in range(B):
        slots = state_indices[n].reshape(-1).tolist()
        first = 1 if num_accepted is None else int(num_accepted[n])
        source = slots[first - 1] if 1 <= first <= len(slots) else -1
        if source < 0 or source == null_slot:
            continue
        S = pool[source].float()
        for t in range(T):
            S, o[n, t] = step(S, q[n, t][heads], k[n, t][heads], v[n, t], g[n, t], beta[n, t], scale)
            tokens[n, t] = S
            slot = slots[t] if state_indices.ndim == 2 else slots[0] if t == T - 1 else -1
            if slot >= 0 and slot != null_slot:
                pool[slot] = S
    return (o, None, tokens) if "state_tokens" in out else o


def packed(mixed_qkv, a, b, A_log, dt_bias, scale, state, state_indices, gate_form="softplus", lower_bound=-5,
           gate_min=None, allow_neg_eigval=False, **options):
    mixed, b = tensors_of(mixed_qkv, b)
    B, (HV, K, V) = len(mixed), state.shape[1:]
    H = (mixed.shape[1] - HV * V) // (2 * K)
    q, k, v = mixed.split([H * K, H * K, HV * V], dim=1)
    g = torch.zeros(B, HV)
    if a is not None:  # deltanet has no decay
        a, rate = tensors_of(a, A_log)
        per_head = (HV, 1) if a.dim() == 3 else (HV,)
        rate = rate.double().exp().reshape(per_head)
        x = a.double() + (0 if dt_bias is None else tensors_of(dt_bias)[0].double().reshape(a.shape[1:]))
        if gate_form == "bounded":
            g = lower_bound * torch.sigmoid(rate * x)
        else:
            g = -rate * torch.nn.functional.softplus(x, threshold=40)
        if gate_min is not None:
            g = g.clamp(min=gate_min)
    beta = torch.sigmoid(b.double()) * (2 if allow_neg_eigval else 1)
    inputs = [x.reshape(B, 1, -1, width).numpy() for x, width in ((q, K), (k, K), (v, V))]
    inputs += [x.float()[:, None].numpy() for x in (g, beta)]
    return decode(*inputs, scale, state, state_indices, **options)


if __name__ == "__main__":
    serve(kernel, decode=decode, packed=packed)
