"""The Python adapter and the examples: run with any Python that has NumPy."""
import fractions
import json
import math
import os
import signal
import struct
import subprocess
import sys
import tempfile
import unittest

import numpy as np

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
EXAMPLES = os.path.join(ROOT, "examples")
sys.dont_write_bytecode = True
sys.path[:0] = [os.path.join(ROOT, "python"), EXAMPLES]
import tidegate_subject as ts  # noqa: E402


def request(seed=0, B=1, T=5, H=2, HV=4, K=8, V=6, rule="gdn", dtype="fp32", cu=None, state=False, **metadata):
    """Metadata and tensors of a request, in the form that ts.write takes."""
    rng = np.random.default_rng(seed)
    k = rng.standard_normal((B, T, H, K))
    tensors = {"q": rng.standard_normal((B, T, H, K)), "k": k / np.linalg.norm(k, axis=-1, keepdims=True),
               "v": rng.standard_normal((B, T, HV, V))}
    tensors = {name: (dtype, ts.stored_as(dtype, value)) for name, value in tensors.items()}
    wide = (B, T, HV, K) if ts.RULES[rule][0] else (B, T, HV)
    tensors["g"] = ("fp32", -rng.random(wide).astype(np.float32))
    tensors["beta"] = ("fp32", rng.random((B, T, HV)).astype(np.float32))
    if cu is not None:
        tensors["cu_seqlens"] = ("int32", np.array(cu, np.int32))
    if state:
        n = B if cu is None else len(cu) - 1
        tensors["initial_state"] = ("fp32", rng.standard_normal((n, HV, K, V)).astype(np.float32))
    return dict({"protocol": "1", "rule": rule, "pass": "forward"}, **metadata), tensors


def backward_request(seed=0, dht=True, logits=False, **options):
    """Of pass backward: request() with do, dht, and logits in place of gates."""
    meta, tensors = request(seed, **dict({"pass": "backward"}, **options))
    rng = np.random.default_rng(seed + 100)
    shape = tensors["v"][1].shape
    HV, K = shape[2], tensors["q"][1].shape[3]
    tensors["do"] = ("fp32", rng.standard_normal(shape).astype(np.float32))
    if dht:
        n = len(tensors["cu_seqlens"][1]) - 1 if "cu_seqlens" in tensors else shape[0]
        tensors["dht"] = ("fp32", rng.standard_normal((n, HV, K, shape[3])).astype(np.float32))
    if logits:
        wide = tensors.pop("g")[1].shape
        del tensors["beta"]
        drawn = {"a": wide, "b": shape[:3], "A_log": (HV,), "dt_bias": (HV * K,) if len(wide) == 4 else (HV,)}
        tensors.update({name: ("fp32", rng.standard_normal(size).astype(np.float32)) for name, size in drawn.items()})
        meta["gates"] = "logits"
    return meta, tensors


def by_hand(meta, tensors):
    """The recurrence of design.md with plain loops over heads and tokens, float64: o and final states."""
    x = {name: (ts.from_bf16(array) if dtype == "bf16" else array).astype(float)
         for name, (dtype, array) in tensors.items()}
    B, T, H, K = x["q"].shape
    HV, V = x["v"].shape[2:]
    cu = [int(c) for c in x["cu_seqlens"]] if "cu_seqlens" in x else None
    spans = [(n, 0, T) for n in range(B)] if cu is None else [(0, a, b) for a, b in zip(cu, cu[1:])]
    o, states = np.zeros((B, T, HV, V)), np.zeros((len(spans), HV, K, V))
    for n, (row, start, stop) in enumerate(spans):
        for h in range(HV):
            hq = h % H if meta.get("head_map") == "tiled" else h // (HV // H)
            S = x["initial_state"][n, h].copy() if "initial_state" in x else np.zeros((K, V))
            for t in range(start, stop):
                key = x["k"][row, t, hq]
                S = np.diag(np.exp(np.broadcast_to(x["g"][row, t, h], K))) @ S
                S = S + np.outer(key, x["beta"][row, t, h] * (x["v"][row, t, h] - S.T @ key))
                o[row, t, h] = K ** -0.5 * (S.T @ x["q"][row, t, hq])
            states[n, h] = S
    return o, states


