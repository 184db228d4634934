"""flash-linear-attention's kernels for gdn and kda. Needs that package, PyTorch and a GPU; without them every case is
skipped (exit code 77). They normalise q and k themselves; gates are formed from logits before them.

    tidegate check --suite quick --dtype bf16 --persistent --subject "exec:python examples/fla_subject.py chunk"

The word is `chunk` (chunk_gated_delta_rule, chunk_kda) or `recurrent` (fused_recurrent_gated_delta_rule,
fused_recurrent_kda). TRITON_INTERPRET=1 in the environment tries the recurrent ones on the CPU, slowly.
"""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "python"))
from tidegate_subject import Skip, serve  # noqa: E402

DEVICE = "cpu" if os.environ.get("TRITON_INTERPRET") == "1" else "cuda"
FORM = sys.argv[1] if len(sys.argv) > 1 else ""


def function_of(rule):
    try:
        import torch
        if DEVICE == "cuda" and not torch.cuda.is_available():
            raise Skip("no GPU")
        if rule == "kda":
            from fla.ops.kda import chunk_kda as chunk, fused_recurrent_kda as recurrent
        else:
            from fla.ops.gated_delta_rule import chunk_gated_delta_rule as chunk
            from fla.ops.gated_delta_rule import fused_recurrent_gated_delta_rule as recurrent
    except ImportError as missing:
        raise Skip("flash-linear-attention cannot be imported: %s" % missing)
    return chunk if FORM == "chunk" else recurrent


def kernel(q, k, v, g, beta, scale, initial_state, cu_seqlens, rule, tensors, dtypes, head_map, qk_l2norm, out_dtype,
           **options):
    function = function_of(rule)
    import torch
    kinds = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
    if head_map != "grouped":
        raise Skip("only the grouped head map")
    if out_dtype != dtypes["v"]:
        raise Skip("o has the type of v")
    if FORM == "chunk" and dtypes["v"] == "fp32":
        raise Skip("the chunked kernels take bf16 and fp16")

    def on_device(array, dtype):
        return None if array is None else torch.from_numpy(array).to(DEVICE, kinds[dtype])

    packed = None
    if "cu_seqlens" in tensors:
        packed = torch.from_numpy(cu_seqlens).to(DEVICE, torch.int64)
    with torch.no_grad():
        o, state = function(q=on_device(q, dtypes["q"]), k=on_device(k, dtypes["k"]), v=on_device(v, dtypes["v"]),
                            g=on_device(g, "fp32"), beta=on_device(beta, dtypes.get("beta", "fp32")), scale=scale,
                            initial_state=on_device(initial_state, "fp32"), output_final_state=True,
                            use_qk_l2norm_in_kernel=qk_l2norm, cu_seqlens=packed)
    return o, state


if __name__ == "__main__":
    if FORM not in ("chunk", "recurrent"):
        sys.exit("usage: %s chunk|recurrent [REQUEST ANSWER]" % sys.argv[0])
    serve(kernel, l2norm=False, twin="chunked:{dtype}:64" if FORM == "chunk" else None)
