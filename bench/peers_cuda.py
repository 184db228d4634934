"""Decode on a GPU beside the PyTorch packages that are there: the same tensors, the same process, CUDA graphs over states
that rotate past L2, the median of 100 replays. Called by bench/gpu.sh --peers; needs this project's Python package built
with CUDA (TIDEGATE_CUDA=ON), and PyTorch. A peer whose answer is not ours is named and not timed."""
import statistics
import sys

import tidegate
import torch

H, HV, K, V = 16, 32, 128, 128
ROTATE = 512e6  # bytes of states that calls rotate over
REPEATS = 100


def tidegate_decode(t, i):
    tidegate.decode(t["q"], t["k"], t["v"], a=t["a"], b=t["b"], A_log=t["A_log"], dt_bias=t["dt_bias"], scale=t["scale"],
                    state=t["states"][i], use_qk_l2norm_in_kernel=True, state_v_first=t["v_first"], out=t["outs"][i])
    return t["outs"][i]


def flash_linear_attention():
    from fla.ops.gated_delta_rule import fused_recurrent_gated_delta_rule as recurrent

    def call(t, i):
        return recurrent(t["q"], t["k"], t["v"], g=t["a"], beta=t["b"], A_log=t["A_log"], dt_bias=t["dt_bias"],
                         scale=t["scale"], initial_state=t["states"][i], output_final_state=True,
                         use_qk_l2norm_in_kernel=True, use_gate_in_kernel=True, use_beta_sigmoid_in_kernel=True,
                         state_v_first=t["v_first"])[0]
    return call, lambda t: t["state"] == torch.float32


def flashinfer():
    from flashinfer.gdn_decode import gated_delta_rule_decode_pretranspose as decode

    def call(t, i):
        return decode(t["q"], t["k"], t["v"], t["states"][i], t["A_log"], t["a"], t["dt_bias"], t["b"], scale=t["scale"],
                      output=t["outs"][i], use_qk_l2norm=True)[0]
    return call, lambda t: t["v_first"]


def tensors(B, state, v_first):
    generator = torch.Generator("cuda").manual_seed(1)

    def random(*shape, dtype=torch.bfloat16):
        return torch.randn(shape, generator=generator, device="cuda").to(dtype)
    sets = max(2, min(64, int(ROTATE / (B * HV * K * V * state.itemsize))))
    return dict(q=random(B, 1, H, K), k=random(B, 1, H, K), v=random(B, 1, HV, V), a=random(B, 1, HV), b=random(B, 1, HV),
                A_log=random(HV, dtype=torch.float32), dt_bias=random(HV, dtype=torch.float32), scale=K ** -0.5,
                state=state, v_first=v_first, bytes=2 * B * HV * K * V * state.itemsize,
                states=[random(B, HV, *((V, K) if v_first else (K, V)), dtype=state) for _ in range(sets)],
                outs=[torch.empty(B, 1, HV, V, dtype=torch.bfloat16, device="cuda") for _ in range(sets)])


def copies(t):
    half = len(t["states"]) // 2
    return lambda t, i: t["states"][half + i % half].copy_(t["states"][i % half])


def median_seconds(call, t):
    """Of one call."""
    for i in range(3):
        call(t, i % len(t["states"]))  # compiles, tunes
    torch.cuda.synchronize()
    calls = max(16, len(t["states"]))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in range(calls):
            call(t, i % len(t["states"]))
    graph.replay()
    seconds = []
    for _ in range(REPEATS):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        seconds.append(begin.elapsed_time(end) * 1e-3 / calls)
    return statistics.median(seconds)


def answers_agree(call, t):
    state = t["states"][0].clone()
    ours = tidegate_decode(t, 0).double().clone()
    t["states"][0].copy_(state)
    theirs = call(t, 0).double()
    t["states"][0].copy_(state)
    return float((theirs - ours).norm() / ours.norm()) < 1e-2


def main():
    peers = []
    for name, load in (("fla", flash_linear_attention), ("flashinfer", flashinfer)):
        try:
            peers.append((name, *load()))
        except Exception as missing:  # an import of theirs may fail in any way
            print("%s: not here (%s)" % (name, str(missing).splitlines()[0] if str(missing) else type(missing).__name__))
    print("%s, PyTorch %s; gdn, decode, HV %d, K = V = %d, bf16 activations; us (TB/s of states)" % (
        torch.cuda.get_device_name(), torch.__version__, HV, K))
    for state in (torch.float32, torch.bfloat16):
        for v_first in (False, True):
            for B in (1, 32, 64, 128, 256):
                t = tensors(B, state, v_first)
                line = ["%s %s B %-3d" % (str(state)[6:], "vk" if v_first else "kv", B)]
                for name, call, takes in [("tidegate", tidegate_decode, lambda t: True)] + peers:
                    if not takes(t):
                        continue
                    try:
                        if call is not tidegate_decode and not answers_agree(call, t):
                            line.append("%s: another answer than ours, not timed" % name)
                            continue
                        seconds = median_seconds(call, t)
                    except Exception as failure:
                        line.append("%s: %s" % (name, str(failure).splitlines()[0][:80]))
                        continue
                    line.append("%s %.2f (%.3f)" % (name, seconds * 1e6, t["bytes"] / seconds * 1e-12))
                seconds = median_seconds(copies(t), t)
                line.append("copy %.2f (%.3f)" % (seconds * 1e6, t["bytes"] / seconds * 1e-12))
                print("  ".join(line), flush=True)
                del t
    return 0


if __name__ == "__main__":
    sys.exit(main())
