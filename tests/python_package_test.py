"""The Python package, as installed: run with a Python that has it (pip install ./python)."""
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

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
TOOL = os.path.join(os.path.dirname(sys.executable), "tidegate")  # the script that pip made beside this Python
CASE = "gdn/forward/bf16/1,70,2,4,80,96/h0=1/7"
TENSORS = ("g", "beta", "a", "b", "A_log", "dt_bias", "initial_state", "cu_seqlens")


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
                 gate_form=meta.get("gate_form", "softplus"), allow_neg_eigval=meta.get("allow_neg_eigval") == "1")
    named.update({key: float(meta[key]) for key in ("scale", "gate_min", "lower_bound") if key in meta})
    return named


def right(q, k, v, g, beta, scale, initial_state, cu_seqlens, rule, head_map, out_dtype, **options):
    return tidegate.forward(q, k, v, g, beta, scale, initial_state, True, cu_seqlens=cu_seqlens, rule=rule,
                            head_map=head_map, out_dtype="fp32" if out_dtype == "bf16" else out_dtype)


def wrong(*inputs, **options):
    o, state = right(*inputs, **options)
    return o * np.float32(1.02), state


def aborts(*inputs, **options):
    os.abort()


def decodes(q, k, v, g, beta, scale, state, state_indices, num_accepted, null_slot, rule, head_map, out, **options):
    out["o"] = tidegate.decode(q, k, v, g, beta, scale, out["state"], state_indices, num_accepted, null_slot=null_slot,
                               rule=rule, head_map=head_map, state_tokens=out.get("state_tokens"), out_dtype="fp32")


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


class Calls(unittest.TestCase):
    def error(self, argument, text, call, *arguments, **named):
        with self.assertRaises(tidegate.Error) as raised:
            call(*arguments, **named)
        self.assertEqual((raised.exception.argument, str(raised.exception)), (argument, text))

    def test_the_command_line_gives_the_same_bits(self):
        for case in ("gdn/forward/fp32/1,139,2,4,32,64/lengths=3,0,70,1,65/h0=1/2",
                     "kda/forward/fp16/1,70,2,4,33,65/h0=1/gate=mild-spike:-90/map=tiled/6",
                     "gdn/forward/fp16/1,66,1,2,48,32/gates=logits/l2norm=1/3",
                     "kda/forward/fp32/1,33,2,4,64,64/h0=1/gates=logits/form=bounded/layout=vk/4",
                     "kda/forward/fp32/2,17,1,2,24,40/gates=logits/neg=1/gate_min=-0.5/scale=0.3/1", CASE):
            if "/bf16/" in case and torch is None and ml_dtypes is None:
                continue
            with tempfile.TemporaryDirectory() as folder:
                ask, told = (os.path.join(folder, name) for name in ("ask", "told"))
                self.assertEqual(tool("run", case, ask, "--subject", "exec:cp").returncode, 0)
                self.assertEqual(tool("run", case, told).returncode, 0)
                (meta, tensors, dtypes), (_, expected, _) = ts.read(ask), ts.read(told)
            given = {name: typed(array, dtypes[name]) for name, array in tensors.items()}
            o, state = tidegate.forward(given["q"], given["k"], given["v"], output_final_state=True, **options_of(meta),
                                        **{name: given[name] for name in TENSORS if name in given})
            np.testing.assert_array_equal(bits(o), bits(expected["o"]), case)
            np.testing.assert_array_equal(bits(state), bits(expected["final_state"]), case)

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
        with self.assertRaises(TypeError):
            call(q, k, v, g, beta, nonsense=1)
        if torch is not None:
            t = torch.from_numpy(q)
            self.error("q", "q: given a tensor that requires grad, expected one that does not (no gradients are "
                       "computed: use torch.no_grad(), or detach it)", call, t.clone().requires_grad_(), k, v, g, beta)
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
        for kernel, which in ((right, "forward"), (decodes, "decode"), (decodes_packed, "packed")):
            result = tidegate.check(kernel, "quick", dtype="fp32", pass_=which)
            self.assertTrue(result, result)
            self.assertGreater(result.counts["passed"], 5)

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
        result = tidegate.check(tidegate.as_subject(right), "quick", rule="kda", dtype="fp32")
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
