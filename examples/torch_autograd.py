"""Tidegate under PyTorch's autograd, checked in two ways for every rule: in double, forward and backward of the oracle
pass torch.autograd.gradcheck; in float32, the gradients of the CPU kernels are those of the oracle in double.

    python examples/torch_autograd.py        # needs the package (pip install ./python) and PyTorch; one line a rule

Exit code 0: all right, 1: something is not, 77: PyTorch or the package is not installed.
"""
import sys

try:
    import torch
    from torch.autograd.gradcheck import GradcheckError

    import tidegate
except ImportError as missing:
    print("skipped: %s" % missing, file=sys.stderr)
    sys.exit(77)

INPUTS = ("q", "k", "v", "g", "beta", "erase", "write", "lr_a", "lr_b", "a", "b", "A_log", "dt_bias", "initial_state")
GRADIENT = dict({name: "d" + name for name in INPUTS}, initial_state="dh0")
LIMIT = 1e-5  # of float32 gradients: relative L2 distance


class DeltaRule(torch.autograd.Function):
    """o and the final state of the tensors of INPUTS, in its order; `options` go to tidegate as they are."""

    @staticmethod
    def forward(ctx, options, *tensors):
        ctx.options = options
        ctx.save_for_backward(*tensors)
        return tidegate.forward(**dict(zip(INPUTS, tensors)), output_final_state=True, **options)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, do, dht):
        wanted = [GRADIENT[name] for name, needed in zip(INPUTS, ctx.needs_input_grad[1:]) if needed]
        found = tidegate.backward(**dict(zip(INPUTS, ctx.saved_tensors)), do=do.contiguous(), dht=dht.contiguous(),
                                  gradients=wanted, **ctx.options)
        return (None,) + tuple(found.get(GRADIENT[name]) for name in INPUTS)


def delta_rule(tensors, **options):
    """tidegate.forward(), differentiable. tensors: name -> tensor."""
    return DeltaRule.apply(options, *(tensors.get(name) for name in INPUTS))


def example(rule, B, T, H, HV, K, V, n=1, seed=0):
    """Inputs of a rule in double, with raw logits where it has any."""
    draw = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(shape, generator=draw, dtype=torch.float64)

    tensors = dict(q=normal(B, T, H, K), k=normal(B, T * n, H, K), v=normal(B, T * n, HV, V),
                   initial_state=normal(B, HV, K, V))
    channels = rule in ("kda", "gdn2", "dplr", "rwkv7")
    if rule not in ("deltanet", "iplr"):
        tensors.update(a=normal(B, T, HV, *(K,) * channels), A_log=0.5 * normal(HV),
                       dt_bias=normal(HV * K if channels else HV) - 2)
    if rule in ("deltanet", "gdn", "kda", "gdp"):
        tensors.update(b=normal(B, T * n, HV))
    if rule == "gdn2":
        tensors.update(erase=torch.sigmoid(normal(B, T, HV, K)), write=torch.sigmoid(normal(B, T, HV, V)))
    if rule in ("dplr", "iplr", "rwkv7"):  # D + b a^T that does not grow: b removes part of what a reads
        removed = torch.nn.functional.normalize(normal(B, T, HV, K), dim=-1)
        tensors.update(lr_a=-removed, lr_b=removed * torch.sigmoid(normal(B, T, HV, 1)))
    return tensors


def gradcheck(rule, n):
    """In double, on the oracle: central differences of every output by every input."""
    tensors = example(rule, B=1, T=4, H=1, HV=2, K=3, V=2, n=n)
    names = list(tensors)
    torch.autograd.gradcheck(
        lambda *given: delta_rule(dict(zip(names, given)), rule=rule, n_householder=n, use_qk_l2norm_in_kernel=True,
                                  reference=True),
        [x.requires_grad_() for x in tensors.values()], eps=1e-6, atol=1e-7, rtol=1e-6)
    return names


def gradients(tensors, weights, **options):
    leaves = {name: x.clone().requires_grad_() for name, x in tensors.items()}
    loss = sum((w * x).sum() for w, x in zip(weights, delta_rule(leaves, **options)))
    loss.backward()
    return {name: x.grad for name, x in leaves.items()}


def compare(rule, n):
    """The largest relative difference between gradients of the CPU kernels and of the oracle, and of which input."""
    single = {name: x.float() for name, x in example(rule, B=2, T=70, H=2, HV=4, K=40, V=24, n=n, seed=1).items()}
    double = {name: x.double() for name, x in single.items()}
    draw = torch.Generator().manual_seed(2)
    weights = [torch.randn(2, *shape, generator=draw) for shape in ((70, 4, 24), (4, 40, 24))]
    options = dict(rule=rule, n_householder=n, use_qk_l2norm_in_kernel=True)
    ours = gradients(single, weights, **options)
    exact = gradients(double, [w.double() for w in weights], reference=True, **options)
    apart = {GRADIENT[name]: float((ours[name].double() - exact[name]).norm() / exact[name].norm()) for name in exact}
    return max(apart.items(), key=lambda item: float("inf") if item[1] != item[1] else item[1])


def main():
    wrong = 0
    for rule, n in (("gdn", 1), ("kda", 1), ("gdp", 2), ("dplr", 1), ("deltanet", 1), ("gdn2", 1), ("iplr", 1),
                    ("rwkv7", 1)):
        try:
            checked = "passes for " + " ".join(gradcheck(rule, n))
        except GradcheckError as error:
            checked = "FAILS: " + " ".join(str(error).split())
        worst, apart = compare(rule, n)
        right = checked.startswith("passes") and apart <= LIMIT
        wrong += not right
        print("%-5s %-8s fp32 kernels within %.1e of fp64 (%s; limit %.0e); gradcheck %s" % (
            "ok" if right else "WRONG", rule, apart, worst, LIMIT, checked))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