def loss(meta, x):
    """do . o + dht . final state in float64, from the arrays x of a backward request as they are in its file."""
    x = dict(x)
    if meta.get("qk_l2norm") == "1":
        for name in "qk":
            x[name] = x[name] / np.sqrt((x[name] ** 2).sum(-1, keepdims=True) + 1e-6)
    if meta.get("gates") == "logits":
        HV = x["v"].shape[2]
        rate = np.exp(x["A_log"]).reshape((HV,) + (1,) * (x["a"].ndim - 3))
        z = x["a"] + x["dt_bias"].reshape(x["a"].shape[2:])
        bounded = meta.get("gate_form") == "bounded"
        x["g"] = -5 / (1 + np.exp(-rate * z)) if bounded else -rate * np.log1p(np.exp(z))
        x["beta"] = (2 if meta.get("allow_neg_eigval") == "1" else 1) / (1 + np.exp(-x["b"]))
    x["g"] = np.maximum(x["g"], float(meta.get("gate_min", -np.inf)))
    o, states = by_hand(meta, {name: ("fp64", array) for name, array in x.items()})
    return (x["do"] * o).sum() + (x["dht"] * states).sum()


class Case(unittest.TestCase):
    def setUp(self):
        self.home = tempfile.TemporaryDirectory(prefix="tide gate's ")
        self.addCleanup(self.home.cleanup)
        self.ask, self.told = (os.path.join(self.home.name, name) for name in ("ask.safetensors", "told.safetensors"))

    def answer(self, kernel, asked, **options):
        """Metadata, arrays and types; `backward=` and its like in options are passes' own kernels."""
        ts.write(self.ask, *asked)
        ts.answer(kernel, self.ask, self.told, **options)
        return ts.read(self.told)


