"""The Python package, as installed: run with a Python that has it (pip install ./python)."""
import functools
import os
import pickle
import re
import subprocess
import sys
import tempfile
import threading
import time
import unittest

import numpy as np

import tidegate
from tidegate import tidegate_subject as ts

try:
    import torch
except ImportError:
    torch = None
try:
    import ml_dtypes
except ImportError:
    ml_dtypes = None
try:
    import jax
except ImportError:
    jax = None

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
TOOL = os.path.join(os.path.dirname(sys.executable), "tidegate")  # the script that pip made beside this Python
CASE = "gdn/forward/bf16/1,70,2,4,80,96/h0=1/7"
BACK = CASE.replace("forward", "backward").replace("h0=1", "h0=1/dht=1")
TENSORS = ("g", "beta", "erase", "write", "lr_a", "lr_b", "a", "b", "A_log", "dt_bias", "initial_state", "cu_seqlens")


def tool(*words):
    return subprocess.run([TOOL] + list(words), stdout=subprocess.PIPE, stderr=subprocess.PIPE, universal_newlines=True)


def typed(array, dtype):
    """An array as parse() gives it, in the type that the file holds."""
    if dtype != "bf16":
        return array
    if torch is not None:
        return torch.from_numpy(array).bfloat16()
    return array.astype(ml_dtypes.bfloat16)


def bits(array):
    """What is compared: fp32, to which bf16 and fp16 widen without loss."""
    return np.asarray(array.float() if torch is not None and isinstance(array, torch.Tensor) else array, np.float32)


def options_of(meta):
    """A request's metadata as arguments."""
    named = dict(rule=meta["rule"], head_map=meta.get("head_map", "grouped"), out_dtype=meta.get("out_dtype"),
                 use_qk_l2norm_in_kernel=meta.get("qk_l2norm") == "1", state_v_first=meta.get("state_layout") == "vk",
                 gate_form=meta.get("gate_form", "softplus"), allow_neg_eigval=meta.get("allow_neg_eigval") == "1",
                 n_householder=int(meta.get("n_householder", 1)))
    named.update({key: float(meta[key]) for key in ("scale", "gate_min", "lower_bound") if key in meta})
    return named


def given_of(case):
    """A case's metadata and tensors, each in its type, and what the command line answers, as parse() gives it."""
    with tempfile.TemporaryDirectory() as folder:
        ask, told = (os.path.join(folder, name) for name in ("ask", "told"))
        for done in (tool("run", case, ask, "--subject", "exec:cp"), tool("run", case, told)):
            assert done.returncode == 0, done.stderr
        (meta, tensors, dtypes), (_, expected, kinds) = ts.read(ask), ts.read(told)
    return meta, {name: typed(array, dtypes[name]) for name, array in tensors.items()}, expected, kinds


def gate_of(rule, g):
    """As tidegate takes it: none where a kernel is handed zeros."""
    return None if rule in ("deltanet", "iplr") else g


def right(q, k, v, g, beta, scale, initial_state, cu_seqlens, erase, write, lr_a, lr_b, n_householder, rule, head_map,
          out_dtype, **options):
    return tidegate.forward(q, k, v, gate_of(rule, g), beta, scale, initial_state, True, cu_seqlens=cu_seqlens,
                            rule=rule, erase=erase, write=write, lr_a=lr_a, lr_b=lr_b, n_householder=n_householder,
                            head_map=head_map, out_dtype="fp32" if out_dtype == "bf16" else out_dtype)


def right_backward(q, k, v, g, beta, scale, initial_state, cu_seqlens, do, dht, erase, write, lr_a, lr_b, n_householder,
                   rule, head_map, out, **options):
    return tidegate.backward(q, k, v, gate_of(rule, g), beta, scale, initial_state, do=do, dht=dht, rule=rule,
                             cu_seqlens=cu_seqlens, erase=erase, write=write, lr_a=lr_a, lr_b=lr_b,
                             n_householder=n_householder, head_map=head_map, out={"dh0": out["dh0"]})


def wrong_backward(*inputs, **options):
    gradients = right_backward(*inputs, **options)
    return dict(gradients, dk=gradients["dk"] * np.float32(1.02))


def wrong(*inputs, **options):
    o, state = right(*inputs, **options)
    return o * np.float32(1.02), state


def aborts(*inputs, **options):
    os.abort()


def decodes(q, k, v, g, beta, scale, state, state_indices, erase, write, lr_a, lr_b, n_householder, num_accepted,
            null_slot, rule, head_map, out, **options):
    out["o"] = tidegate.decode(q, k, v, gate_of(rule, g), beta, scale, out["state"], state_indices, num_accepted,
                               null_slot=null_slot, rule=rule, head_map=head_map, erase=erase, write=write, lr_a=lr_a,
                               lr_b=lr_b, n_householder=n_householder, state_tokens=out.get("state_tokens"),
                               out_dtype="fp32")


