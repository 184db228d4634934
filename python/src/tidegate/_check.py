"""`tidegate check` from Python: a callable, or any subject, judged against the fp64 oracle."""
import collections
import json
import os
import queue
import tempfile
import threading
import traceback

from . import _core, _tool
from ._error import CheckFailed, Error
from .tidegate_subject import OUTPUTS, failure, is_skip, one_line, parse, respond, serialize

_core.set_tool(_tool.PATH)

MEASURES = ("nrmse", "cos", "size_ratio", "max_abs", "absmax_out", "absmax_ref", "worst_token_nrmse", "min_token_cos",
            "worst_sequence_nrmse", "worst_head_nrmse", "zeros_nrmse", "share_out", "zero_share", "needed", "nan",
            "inf", "mismatched")
TensorResult = collections.namedtuple("TensorResult", "name verdict reason measures worst unwritten limit twin")
CaseResult = collections.namedtuple("CaseResult", "id verdict reason signal seconds replay tensors")


class CheckResult:
    """What a check found. `str()` of it is what the command line prints; it is true if all is right.

    exit_code   0 pass, 1 wrong, 2 a case could not be run, 3 nothing was measured, 4 the subject crashed or hung
    counts      verdict -> number of cases: passed failed blind crashed hung skipped not_run
    cases       a CaseResult each: id verdict reason signal seconds replay, and tensors: a TensorResult each, name
                verdict reason measures (docs/protocol.md's names) worst {seq token head channel} unwritten limit twin
    records     the JSON records of docs/protocol.md, as dictionaries"""

    def __init__(self, exit_code, text, records):
        self.exit_code, self.text, self.records = exit_code, text, records
        tensors, self.cases = [], []
        for record in records:  # those of a case's tensors stand before it
            if record["record"] == "tensor":
                tensors.append(TensorResult(
                    record["tensor"], record["verdict"], record["reason"],
                    {name: _number(record[name]) for name in MEASURES}, record["worst"],
                    None if record["unwritten"] == "not checked" else record["unwritten"],
                    _number(record["gate"]["limit"]), record["twin"]))
            elif record["record"] == "case":
                fields = (record[name] for name in CaseResult._fields[1:-1])
                self.cases.append(CaseResult(record["case"], *fields, tensors))
                tensors = []
            elif record["record"] == "summary":
                self.counts = {name: record[name] for name in ("passed", "failed", "blind", "crashed", "hung",
                                                               "skipped", "not_run")}

    @property
    def ok(self):
        return self.exit_code == 0

    def __bool__(self):
        return self.ok

    def __str__(self):
        return self.text.rstrip("\n")

    def __repr__(self):
        return "<CheckResult: %s>" % ", ".join("%d %s" % (n, name) for name, n in self.counts.items() if n)


def _number(value):
    return float(value) if isinstance(value, str) else value