class Adapter(Case):
    def test_every_dtype_survives_a_round_trip(self):
        arrays = {"a": ("fp32", np.array([[1.5, -np.inf]], np.float32)), "b": ("fp64", np.array([1 / 3])),
                  "c": ("fp16", np.array([0.1, 6e-8], np.float16)),
                  "d": ("bf16", np.array([0x3F80, 0xC000], np.uint16)),
                  "e": ("int32", np.array([-1], np.int32)), "f": ("int64", np.array([2 ** 40])),
                  "g": ("fp32", np.zeros((0, 3), np.float32))}
        ts.write(self.ask, {"key": "välue"}, arrays)
        metadata, back, dtypes = ts.read(self.ask)
        self.assertEqual(metadata, {"key": "välue"})
        self.assertEqual(dtypes, {name: dtype for name, (dtype, _) in arrays.items()})
        for name, (dtype, array) in arrays.items():
            expected = np.array([1, -2], np.float32) if dtype == "bf16" else array
            self.assertEqual(back[name].dtype, expected.dtype)
            np.testing.assert_array_equal(back[name], expected)
        with open(self.ask, "rb") as file:
            size, = struct.unpack("<Q", file.read(8))
            self.assertEqual(size % 8, 0)
            self.assertEqual(json.loads(file.read(size))["e"]["dtype"], "I32")

    def test_the_official_reader_agrees(self):
        try:
            from safetensors.numpy import load_file
        except ImportError:
            self.skipTest("no safetensors")
        ts.write(self.ask, {}, {"x": ("fp16", np.array([[1, 2.5]], np.float16)), "n": ("int64", np.arange(3))})
        np.testing.assert_array_equal(load_file(self.ask)["x"], [[1, 2.5]])
        np.testing.assert_array_equal(load_file(self.ask)["n"], [0, 1, 2])

    def test_bf16_rounds_to_the_nearest_even_once(self):
        rng = np.random.default_rng(1)
        bits = rng.integers(0, 2 ** 32, 3000, np.uint64).astype(np.uint32)
        bits[::3] = bits[::3] & 0xFFFF0000 | 0x8000  # ties
        single = bits.view(np.float32)
        single = single[np.isfinite(single) & (np.abs(single) < 3e38)]
        nudge = single.astype(np.float64) * (1 + rng.choice([-1, 0, 1], single.size) * 2.0 ** -50)
        for values in (single, nudge):
            for value, got in zip(values, ts.to_bf16(values)):
                exact = fractions.Fraction(float(value))
                down = int(np.float32(value).view(np.uint32)) >> 16
                near = [b for b in (down - 1, down, down + 1) if 0 <= b < 0x10000 and b & 0x7FFF < 0x7F80]
                apart = {b: abs(fractions.Fraction(float(ts.from_bf16(np.array(b)))) - exact) for b in near}
                best = min(apart.values())
                choice = [b for b in near if apart[b] == best]
                self.assertIn(int(got), [b for b in choice if b % 2 == 0] if len(choice) > 1 else choice, value)

    def test_bf16_keeps_nan_and_overflows_to_inf(self):
        poison = np.array([0x7F800001, 0x7FA5A5A5, 0xFFFFFFFF], np.uint32).view(np.float32)
        self.assertTrue(np.isnan(ts.from_bf16(ts.to_bf16(poison))).all())
        large = np.array([3.4e38, -1e300, np.inf])
        np.testing.assert_array_equal(ts.from_bf16(ts.to_bf16(large)), [np.inf, -np.inf, np.inf])

    def test_fp16_of_a_large_value_is_inf(self):
        np.testing.assert_array_equal(ts.stored_as("fp16", np.array([65504.0, 7e4])), [65504, np.inf])

    def test_poison_is_counted_in_what_was_not_written(self):
        def partial(q, k, v, g, beta, scale, state, cu, out, **options):
            self.assertEqual(int(out["o"].view(np.uint32).flat[0]), 0x7FA5A5A5)
            out["o"][:, 1:] = 0
            out["final_state"][...] = np.nan  # a NaN of arithmetic is no poison
        metadata, arrays, _ = self.answer(partial, request(dtype="bf16"))
        self.assertEqual(metadata["unwritten"], "o:24,final_state:0")
        self.assertTrue(np.isnan(arrays["o"][:, 0]).all())
        metadata, _, _ = self.answer(lambda *a, **o: None, request(out_dtype="fp64"))
        self.assertEqual(metadata["unwritten"], "o:120,final_state:192")
        metadata, arrays, _ = self.answer(lambda *a, **o: np.zeros((1, 5, 4, 6)), request())
        self.assertEqual(metadata["unwritten"], "o:0,final_state:192")
        self.assertEqual(int(arrays["final_state"].view(np.uint32).flat[0]), 0x7FA5A5A5)

    def test_defaults_and_what_the_kernel_is_handed(self):
        seen = {}

        def spy(q, k, v, g, beta, scale, initial_state, cu_seqlens, out, **options):
            seen.update(options, scale=scale, state=initial_state, cu=cu_seqlens, q=q, beta=beta)
            return out["o"], None
        _, _, dtypes = self.answer(spy, request(dtype="bf16"))
        self.assertEqual((seen["scale"], seen["head_map"], seen["qk_l2norm"]), (8 ** -0.5, "grouped", False))
        self.assertEqual((seen["q"].dtype, seen["state"], list(seen["cu"])), (np.float32, None, [0, 5]))
        self.assertEqual(dtypes, {"o": "bf16", "final_state": "fp32"})
        _, _, dtypes = self.answer(spy, request(dtype="bf16", B=2, scale="0.25", head_map="tiled", out_dtype="fp16",
                                                state_dtype="bf16", qk_l2norm="1"), l2norm=False)
        self.assertEqual((seen["scale"], seen["head_map"], seen["qk_l2norm"], seen["cu"]), (0.25, "tiled", True, None))
        self.assertEqual(dtypes, {"o": "fp16", "final_state": "bf16"})
        raw = seen["q"].astype(float)
        self.answer(spy, request(dtype="bf16", B=2, qk_l2norm="1"))
        self.assertFalse(seen["qk_l2norm"])
        np.testing.assert_allclose(seen["q"], raw / np.sqrt((raw ** 2).sum(-1, keepdims=True) + 1e-6), rtol=1e-7)
        self.assertEqual(self.answer(spy, request(), twin="chunked:bf16:64")[0]["twin"], "chunked:bf16:64")

    def test_other_passes_are_skipped_and_misshapen_answers_left_to_the_judge(self):
        with self.assertRaises(ts.Skip):
            self.answer(lambda *a, **o: None, request(**{"pass": "backward"}))
        with self.assertRaises(ts.Skip):
            self.answer(lambda *a, **o: None, (dict(request()[0], rule="none"), request()[1]))
        _, arrays, _ = self.answer(lambda *a, **o: (np.zeros((2, 3)), np.zeros(4)), request(state_layout="vk"))
        self.assertEqual((arrays["o"].shape, arrays["final_state"].shape), ((2, 3), (4,)))

    def logits(self, a, A_log, bias=None, b=0.0, wide=False, **metadata):
        a = np.array(a, np.float32)
        a = np.broadcast_to(a[:, None], (len(a), 3)) if wide else a
        tensors = {"a": a[None, :, None], "b": np.full((1, len(a), 1), b, np.float32),
                   "A_log": np.array([A_log], np.float32)}
        if bias is not None:
            tensors["dt_bias"] = np.array(bias, np.float32)
        g, beta = ts.gates_from_logits(metadata, tensors, 1, 3)
        self.assertEqual((g.dtype, beta.dtype), (np.float32, np.float32))
        return g[0, :, 0], float(beta[0, 0, 0])

    def test_logits_front_end(self):
        g, beta = self.logits([0, 30, -30], 0.5, b=0.5)
        np.testing.assert_allclose(g, [-math.exp(.5) * math.log(2), -math.exp(.5) * 30, -math.exp(.5 - 30)], rtol=2e-7)
        self.assertAlmostEqual(beta, 0.62245935, delta=4e-8)
        self.assertEqual(self.logits([0], 0, b=0.5, allow_neg_eigval="1")[1], 2 * beta)
        g, _ = self.logits([-200], 100)
        self.assertAlmostEqual(float(g[0]), -math.exp(-100), delta=2e-45)
        g, _ = self.logits([-1000, 0, 200, np.nan], 1000)  # exp(A_log) is inf: 0, not NaN, where softplus is 0
        np.testing.assert_array_equal(g, [0, -np.inf, -np.inf, np.nan])
        np.testing.assert_allclose(self.logits([0, 9], 0, gate_min="-5")[0], [-math.log(2), -5])
        g, _ = self.logits([0, 1, -1, 100], 89, gate_form="bounded", lower_bound="-4")
        np.testing.assert_array_equal(g, [-2, -4, 0, -4])
        np.testing.assert_array_equal(self.logits([0, 1], 1000, gate_form="bounded")[0], [-2.5, -5])
        shifted = [-math.log1p(math.exp(x)) for x in (1, 2, 3)]
        np.testing.assert_allclose(self.logits([0], 0, bias=[1, 2, 3], wide=True)[0], [shifted], rtol=2e-7)
        np.testing.assert_allclose(self.logits([0], 0, bias=[2], wide=True)[0], [[shifted[1]] * 3], rtol=2e-7)

    def test_logits_take_the_place_of_g_and_beta(self):
        meta, tensors = request(gates="logits")
        tensors.update(a=("bf16", np.zeros((1, 5, 4), np.uint16)), b=("bf16", np.zeros((1, 5, 4), np.uint16)),
                       A_log=("fp32", np.zeros(4, np.float32)), dt_bias=("fp32", np.zeros(4, np.float32)))
        seen = []

        def spy(q, k, v, g, beta, *rest, **options):
            seen.extend((g, beta, options["tensors"]))
        self.answer(spy, (meta, tensors))
        np.testing.assert_array_equal(seen[0], np.full((1, 5, 4), -math.log(2), np.float32))
        np.testing.assert_array_equal(seen[1], np.full((1, 5, 4), 0.5, np.float32))
        self.assertIn("A_log", seen[2])

    def test_the_right_example_is_right(self):
        from gdn_numpy_subject import kernel
        for rule in ("gdn", "kda"):
            for change in ({}, {"head_map": "tiled", "state": True}, {"B": 2, "state": True, "dtype": "bf16", "T": 70},
                           {"cu": [0, 0, 2, 5, 5], "state": True}, {"H": 1, "HV": 1, "K": 1, "V": 1, "T": 1}):
                asked = request(rule=rule, out_dtype="fp32", **change)
                _, told, _ = self.answer(kernel, asked)
                o, state = by_hand(*asked)
                np.testing.assert_allclose(told["o"], o, atol=3e-6)
                np.testing.assert_allclose(told["final_state"], state, atol=3e-6)

    def test_state_layout_vk_is_turned_both_ways(self):
        from gdn_numpy_subject import kernel
        meta, tensors = request(state=True)
        _, straight, _ = self.answer(kernel, (meta, tensors))
        dtype, state = tensors["initial_state"]
        turned = dict(tensors, initial_state=(dtype, state.swapaxes(-1, -2)))
        _, told, _ = self.answer(kernel, (dict(meta, state_layout="vk"), turned))
        np.testing.assert_array_equal(told["o"], straight["o"])
        np.testing.assert_array_equal(told["final_state"], straight["final_state"].swapaxes(-1, -2))

    def test_the_faulty_example_is_wrong_in_the_state_of_a_short_chunk_only(self):
        from gdn_numpy_faulty_subject import kernel as faulty
        from gdn_numpy_subject import kernel as right
        for T, wrong in ((64, False), (128, False), (63, True), (70, True), (1, True)):
            _, expected, _ = self.answer(right, request(T=T))
            _, told, _ = self.answer(faulty, request(T=T))
            np.testing.assert_array_equal(told["o"], expected["o"])
            self.assertEqual(not np.allclose(told["final_state"], expected["final_state"]), wrong, T)