def decodes_packed(mixed_qkv, a, b, A_log, dt_bias, scale, state, state_indices, null_slot, rule, head_map, gate_form,
                   lower_bound, gate_min, allow_neg_eigval, **options):
    return tidegate.packed_decode(mixed_qkv, a, b, A_log, dt_bias, state, state_indices, scale, null_slot=null_slot,
                                  rule=rule, head_map=head_map, gate_form=gate_form, lower_bound=lower_bound,
                                  gate_min=gate_min, allow_neg_eigval=allow_neg_eigval, out_dtype="fp32")


def small(T=9, B=1, H=2, HV=4, K=16, V=24, seed=0):
    rng = np.random.default_rng(seed)
    q, k, v = (rng.standard_normal(shape, dtype=np.float32) for shape in ((B, T, H, K), (B, T, H, K), (B, T, HV, V)))
    k /= np.linalg.norm(k, axis=-1, keepdims=True)
    return [q, k, v, -rng.random((B, T, HV), dtype=np.float32), rng.random((B, T, HV), dtype=np.float32)]


class Case(unittest.TestCase):
    def error(self, argument, text, call, *arguments, **named):
        with self.assertRaises(tidegate.Error) as raised:
            call(*arguments, **named)
        self.assertEqual((raised.exception.argument, str(raised.exception)), (argument, text))


