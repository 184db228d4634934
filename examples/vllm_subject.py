"""vLLM's recurrent gated delta rule (gdn) on a state pool, and its packed decode where this vLLM has one. Needs vLLM
and a GPU; without them every case is skipped (exit code 77).

    tidegate check --suite quick --rule gdn --pass decode --persistent --subject "exec:python examples/vllm_subject.py"
    tidegate check --suite quick --rule gdn --pass packed --persistent --subject "exec:python examples/vllm_subject.py"

In vLLM a slot below 1 stands for "none": the pool handed over has a slot more in front. What it leaves undefined, such
as o of a pad outside of packed decode, is skipped.
"""
import os
import sys

import numpy as np

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "python"))
from tidegate_subject import Skip, serve  # noqa: E402

DEVICE = "cpu" if os.environ.get("TRITON_INTERPRET") == "1" else "cuda"  # Triton's interpreter: slow, for trials


def operations():
    """torch, and vLLM's module of these kernels."""
    try:
        import torch
        if DEVICE == "cuda" and not torch.cuda.is_available():
            raise Skip("no GPU")
        try:
            from vllm.third_party.flash_linear_attention.ops import fused_recurrent
        except ImportError:  # its place in earlier versions
            from vllm.model_executor.layers.fla.ops import fused_recurrent
    except ImportError as missing:
        raise Skip("vLLM cannot be imported: %s" % missing)
    return torch, fused_recurrent


def on_device(torch, array, dtype):
    kinds = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
    return torch.from_numpy(np.ascontiguousarray(array)).to(DEVICE, kinds[dtype])


class Pool:
    """The pool in vLLM's layout. States are [HV, V, K] in later versions, [HV, K, V] in earlier ones."""

    def __init__(self, torch, state, dtype, v_first):
        self.v_first = v_first
        state = state.swapaxes(-1, -2) if v_first else state
        self.tensor = on_device(torch, np.concatenate([np.zeros_like(state[:1]), state]), dtype)

    def back(self):
        state = self.tensor[1:]
        return state.transpose(-1, -2) if self.v_first else state


def slots_of(torch, state_indices, null_slot):
    slots = np.where(state_indices == null_slot, -1, state_indices) if null_slot is not None else state_indices
    return torch.from_numpy(np.where(slots < 0, -1, slots + 1).astype(np.int32)).to(DEVICE)


def recurrent(q, k, v, g, beta, scale, state, state_dtype, slots, accepted, lengths, dtypes, qk_l2norm):
    """Rows of q are sequences one after another; slots [N, W]: where sequence n starts, and where its states go."""
    torch, ops = operations()
    function = ops.fused_recurrent_gated_delta_rule
    pool = Pool(torch, state, state_dtype, "[N, HV, V, K]" in (function.__doc__ or ""))
    flat = [on_device(torch, x.reshape((1, -1) + x.shape[2:]), dtype)
            for x, dtype in ((q, dtypes["q"]), (k, dtypes["k"]), (v, dtypes["v"]), (g, "fp32"), (beta, "fp32"))]
    starts = torch.from_numpy(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)).to(DEVICE)
    with torch.no_grad():
        o, _ = function(*flat, scale=scale, initial_state=pool.tensor, inplace_final_state=True, cu_seqlens=starts,
                        ssm_state_indices=slots, num_accepted_tokens=accepted, use_qk_l2norm_in_kernel=qk_l2norm)
    return o.reshape(v.shape), pool.back()


def refuse(rule, head_map):
    if rule != "gdn" or head_map != "grouped":
        raise Skip("only gdn with the grouped head map")


def kernel(q, k, v, g, beta, scale, initial_state, cu_seqlens, rule, head_map, dtypes, qk_l2norm, **options):
    refuse(rule, head_map)
    torch, _ = operations()
    (B, T, _, K), (HV, V) = q.shape, v.shape[2:]
    lengths = np.full(B, T) if cu_seqlens is None else np.diff(cu_seqlens)
    N = len(lengths)
    if initial_state is None:
        initial_state = np.zeros((N, HV, K, V), np.float32)
    # Every token of a sequence leaves its state in the sequence's one slot: the last one stays.
    indices = np.repeat(np.arange(N)[:, None], max(lengths.max(initial=1), 1), axis=1)
    return recurrent(q, k, v, g, beta, scale, initial_state, "fp32", slots_of(torch, indices, None),
                     torch.ones(N, dtype=torch.int32, device=DEVICE), lengths, dtypes, qk_l2norm)


def decode(q, k, v, g, beta, scale, state, state_indices, num_accepted, null_slot, rule, head_map, dtypes, qk_l2norm,
           out, **options):
    refuse(rule, head_map)
    torch, _ = operations()
    B, T = v.shape[:2]
    indices = state_indices if state_indices.ndim == 2 else np.repeat(state_indices[:, None], T, axis=1)
    accepted = np.ones(B, np.int32) if num_accepted is None else num_accepted
    inside = (accepted >= 1) & (accepted <= indices.shape[1])
    first = indices[np.arange(B), np.where(inside, accepted, 1) - 1]
    if "state_tokens" in out or not (inside & (first >= 0) & (first != null_slot)).all():
        raise Skip("no states after every token, and pads leave o undefined")
    return recurrent(q, k, v, g, beta, scale, state, dtypes["state"], slots_of(torch, indices, null_slot),
                     torch.from_numpy(accepted.astype(np.int32)).to(DEVICE), np.full(B, T), dtypes, qk_l2norm)


def packed(mixed_qkv, a, b, A_log, dt_bias, scale, state, state_indices, null_slot, rule, head_map, dtypes, qk_l2norm,
           gate_form, gate_min, allow_neg_eigval, out_dtype, **options):
    refuse(rule, head_map)
    torch, ops = operations()
    function = getattr(ops, "fused_recurrent_gated_delta_rule_packed_decode", None)
    if function is None:
        raise Skip("this vLLM has no packed decode")
    if gate_form != "softplus" or gate_min is not None or allow_neg_eigval:
        raise Skip("only softplus gates")
    pool = Pool(torch, state, dtypes["state"], v_first=True)
    B, (HV, _, V) = len(mixed_qkv), state.shape[1:]
    if dt_bias is None:
        dt_bias = np.zeros(HV, np.float32)
    o = on_device(torch, np.empty((B, 1, HV, V), np.float32), out_dtype)
    with torch.no_grad():
        function(on_device(torch, mixed_qkv, dtypes["mixed_qkv"]), on_device(torch, a, dtypes["a"]),
                 on_device(torch, b, dtypes["b"]), on_device(torch, A_log, dtypes["A_log"]),
                 on_device(torch, dt_bias, dtypes.get("dt_bias", "fp32")), scale=scale, initial_state=pool.tensor,
                 out=o, ssm_state_indices=slots_of(torch, state_indices, null_slot), use_qk_l2norm_in_kernel=qk_l2norm)
    return o, pool.back()


if __name__ == "__main__":
    serve(kernel, l2norm=False, decode=decode, packed=packed)