class Rules(Case):
    def test_what_a_rule_has_is_handed_to_kernels_that_name_it(self):
        rng = np.random.default_rng(3)

        def asked(rule, *names, **metadata):
            meta, tensors = request(rule=rule, **metadata)
            for name, width in (("erase", 8), ("write", 6), ("lr_a", 8), ("lr_b", 8)):
                if name in names:
                    tensors[name] = ("bf16", ts.to_bf16(rng.random((1, 5, 4, width))))
            return meta, {name: tensor for name, tensor in tensors.items() if name in names + ("q", "k", "v")}
        seen = {}

        def kernel(q, k, v, g, beta, scale, state, cu, n_householder, erase, write, lr_a, lr_b, out, **options):
            seen.update(g=g, beta=beta, n=n_householder, scale=scale, o=out["o"].shape,
                        own={name for name, x in (("erase", erase), ("write", write), ("lr_a", lr_a), ("lr_b", lr_b))
                             if x is not None})

        def plain(q, k, v, g, beta, scale, state, cu, **options):
            seen.update(g=g, beta=beta)
        for rule, names in (("gdn2", ("g", "erase", "write")), ("dplr", ("g", "lr_a", "lr_b")),
                            ("rwkv7", ("g", "lr_a", "lr_b")), ("iplr", ("lr_a", "lr_b")), ("deltanet", ("beta",))):
            self.answer(kernel, asked(rule, *names))
            self.assertEqual(seen["own"], set(names) - {"g", "beta"})
            self.assertEqual(seen["beta"] is None, "beta" not in names)
            self.assertEqual(seen["g"].shape, (1, 5, 4) if rule == "deltanet" else (1, 5, 4, 8))
            self.assertEqual(seen["g"].any(), "g" in names)
            self.assertEqual((seen["n"], seen["scale"]), (1, 1 if rule == "rwkv7" else 8 ** -0.5))
            if rule != "deltanet":
                with self.assertRaisesRegex(ts.Skip, "^rule %s: the kernel's signature names no (erase and|lr_a and) no"
                                            % rule):
                    self.answer(plain, asked(rule, *names))
        self.answer(plain, asked("deltanet", "beta"))  # zeros for g: a kernel for gdn is one for deltanet
        self.assertFalse(seen["g"].any())

        meta, tensors = request(rule="gdp", T=6, n_householder="3")
        q, g = (tensors[name] for name in "qg")
        tensors.update(q=(q[0], q[1][:, :2]), g=(g[0], g[1][:, :2]))
        self.answer(kernel, (meta, tensors))
        self.assertEqual((seen["n"], seen["o"], seen["g"].shape, seen["beta"].shape),
                         (3, (1, 2, 4, 6), (1, 2, 4), (1, 6, 4)))
        with self.assertRaisesRegex(ts.Skip, "names no n_householder$"):
            self.answer(plain, (meta, tensors))

    def test_logits_of_a_rule_without_beta_or_without_decay(self):
        meta, tensors = backward_request(logits=True, rule="kda")
        x = {name: array for name, (_, array) in tensors.items()}
        whole = ts.gates_from_logits(meta, x, 4, 8)
        for lacking, place in (("b", 1), ("a", 0)):
            part = ts.gates_from_logits(meta, {name: array for name, array in x.items() if name != lacking}, 4, 8)
            self.assertIsNone(part[place])
            np.testing.assert_array_equal(part[1 - place], whole[1 - place])