class Calls(Case):
    def test_the_command_line_gives_the_same_bits(self):
        for case in ("gdn/forward/fp32/1,139,2,4,32,64/lengths=3,0,70,1,65/h0=1/2",
                     "kda/forward/fp16/1,70,2,4,33,65/h0=1/gate=mild-spike:-90/map=tiled/6",
                     "gdn/forward/fp16/1,66,1,2,48,32/gates=logits/l2norm=1/3",
                     "kda/forward/fp32/1,33,2,4,64,64/h0=1/gates=logits/form=bounded/layout=vk/4",
                     "kda/forward/fp32/2,17,1,2,24,40/gates=logits/neg=1/gate_min=-0.5/scale=0.3/1",
                     "deltanet/forward/fp32/1,70,2,4,80,96/h0=1/7",
                     "deltanet/forward/fp32/1,20,1,2,16,16/gates=logits/1",
                     "gdn2/forward/fp32/1,70,2,4,80,96/h0=1/7", "gdn2/forward/fp16/1,20,1,2,16,16/gates=logits/1",
                     "gdp/forward/fp32/1,70,2,4,80,96/h0=1/7",
                     "gdp/forward/fp16/2,9,1,2,16,24/householder=3/gates=logits/1",
                     "dplr/forward/fp32/1,70,2,4,80,96/h0=1/7", "dplr/forward/fp16/1,20,1,2,16,16/gates=logits/1",
                     "iplr/forward/fp32/1,70,2,4,80,96/h0=1/7", "rwkv7/forward/fp32/1,70,2,4,80,96/h0=1/7", CASE):
            if "/bf16/" in case and torch is None and ml_dtypes is None:
                continue
            meta, given, expected, _ = given_of(case)
            o, state = tidegate.forward(given["q"], given["k"], given["v"], output_final_state=True, **options_of(meta),
                                        **{name: given[name] for name in TENSORS if name in given})
            np.testing.assert_array_equal(bits(o), bits(expected["o"]), case)
            np.testing.assert_array_equal(bits(state), bits(expected["final_state"]), case)

    def test_no_tokens(self):
        q, k, v, g, beta = small(T=0)  # an empty NumPy array has strides of 0
        h0 = np.ones((2, 4, 16, 24), np.float32)
        o, state = tidegate.forward(q, k, v, g, beta, None, h0, True, cu_seqlens=np.zeros(3, np.int32))
        self.assertEqual(o.shape, (1, 0, 4, 24))
        np.testing.assert_array_equal(state, h0)
        gradients = tidegate.backward(q, k, v, g, beta, None, h0, do=o, dht=2 * h0, cu_seqlens=np.zeros(3, np.int32))
        np.testing.assert_array_equal(gradients["dh0"], 2 * h0)

    def test_results_come_from_the_callers_framework(self):
        inputs = small()
        o, state = tidegate.forward(*inputs)
        self.assertIsInstance(o, np.ndarray)
        self.assertIsNone(state)
        if torch is not None:
            given = [torch.from_numpy(x) for x in inputs]
            with torch.no_grad():
                p, state = tidegate.forward(given[0].requires_grad_(), *given[1:], output_final_state=True)
            self.assertTrue(torch.equal(p, torch.from_numpy(o)))
            self.assertEqual((p.dtype, state.dtype), (torch.float32, torch.float32))
            given = [x.detach().bfloat16() for x in given]
            p, state = tidegate.forward(*given, output_final_state=True, state_dtype="fp16")
            self.assertEqual((p.dtype, state.dtype), (torch.bfloat16, torch.float16))
        if ml_dtypes is not None:
            p, _ = tidegate.forward(*(x.astype(ml_dtypes.bfloat16) for x in inputs))
            self.assertEqual(p.dtype, ml_dtypes.bfloat16)
            self.assertLess(np.abs(p.astype(np.float32) - o).max(), 0.1)

    def test_strides(self):
        inputs = small(HV=2)
        o, state = tidegate.forward(*inputs, output_final_state=True)
        turned = [np.ascontiguousarray(x.swapaxes(1, 2)).swapaxes(1, 2) for x in inputs]  # [B, H, T, ..] in memory
        padded = [np.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, 5)], constant_values=1e30)[..., :-5] for x in inputs]
        mirrored = [np.ascontiguousarray(x[:, ::-1])[:, ::-1] for x in inputs]
        for views in (turned, padded, mirrored):
            into = np.empty(o.shape[:3] + (o.shape[3] + 3,), np.float32)[..., :-3]
            p, s = tidegate.forward(*views, output_final_state=True, out=into)
            self.assertIs(p, into)
            np.testing.assert_array_equal(p, o)
            np.testing.assert_array_equal(s, state)
        self.error("q", "q: given stride 2 in the last dimension, expected 1 (dense)", tidegate.forward,
                   np.repeat(inputs[0], 2, axis=-1)[..., ::2], *inputs[1:])

    def test_outputs_of_ones_own(self):
        inputs = small()
        h0 = np.random.default_rng(1).standard_normal((1, 4, 16, 24), dtype=np.float32)
        o, state = tidegate.forward(*inputs, initial_state=h0, output_final_state=True)
        out, inplace = np.full((1, 12, 4, 24), 7, np.float32), h0.copy()
        p, s = tidegate.forward(*inputs, initial_state=inplace, out=out, final_state=inplace)
        self.assertTrue(p is out and s is inplace)
        np.testing.assert_array_equal(p[:, :9], o)
        np.testing.assert_array_equal(s, state)
        self.assertTrue((out[:, 9:] == 7).all())
        out.flags.writeable = False
        self.error("out", "out: given a read-only ndarray, expected memory that may be written", tidegate.forward,
                   *inputs, out=out)

    def test_decode_in_place(self):
        q, k, v, g, beta = small(T=1, B=3)
        pool = np.random.default_rng(1).standard_normal((5, 5, 16, 24), dtype=np.float32)[:, :4]  # gaps between slots
        before = pool.copy()
        o = tidegate.decode(q, k, v, g, beta, state=pool, state_indices=np.array([4, -1, 0]))
        expected, states = tidegate.forward(q, k, v, g, beta, initial_state=before[[4, 1, 0]], output_final_state=True)
        np.testing.assert_allclose(o[[0, 2]], expected[[0, 2]], atol=1e-6)
        np.testing.assert_allclose(pool[[4, 0]], states[[0, 2]], atol=1e-6)
        np.testing.assert_array_equal(pool[1:4], before[1:4])
        self.assertFalse(o[1].any())
        self.assertIn("arithmetic: ", tidegate.plan(q, k, v, g, beta, state=pool, call=tidegate.decode))

    def test_errors(self):
        q, k, v, g, beta = small()
        call = tidegate.forward
        self.error("beta", "beta: given nothing, expected a tensor [B, T, HV]", call, q, k, v, g)
        self.error("q", "q: given shape [9, 2, 16], expected [B, T, H, K]", call, q[0], k, v, g, beta)
        self.error("q", "q: given int64, expected fp32, bf16 or fp16", call, q.astype(np.int64), k, v, g, beta)
        self.error("q", "q: given uint16, expected fp32, bf16 or fp16 (a NumPy array of bf16 has the dtype of "
                   "ml_dtypes.bfloat16)", call, q.astype(np.uint16), k, v, g, beta)
        self.error("v", "v: given a list, expected a tensor: an object with DLPack or the buffer protocol, of numbers "
                   "in native byte order", call, q, k, [1], g, beta)
        self.error("g", "g: given rank 0, expected 1 to 5", call, q, k, v, np.float32(1).reshape(()), beta)
        self.error("scale", "scale: given 'x', expected a number", call, q, k, v, g, beta, scale="x")
        self.error("head_map", "head_map: given 'x', expected grouped or tiled", call, q, k, v, g, beta, head_map="x")
        self.error("out_dtype", "out_dtype: given fp64, expected fp32, bf16 or fp16", call, q, k, v, g, beta,
                   out_dtype="fp64")
        self.error("cu_seqlens[2]", "cu_seqlens[2]: given 8, expected the inputs' T = 9", call, q, k, v, g, beta,
                   cu_seqlens=np.array([0, 4, 8]))
        with self.assertRaisesRegex(ValueError, "^g: given .* expected a log of a decay, <= 0$"):
            call(q, k, v, -g, beta, check_values=True)
        with self.assertRaisesRegex(TypeError, r"^forward\(\) got an unexpected keyword argument 'nonsense'$"):
            call(q, k, v, g, beta, nonsense=1)
        self.error("v", "v: given float64, expected fp32, bf16 or fp16", call, q, k, v.astype(float), g, beta)
        self.error("rule", "rule: given 'delta', expected one of deltanet, gdn, kda, gdn2, gdp, dplr, iplr, rwkv7",
                   call, q, k, v, g, beta, rule="delta")
        self.error("g", "g: given it with rule deltanet, expected none: the rule has no g", call, q, k, v, g, beta,
                   rule="deltanet")
        self.error("lr_a", "lr_a: given nothing, expected a tensor [B, T, HV, K]", call, q, k, v, rule="iplr")
        self.error("n_householder", "n_householder: given 2, expected 1 with rule gdn", call, q, k, v, g, beta,
                   n_householder=2)
        self.error("n_householder", "n_householder: given 1.5, expected a number of steps", call, q, k, v, g, beta,
                   n_householder=1.5)
        if torch is not None:
            t = torch.from_numpy(q)
            self.error("q", "q: given a tensor that requires grad, expected one that does not (no gradients are "
                       "recorded: use torch.no_grad(), detach it, or call backward())", call,
                       t.clone().requires_grad_(), k, v, g, beta)
            with self.assertRaisesRegex(tidegate.Error, "^q: given a Tensor .*meta"):
                call(t.to("meta"), k, v, g, beta)
        error = pickle.loads(pickle.dumps(tidegate.Error("q", "q: text")))
        self.assertEqual((error.argument, str(error)), ("q", "q: text"))

    def test_other_threads_run_during_a_call(self):
        inputs = small(T=60000)
        caller = threading.Thread(target=tidegate.forward, args=inputs, kwargs={"threads": 1})
        caller.start()
        ticks = 0
        while caller.is_alive():
            ticks += 1
            time.sleep(0.001)
        self.assertGreater(ticks, 5)

    def test_version_and_tool(self):
        with open(os.path.join(ROOT, "CMakeLists.txt")) as file:
            version = re.search(r"project\(Tidegate VERSION ([0-9.]+)", file.read()).group(1)
        self.assertEqual(tidegate.__version__, version)
        self.assertEqual(tool("--version").stdout, "tidegate %s\n" % version)