def check(fn, case_or_suite, *, rule=None, dtype=None, pass_=None, gate="derived", twin=None, l2norm=True, timeout=60.0,
          persistent=True, raise_on_failure=False):
    """Tries a kernel on cases whose right answer is known, and says how wrong it is, where, and how to see it again.

    fn              a callable as python/tidegate_subject.py describes it, for the pass of the cases:
                        fn(q, k, v, g, beta, scale, initial_state, cu_seqlens, head_map="grouped", **options)
                            -> (o, final_state), or writes to options["out"]
                    with NumPy arrays q, k [B,T,H,K]; v, o [B,T,HV,V]; g [B,T,HV] (kda [B,T,HV,K]); beta [B,T,HV];
                    states [N,HV,K,V]; cu_seqlens [N+1] or None. Pass backward:
                        fn(q, k, v, g, beta, scale, initial_state, cu_seqlens, do, dht, head_map="grouped", **options)
                            -> {"dq": ..., "dk": ..., "dv": ..., "dg": ..., "dbeta": ..., "dh0": ...}
                    Rules with erase, write, lr_a, lr_b or n_householder are tried if fn's signature names these. It
                    runs in this process, on the calling thread. Raise tidegate.Skip for what it does not do; any
                    other exception fails the case.
                    Or a subject as the command line takes it: "cpu", "exec:COMMAND", "lib:KERNEL.so", as_subject(fn)
    case_or_suite   a case id ("gdn/forward/bf16/1,70,2,4,80,96/h0=1/7"), a request file, or a suite ("quick")
    rule, dtype, pass_  filter a suite; for a file they override what it says
    gate, twin      the gate, and the arithmetic whose rounding is forgiven: "recurrent" or "chunked:<dtype>:<C>"
    l2norm          False: the callable normalises q and k itself where options["qk_l2norm"] says so
    timeout, persistent     of subjects in processes of their own: seconds a case, and one process for all of them
    raise_on_failure    raise CheckFailed unless all is right

    Returns a CheckResult. Raises tidegate.Error for bad input."""
    target = os.fspath(case_or_suite)
    options = dict(rule=rule, dtype=dtype, pass_=pass_, gate=gate, twin=twin, timeout=timeout)
    # A misspelt suite is no file: the error then lists the suites.
    is_suite = target in _core.suites() or not ("/" in target or "." in target or os.path.exists(target))
    options["suite" if is_suite else "target"] = target
    ask = None
    if isinstance(fn, str):
        options.update(subject=fn, persistent=persistent and fn.startswith("exec:"))
    elif callable(fn):
        name = "%s.%s" % (getattr(fn, "__module__", None) or type(fn).__module__,
                          getattr(fn, "__qualname__", None) or type(fn).__qualname__)
        options["subject"] = "python:" + name
        options["replay_before"] = "tidegate.check(%s, '" % name
        options["replay_after"] = "'%s)" % "".join(
            ", %s=%r" % (key, value) for key, value, usual in
            (("gate", gate, "derived"), ("twin", twin, None), ("l2norm", l2norm, True)) if value != usual)
        kernels = dict.fromkeys(OUTPUTS, fn)

        def ask(content):
            try:
                return "ok", serialize(*respond(kernels, *parse(content), l2norm=l2norm))
            except Exception as error:
                if is_skip(error):
                    return "skip", one_line(error) or "no reason given"
                where = traceback.extract_tb(error.__traceback__)[-1]
                return "error", "%s (%s:%d)" % (failure(error), os.path.basename(where.filename), where.lineno)
    else:
        raise Error("fn", "fn: given a %s, expected a callable or a subject such as 'cpu'" % type(fn).__name__)
    with tempfile.TemporaryDirectory() as folder:
        options["json"] = os.path.join(folder, "records")
        exit_code, text = _Desk(options, ask).run()
        with open(options["json"], encoding="utf-8") as file:
            result = CheckResult(exit_code, text, [json.loads(line) for line in file])
    if raise_on_failure and not result:
        raise CheckFailed(result)
    return result


class _Desk:
    """The check runs on a thread of its own, and what it asks is answered here, on the thread that called: a kernel's
    thread-local settings hold, and Ctrl-C is seen."""

    def __init__(self, options, ask):
        self.options, self.ask = options, ask
        self.core = _core.Check()
        self.calls, self.replies = queue.SimpleQueue(), queue.SimpleQueue()

    def run(self):
        worker = threading.Thread(target=self._work)
        worker.start()
        try:
            while True:
                kind, value = self.calls.get()
                if kind == "done":
                    return value
                if kind == "raised":
                    raise value
                self.replies.put(self.ask(value))
        except BaseException:
            self.replies.put(("error", "stopped"))
            while worker.is_alive():  # a child that is killed is tried once more
                self.core.stop()
                worker.join(0.05)
            raise
        finally:
            worker.join()

    def _work(self):
        try:
            self.calls.put(("done", self.core.run(self.options, self._asked if self.ask else None)))
        except BaseException as error:
            self.calls.put(("raised", error))

    def _asked(self, content):
        self.calls.put(("asked", content))
        return self.replies.get()