class Backward(Case):
    def test_gradients_are_those_of_a_plain_loss(self):
        """The NumPy example through the adapter, along random directions, against central differences."""
        from gdn_numpy_subject import backward
        for options in (dict(rule="gdn"), dict(rule="kda", head_map="tiled"), dict(rule="gdn", qk_l2norm="1"),
                        dict(rule="kda", gate_min="-0.5"), dict(rule="gdn", cu=[0, 2, 2, 5]),
                        dict(rule="gdn", logits=True, qk_l2norm="1", allow_neg_eigval="1"),
                        dict(rule="kda", logits=True), dict(rule="kda", logits=True, gate_form="bounded"),
                        dict(rule="gdn", logits=True, gate_form="bounded", gate_min="-2"),
                        dict(rule="kda", logits=True, gate_min="-0.4")):
            asked = meta, tensors = backward_request(state=True, **options)
            told, arrays, dtypes = self.answer(None, asked, backward=backward)
            x = {name: array.astype(float) for name, (_, array) in tensors.items()}
            names = {"dh0": "initial_state"}
            names.update({"d" + name: name for name in x if name not in ("do", "dht", "initial_state", "cu_seqlens")})
            self.assertEqual(set(arrays), set(names))
            self.assertEqual(told["unwritten"], ",".join("%s:0" % name for name in arrays))
            rng = np.random.default_rng(7)
            for gradient, name in names.items():
                self.assertEqual((arrays[gradient].shape, dtypes[gradient]), (x[name].shape, "fp32"))
                for _ in range(3):
                    step = rng.standard_normal(x[name].shape)
                    up, down = (loss(meta, dict(x, **{name: x[name] + h * step})) for h in (1e-6, -1e-6))
                    got = (arrays[gradient] * step).sum()
                    size = np.abs(arrays[gradient] * step).sum()
                    self.assertLess(abs(got - (up - down) / 2e-6), 2e-6 * size + 1e-7, (options, gradient))

    def test_what_is_asked_for(self):
        seen = {}

        def spy(q, k, v, g, beta, scale, state, cu, do, dht, out, **options):
            seen.update(options, do=do, dht=dht, state=state, out={name: x.shape for name, x in out.items()})
            return {}
        meta, tensors = backward_request(dtype="bf16", dht=False)
        tensors["do"] = ("bf16", ts.to_bf16(tensors["do"][1]))
        told, arrays, dtypes = self.answer(None, (meta, tensors), backward=spy, twin="chunked:bf16:64")
        self.assertEqual(dtypes, {"dq": "bf16", "dk": "bf16", "dv": "bf16", "dg": "fp32", "dbeta": "fp32",
                                  "dh0": "fp32"})
        self.assertEqual((seen["do"].dtype, seen["dht"], seen["state"]), (np.float32, None, None))
        self.assertEqual(seen["out"]["dh0"], (1, 4, 8, 6))
        self.assertNotIn("out_dtype", seen)
        self.assertNotIn("twin", told)  # that of forward
        self.assertEqual(told["unwritten"], "dq:80,dk:80,dv:120,dg:20,dbeta:20,dh0:192")

        meta, tensors = backward_request(logits=True, state=True)
        tensors["initial_state"] = ("fp16", tensors["initial_state"][1].astype(np.float16))
        tensors["dt_bias"] = ("fp64", tensors["dt_bias"][1].astype(float))
        told, arrays, dtypes = self.answer(None, (meta, tensors), backward=spy)
        self.assertEqual(set(seen["out"]) - set(arrays), {"dg", "dbeta"})
        self.assertEqual((dtypes["dh0"], dtypes["ddt_bias"], set(arrays)),
                         ("fp16", "fp64", {"dq", "dk", "dv", "da", "db", "dA_log", "ddt_bias", "dh0"}))
        self.assertEqual(told["unwritten"], "dq:80,dk:80,dv:120,da:20,db:20,dA_log:4,ddt_bias:4,dh0:192")

    def test_what_is_missing_misshapen_or_unknown(self):
        def told(kernel, **options):
            meta, arrays, _ = self.answer(None, backward_request(state=True, **options), backward=kernel)
            counts = dict(pair.split(":") for pair in meta["unwritten"].split(","))
            return arrays, {name: int(count) for name, count in counts.items() if count != "0"}

        def partial(q, k, v, g, beta, *rest, out, **options):
            for name in out:
                if name != "dk":
                    out[name][...] = 1
            out["dg"][:, 0] = ts.poisoned((1, 4), np.float32)
        self.assertEqual(told(partial)[1], {"dk": 80, "dg": 4})
        self.assertEqual(told(partial, qk_l2norm="1")[1], {"dk": 80, "dg": 4})
        # The four of logits were written in place too: they are what the kernel says.
        arrays, lost = told(partial, logits=True)
        self.assertEqual((lost, arrays["da"].min(), arrays["dA_log"].max()), ({"dk": 80}, 1, 1))

        def first_token_left(*inputs, out, **options):
            made = {name: np.ones(out[name].shape, np.float32) for name in ("dq", "dk", "dv", "dg", "dbeta", "dh0")}
            made["dg"][:, 0] = ts.poisoned((1, 4), np.float32)
            return made
        self.assertEqual(told(first_token_left, logits=True)[1], {"da": 4, "dA_log": 4, "ddt_bias": 4})
        arrays, lost = told(lambda *inputs, **options: {"dq": np.zeros(3), "dg": np.zeros((2, 2)), "derase": None},
                            logits=True, qk_l2norm="1")
        self.assertEqual((arrays["dq"].shape, arrays["da"].shape, lost["db"]), ((3,), (2, 2), 20))
        with self.assertRaisesRegex(ValueError, "^the kernel returned 'dinitial', expected some of dq, dk, "):
            told(lambda *inputs, **options: {"dinitial": 0})
        arrays, _ = told(lambda *inputs, **options: {"derase": np.zeros(3)})  # of another rule: not asked for
        self.assertNotIn("derase", arrays)
        with self.assertRaisesRegex(ts.Skip, "backward"):
            self.answer(lambda *inputs, **options: None, backward_request())

    def test_state_layout_vk_is_turned_both_ways(self):
        from gdn_numpy_subject import backward
        meta, tensors = backward_request(state=True)
        _, straight, _ = self.answer(None, (meta, tensors), backward=backward)
        turned = {name: (tensors[name][0], tensors[name][1].swapaxes(-1, -2)) for name in ("initial_state", "dht")}
        _, told, _ = self.answer(None, (dict(meta, state_layout="vk"), dict(tensors, **turned)), backward=backward)
        for name, expected in straight.items():
            np.testing.assert_array_equal(told[name], expected.swapaxes(-1, -2) if name == "dh0" else expected)

    def test_no_tokens(self):
        from gdn_numpy_subject import backward
        for logits in (False, True):
            _, told, _ = self.answer(None, backward_request(T=0, cu=[0, 0], state=True, logits=logits),
                                     backward=backward)
            self.assertTrue(told["dh0"].any())
            if logits:
                np.testing.assert_array_equal(told["dA_log"], np.zeros(4))