class Backward(Case):
    """Only what differs from forward."""

    def test_the_command_line_gives_the_same_bits(self):
        for case in ("gdn/backward/fp32/1,139,2,4,32,64/lengths=3,0,70,1,65/h0=1/dht=1/2",
                     "kda/backward/fp32/1,33,2,4,64,64/h0=1/dht=1/gates=logits/form=bounded/layout=vk/4",
                     "deltanet/backward/fp16/1,66,1,2,48,32/gates=logits/l2norm=1/3",
                     "gdn2/backward/fp32/1,70,2,4,33,65/h0=1/dht=1/map=tiled/6",
                     "gdp/backward/fp32/2,9,1,2,16,24/householder=3/gates=logits/1",
                     "dplr/backward/fp16/2,17,1,2,24,40/gates=logits/gate_min=-0.5/scale=0.3/1",
                     "iplr/backward/fp32/2,17,1,2,24,40/dht=1/1", "rwkv7/backward/fp32/2,17,1,2,24,40/1", BACK):
            if "/bf16/" in case and torch is None and ml_dtypes is None:
                continue
            meta, given, expected, kinds = given_of(case)
            options = options_of(meta)
            del options["out_dtype"]
            names = TENSORS + ("do", "dht")
            told = tidegate.backward(given["q"], given["k"], given["v"], gradients=expected, **options,
                                     **{name: given[name] for name in names if name in given})
            self.assertEqual(set(told), set(expected), case)
            for name, gradient in told.items():
                np.testing.assert_array_equal(bits(gradient), bits(expected[name]), (case, name))
                self.assertEqual(tidegate._tensors.dtype_name(name, gradient.dtype), kinds[name], (case, name))

    def problem(self, **options):
        inputs = small(**options)
        rng = np.random.default_rng(5)
        B, T, HV, V = inputs[2].shape
        return inputs, dict(do=rng.standard_normal((B, T, HV, V), dtype=np.float32),
                            dht=rng.standard_normal((B, HV, inputs[0].shape[3], V), dtype=np.float32))

    def test_which_gradients(self):
        inputs, upstream = self.problem()
        h0 = np.zeros((1, 4, 16, 24), np.float32)
        given = tidegate.backward(*inputs, **upstream)
        self.assertEqual(list(given), ["dq", "dk", "dv", "dg", "dbeta"])
        everything = tidegate.backward(*inputs, initial_state=h0, **upstream)
        self.assertEqual(list(everything), ["dq", "dk", "dv", "dg", "dbeta", "dh0"])
        some = tidegate.backward(*inputs, gradients=("dh0", "dk"), **upstream)
        self.assertEqual(list(some), ["dk", "dh0"])
        self.assertEqual(tidegate.backward(*inputs, gradients=(), **upstream), {})
        for found in (given, some):
            for name, gradient in found.items():
                np.testing.assert_array_equal(gradient, everything[name])
        into = np.full((1, 12, 4, 24), 7, np.float32)
        told = tidegate.backward(*inputs, gradients=["dq"], out={"dv": into[:, :9], "dg": None}, **upstream)
        self.assertEqual(list(told), ["dq", "dv"])
        np.testing.assert_array_equal(into[:, :9], everything["dv"])
        self.assertTrue((into[:, 9:] == 7).all())
        dht = upstream["dht"].copy()  # its memory may take dh0
        told = tidegate.backward(*inputs, do=upstream["do"], dht=dht, out={"dh0": dht})
        self.assertIs(told["dh0"], dht)
        np.testing.assert_array_equal(dht, everything["dh0"])

    def test_memory_limit_and_threads_change_no_bit(self):
        inputs, upstream = self.problem(T=200)
        whole = tidegate.backward(*inputs, **upstream)
        plans = [tidegate.plan(*inputs, call=tidegate.backward, memory_limit=limit, **upstream)
                 for limit in (0, 120_000)]
        self.assertNotEqual(*(plan.split("spacing=")[1].split()[0] for plan in plans))
        for options in (dict(memory_limit=120_000), dict(threads=1)):
            for name, gradient in tidegate.backward(*inputs, **options, **upstream).items():
                np.testing.assert_array_equal(gradient, whole[name])
        with self.assertRaisesRegex(tidegate.Error, "^memory_limit: given 1000 bytes, expected at least "):
            tidegate.backward(*inputs, memory_limit=1000, **upstream)

    def test_errors(self):
        (q, k, v, g, beta), upstream = self.problem()
        call = functools.partial(tidegate.backward, q, k, v, g, beta)
        self.error("do", "do: given nothing, expected a tensor [B, T, HV, V]", call, do=None)
        self.error("do", "do: given shape [1, 9, 4, 25], expected [B, T, HV, V] = [1, 9, 4, 24]", call,
                   do=np.zeros((1, 9, 4, 25), np.float32))
        self.error("derase", "derase: given it without erase, expected none, or erase", call, gradients=["derase"],
                   **upstream)
        self.error("gradients", "gradients: given 'q', expected some of dq, dk, dv, dg, dbeta, derase, dwrite, dlr_a, "
                   "dlr_b, da, db, dA_log, ddt_bias, dh0", call, gradients=["q"], **upstream)
        self.error("out", "out: given a ndarray, expected a dictionary: the name of a gradient -> memory for it", call,
                   out=v, **upstream)
        self.error("dv", "dv: given memory that overlaps v, expected memory of its own", call, out={"dv": v},
                   **upstream)
        self.error("dq", "dq: given a read-only ndarray, expected memory that may be written", call,
                   out={"dq": np.broadcast_to(np.float32(0), q.shape)}, **upstream)
        self.error("q", "q: given int64, expected fp32, bf16 or fp16", tidegate.backward, q.astype(np.int64), k, v, g,
                   beta, **upstream)
        self.error("q", "q: given a list, expected a tensor: an object with DLPack or the buffer protocol, of numbers "
                   "in native byte order", tidegate.backward, [1], k, v, g, beta, **upstream)
        self.error("g", "g: given fp64, expected fp32, bf16 or fp16", tidegate.backward, q, k, v, g.astype(float), beta,
                   **upstream)
        self.error("memory_limit", "memory_limit: given '1GB', expected a number of bytes, 0 for no limit", call,
                   memory_limit="1GB", **upstream)

    def test_results_come_from_the_callers_framework(self):
        inputs, upstream = self.problem()
        expected = tidegate.backward(*inputs, **upstream)
        if torch is not None:
            given = [torch.from_numpy(x) for x in inputs[:4]] + [torch.from_numpy(inputs[4]).half()]
            with torch.no_grad():
                told = tidegate.backward(given[0].requires_grad_(), *given[1:], do=torch.from_numpy(upstream["do"]),
                                         dht=torch.from_numpy(upstream["dht"]), gradients=[*expected, "dh0"])
            self.assertEqual({name: x.dtype for name, x in told.items()},
                             dict(dict.fromkeys([*expected, "dh0"], torch.float32), dbeta=torch.float16))
            self.assertLess(np.abs(told["dq"].numpy() - expected["dq"]).max(), 1e-2)
        if jax is not None:
            told = tidegate.backward(*(jax.numpy.asarray(x) for x in inputs),
                                     **{name: jax.numpy.asarray(x) for name, x in upstream.items()})
            for name, gradient in told.items():
                self.assertIsInstance(gradient, jax.Array)
                np.testing.assert_array_equal(gradient, expected[name])
            self.error("dq", "dq: given a JAX array, which is immutable, expected memory that may be written",
                       tidegate.backward, *inputs, out={"dq": told["dq"]}, **upstream)
        if ml_dtypes is not None:
            told = tidegate.backward(*(x.astype(ml_dtypes.bfloat16) for x in inputs), **upstream)
            self.assertEqual({x.dtype for x in told.values()}, {np.dtype(ml_dtypes.bfloat16)})
        told = tidegate.backward(*(memoryview(x) for x in inputs), **upstream)
        np.testing.assert_array_equal(told["dg"], expected["dg"])


class Reference(Case):
    """The oracle from Python: reference=True."""

    def test_kernels_are_near_it(self):
        inputs = small(T=70)
        h0 = np.random.default_rng(1).standard_normal((1, 4, 16, 24), dtype=np.float32)
        do = np.random.default_rng(2).standard_normal(inputs[2].shape, dtype=np.float32)
        wide = [x.astype(float) for x in inputs]
        o, state = tidegate.forward(*inputs, None, h0, True)
        exact_o, exact_state = tidegate.forward(*wide, None, h0.astype(float), True, reference=True)
        self.assertEqual((exact_o.dtype, exact_state.dtype), (np.float64, np.float64))
        ours = tidegate.backward(*inputs, None, h0, do=do, dht=h0)
        exact = tidegate.backward(*wide, None, h0.astype(float), do=do, dht=h0, reference=True)
        pairs = [(o, exact_o), (state, exact_state)] + [(ours[name], exact[name]) for name in exact]
        for single, double in pairs:
            self.assertEqual(double.dtype, np.float64)
            apart = np.linalg.norm(single - double) / np.linalg.norm(double)
            self.assertLess(apart, 1e-6)
            self.assertGreater(apart, 1e-9)
        rounded, state = tidegate.forward(*inputs, None, h0, True, reference=True)  # once, to the types asked for
        np.testing.assert_array_equal(rounded, exact_o.astype(np.float32))
        self.assertEqual(state.dtype, np.float32)
        self.assertEqual(tidegate.forward(*inputs, reference=True, out_dtype="fp64")[0].dtype, np.float64)
        self.assertEqual(tidegate.backward(*wide, do=do, gradients=["dh0"], reference=True)["dh0"].dtype, np.float64)

    def test_its_gradients_are_derivatives_of_its_outputs(self):
        rng = np.random.default_rng(3)
        for rule, names, n in (("gdn", "a A_log dt_bias b", 1), ("gdp", "g beta", 2), ("gdn2", "g erase write", 1),
                               ("dplr", "g lr_a lr_b", 1), ("kda", "a A_log dt_bias b", 1)):
            wide = (3,) if rule in ("kda", "gdn2", "dplr") else ()
            shapes = dict(q=(1, 4, 1, 3), k=(1, 4 * n, 1, 3), v=(1, 4 * n, 2, 2), g=(1, 4, 2) + wide,
                          beta=(1, 4 * n, 2), erase=(1, 4, 2, 3), write=(1, 4, 2, 2), lr_a=(1, 4, 2, 3),
                          lr_b=(1, 4, 2, 3), a=(1, 4, 2) + wide, b=(1, 4 * n, 2), A_log=(2,),
                          dt_bias=(6 if wide else 2,), initial_state=(1, 2, 3, 2))
            x = {name: rng.standard_normal(shapes[name]) for name in ["q", "k", "v", "initial_state"] + names.split()}
            if "g" in x:
                x["g"] = -np.abs(x["g"])
            options = dict(rule=rule, n_householder=n, use_qk_l2norm_in_kernel=True, reference=True)
            do, dht = rng.standard_normal((1, 4, 2, 2)), rng.standard_normal((1, 2, 3, 2))

            def loss(x):
                o, state = tidegate.forward(**x, output_final_state=True, **options)
                return (o * do).sum() + (state * dht).sum()
            gradients = tidegate.backward(**x, do=do, dht=dht, **options)
            self.assertEqual(len(gradients), len(x))
            for name, value in x.items():
                step = rng.standard_normal(value.shape)
                up, down = (loss(dict(x, **{name: value + h * step})) for h in (1e-6, -1e-6))
                got = (gradients["dh0" if name == "initial_state" else "d" + name] * step).sum()
                self.assertAlmostEqual(got, (up - down) / 2e-6, delta=1e-7, msg=(rule, name))

    def test_decode_too(self):
        q, k, v, g, beta = (x.astype(float) for x in small(T=1, B=2))
        pool = np.random.default_rng(1).standard_normal((3, 4, 16, 24))
        before = pool.copy()
        o = tidegate.decode(q, k, v, g, beta, state=pool, state_indices=np.array([2, -1]), reference=True)
        expected, states = tidegate.forward(q, k, v, g, beta, None, before[[2, 1]], True, reference=True)
        np.testing.assert_array_equal(o[0], expected[0])
        np.testing.assert_array_equal(pool, [before[0], before[1], states[0]])
        self.assertEqual((o.dtype, o[1].any()), (np.float64, False))

    def test_errors(self):
        inputs = [x.astype(float) for x in small()]
        self.error("q", "q: given int32, expected fp32, bf16, fp16 or fp64", tidegate.forward,
                   inputs[0].astype(np.int32), *inputs[1:], reference=True)
        self.error("state_dtype", "state_dtype: given int32, expected fp32, bf16, fp16 or fp64", tidegate.forward,
                   *inputs, output_final_state=True, state_dtype="int32", reference=True)
        self.error("reference", "reference: given it with plan(), expected a call that runs", tidegate.plan, *inputs,
                   reference=True)
        self.error("reference", "reference: given 'yes', expected True or False", tidegate.forward, *small(),
                   reference="yes")