class Processes(Case):
    KERNEL = ("import os, sys, numpy as np\nfrom tidegate_subject import serve, Skip\n"
              "def kernel(q, k, v, g, beta, scale, initial_state, cu_seqlens, **options):\n"
              "    print('noise', end=''); os.system('printf more')\n"
              "    if v.shape[-1] == 7: raise Skip('V is\\n7')\n"
              "    if v.shape[-1] == 8: raise ValueError('V is\\n8')\n"
              "    return np.zeros(v.shape), np.zeros((1, v.shape[2], k.shape[3], v.shape[3]))\n"
              "serve(kernel)\n")

    def run_file(self, *words, stdin=None, **environment):
        env = dict(os.environ, PYTHONPATH=os.path.join(ROOT, "python"), PYTHONDONTWRITEBYTECODE="1", **environment)
        return subprocess.run([sys.executable, *words], input=stdin, env=env, timeout=60, universal_newlines=True,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def kernel_file(self):
        path = os.path.join(self.home.name, "kernel.py")
        with open(path, "w") as file:
            file.write(self.KERNEL)
        return path

    def test_one_shot(self):
        for width, code, words in ((6, 0, ""), (7, 77, "V is 7"), (8, 1, "8")):
            ts.write(self.ask, *request(V=width))
            done = self.run_file(self.kernel_file(), self.ask, self.told)
            self.assertEqual(done.returncode, code, done.stderr)
            self.assertTrue(done.stderr.rstrip().endswith(words))
        self.assertIn("Traceback", done.stderr)
        self.assertEqual(ts.read(self.told)[0]["unwritten"], "o:0,final_state:0")
        self.assertEqual(self.run_file(self.kernel_file()).returncode, 1)

    def test_persistent(self):
        lines = ""
        for width in (6, 7, 8, 9):
            ask, told = ("%s.%d" % (path, width) for path in (self.ask, self.told))
            ts.write(ask, *request(V=width))
            lines += "%s\t%s\n" % (ask, told)
        done = self.run_file(self.kernel_file(), stdin=lines, TIDEGATE_PERSISTENT="1")
        self.assertEqual(done.returncode, 0, done.stderr)
        expected = ["ok", "skip V is 7", "error ValueError: V is 8", "ok"]
        self.assertEqual(done.stdout.splitlines(), ["@tidegate " + reply for reply in expected])
        self.assertIn("noise", done.stderr)
        self.assertIn("more", done.stderr)
        self.assertEqual(ts.read(self.told + ".9")[1]["o"].shape, (1, 5, 4, 9))

    def test_the_misbehaving_example(self):
        path = os.path.join(EXAMPLES, "misbehaving_subject.py")
        for mode, code in (("segfault", -signal.SIGSEGV), ("abort", -signal.SIGABRT), ("exit3", 3)):
            ts.write(self.ask, *request(K=80))
            self.assertEqual(self.run_file(path, mode, self.ask, self.told).returncode, code)
            self.assertFalse(os.path.exists(self.told))
            ts.write(self.ask, *request())
            self.assertEqual(self.run_file(path, mode, self.ask, self.told, TIDEGATE_MISBEHAVE="all").returncode, code)
        self.assertEqual(self.run_file(path, "segfault", self.ask, self.told).returncode, 0)
        ts.read(self.told)
        self.assertEqual(self.run_file(path, "truncated", self.ask, self.told, TIDEGATE_MISBEHAVE="all").returncode, 0)
        with self.assertRaises(ValueError):
            ts.read(self.told)
        for mode in ("hang-busy", "hang-idle"):
            with self.assertRaises(subprocess.TimeoutExpired):
                subprocess.run([sys.executable, path, mode, self.ask, self.told], timeout=1,
                               env=dict(os.environ, TIDEGATE_MISBEHAVE="all", PYTHONDONTWRITEBYTECODE="1"))
        self.assertEqual(self.run_file(path, "nonsense", self.ask, self.told).returncode, 1)


if __name__ == "__main__":
    unittest.main()