@unittest.skipIf(torch is None, "no PyTorch")
class Autograd(unittest.TestCase):
    def test_the_example(self):
        done = subprocess.run([sys.executable, os.path.join(ROOT, "examples", "torch_autograd.py")],
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True)
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertEqual([line.split()[:2] for line in done.stdout.splitlines()],
                         [["ok", rule] for rule in "gdn kda gdp dplr deltanet gdn2 iplr rwkv7".split()])

    def test_the_example_finds_a_wrong_gradient(self):
        path = os.path.join(ROOT, "examples", "torch_autograd.py")
        for fault, words in (("reference", "gradcheck FAILS: "), ("kernels", "WRONG gdn ")):
            code = ("import runpy, tidegate\nright = tidegate.backward\ndef wrong(*inputs, **options):\n"
                    "    found = right(*inputs, **options)\n"
                    "    if options.get('reference', False) == %r: found['dk'] *= 1.0001\n"
                    "    return found\ntidegate.backward = wrong\nrunpy.run_path(%r, run_name='__main__')\n"
                    % (fault == "reference", path))
            done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                  universal_newlines=True)
            self.assertEqual(done.returncode, 1, done.stdout)
            self.assertIn(words, done.stdout)


class Check(unittest.TestCase):
    def same_text(self, one, other):
        timeless = [re.sub(r"[0-9.]+ s\b", "_ s", text) for text in (one, other)]
        self.assertEqual(*timeless)

    def test_a_right_kernel_passes_with_the_command_lines_words(self):
        result = tidegate.check(right, CASE)
        self.assertTrue(result)
        self.assertEqual((result.exit_code, result.counts["passed"]), (0, 1))
        self.assertEqual([t.name for t in result.cases[0].tensors], ["o", "final_state"])
        self.assertLess(result.cases[0].tensors[0].measures["needed"], 1)
        self.assertIn("replay: tidegate.check(__main__.right, '%s')" % CASE, str(result))
        for subject in ("cpu", "reference+fault:no-decay"):
            self.same_text(tidegate.check(subject, CASE).text, tool("check", CASE, "--subject", subject).stdout)

    def test_all_passes(self):
        for kernel, which in ((right, "forward"), (right_backward, "backward"), (decodes, "decode"),
                              (decodes_packed, "packed")):
            result = tidegate.check(kernel, "quick", dtype="fp32", pass_=which)
            self.assertTrue(result, result)
            self.assertGreater(result.counts["passed"], 5)
            self.assertEqual(result.counts["skipped"], 0)
            rules = {case.id.split("/")[0] for case in result.cases if case.verdict == "pass"}
            self.assertEqual(len(rules), 3 if which == "packed" else 8)

    def test_backward(self):
        for rule in ("gdn", "dplr"):
            result = tidegate.check(right_backward, "quick", rule=rule, pass_="backward")
            self.assertTrue(result, result)
            self.assertGreater(result.counts["passed"], 15)
        result = tidegate.check(wrong_backward, BACK)
        self.assertEqual((result.exit_code, {t.name: t.verdict for t in result.cases[0].tensors}), (1, dict(
            dict.fromkeys(["dq", "dv", "dg", "dbeta", "dh0"], "pass"), dk="fail")))

        def answers(change):
            def kernel(*inputs, **options):
                gradients = right_backward(*inputs, **options)
                change(gradients, options["out"])
                return gradients
            result = tidegate.check(kernel, BACK)
            self.assertEqual(result.exit_code, 1, result)
            found = [(t.name, t.reason) for t in result.cases[0].tensors if t.verdict != "pass"]
            return found or result.cases[0].reason
        self.assertEqual(answers(lambda told, out: told.pop("dk")), [("dk", "11200 elements never written")])
        self.assertEqual(answers(lambda told, out: told.update(dh0=ts.poisoned((1, 4, 80, 96), np.float32))),
                         [("dh0", "30720 elements never written")])
        (name, reason), = answers(lambda told, out: told.update(dv=told["dv"][:, 1:]))
        self.assertEqual((name, "shape" in reason), ("dv", True))
        self.assertRegex(answers(lambda told, out: told.update(dx=0)),
                         "^ValueError: the kernel returned 'dx', expected some of dq, dk, ")

    def test_a_kernel_is_not_asked_for_rules_that_it_does_not_name(self):
        def kernel(q, k, v, g, beta, scale, initial_state, cu_seqlens, **options):
            options["rule"] = "gdn" if g.ndim == 3 else "kda"
            return right(q, k, v, g, beta, scale, initial_state, cu_seqlens, **options)
        result = tidegate.check(kernel, "quick", dtype="fp32")
        self.assertEqual(result.exit_code, 0)
        self.assertEqual({case.id.split("/")[0] for case in result.cases if case.verdict == "pass"},
                         {"deltanet", "gdn", "kda"})
        self.assertEqual({case.reason for case in result.cases if case.verdict == "skipped"},
                         {"rule gdn2: the kernel's signature names no erase and no write",
                          "rule gdp: the kernel's signature names no n_householder",
                          "rule dplr: the kernel's signature names no lr_a and no lr_b",
                          "rule iplr: the kernel's signature names no lr_a and no lr_b",
                          "rule rwkv7: the kernel's signature names no lr_a and no lr_b"})

    def test_a_wrong_one_fails(self):
        result = tidegate.check(wrong, CASE)
        self.assertFalse(result)
        self.assertEqual((result.exit_code, result.cases[0].verdict), (1, "fail"))
        self.assertEqual([t.verdict for t in result.cases[0].tensors], ["fail", "pass"])
        with self.assertRaises(tidegate.CheckFailed) as raised:
            tidegate.check(wrong, CASE, raise_on_failure=True)
        self.assertIn("over the limit", str(raised.exception))

    def test_what_a_kernel_raises(self):
        class Skip(Exception):  # that of another copy of the adapter
            pass

        def raising(error):
            def kernel(*inputs, **options):
                raise error
            return kernel
        for error in (tidegate.Skip("not\ntoday"), Skip("not today")):
            result = tidegate.check(raising(error), CASE)
            self.assertEqual((result.exit_code, result.cases[0].verdict), (3, "skipped"))
            self.assertEqual(result.cases[0].reason, "not today")
        result = tidegate.check(raising(KeyError("x")), CASE)
        self.assertEqual((result.exit_code, result.cases[0].verdict), (1, "fail"))
        self.assertRegex(result.cases[0].reason, r"^KeyError: 'x' \(python_package_test.py:\d+\)$")
        for error in (KeyboardInterrupt, SystemExit):
            with self.assertRaises(error):
                tidegate.check(raising(error()), "quick")

    @unittest.skipIf(torch is None, "no PyTorch")
    def test_a_kernel_may_return_pytorch_tensors(self):
        def kernel(*inputs, **options):
            o, state = right(*inputs, **options)
            return torch.from_numpy(o).bfloat16(), torch.from_numpy(state).requires_grad_()
        self.assertTrue(tidegate.check(kernel, CASE))

    def test_elements_never_written(self):
        def partial(*inputs, out, **options):
            out["o"][:, 1:] = 0
        result = tidegate.check(partial, CASE)
        self.assertEqual([t.unwritten for t in result.cases[0].tensors], [4 * 96, 4 * 80 * 96])

    def test_the_kernel_runs_on_the_calling_thread(self):
        seen = set()

        def kernel(*inputs, **options):
            seen.add(threading.get_ident())
            return right(*inputs, **options)
        self.assertTrue(tidegate.check(kernel, "quick", rule="gdn", dtype="fp32"))
        self.assertEqual(seen, {threading.get_ident()})

    def test_bad_input(self):
        for fn, case, named in (("cpu", "quik", {}), ("nonsense", CASE, {}), ("cpu", "gdn/forward/bf16/1,2/3", {}),
                                (3, CASE, {}), ("cpu", CASE, {"gate": "x"}), ("cpu", "none.safetensors", {})):
            with self.assertRaises(tidegate.Error):
                tidegate.check(fn, case, **named)

    def test_a_subject_in_a_process_of_its_own(self):
        for kernel, rule, which in ((right, "kda", "forward"), (right_backward, "gdp", "backward")):
            result = tidegate.check(tidegate.as_subject(kernel), "quick", rule=rule, dtype="fp32", pass_=which)
            self.assertTrue(result, result)
        result = tidegate.check(tidegate.as_subject(aborts), CASE)
        self.assertEqual((result.exit_code, result.cases[0].verdict), (4, "crashed"))
        done = tool("check", CASE, "--subject", tidegate.as_subject(wrong))
        self.assertEqual(done.returncode, 1, done.stdout)
        subject = tidegate.as_subject(ts.to_bf16)
        self.assertRegex(subject, r"^exec:.* -m tidegate\.serve tidegate\.tidegate_subject:to_bf16 ")
        for fn in (lambda: 0, self.test_bad_input, os.path):
            with self.assertRaisesRegex(tidegate.Error, "^fn: given .*, expected a function that a module holds"):
                tidegate.as_subject(fn)


if __name__ == "__main__":
    unittest.main()
