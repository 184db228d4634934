"""Writes a real port's record, as raw facts, into files that `tidegate ledger import` takes: JUnit XML, JSON Lines and CSV.

    python3 examples/ledger/facts.py OUT

A chunked GDN kernel for an NPU ("CGDR") and its decode sibling ("RGDR"), followed over one branch. Nothing that the ledger
is to derive is in here: sums, differences, percentages, intervals. import.sh beside this imports the files.
"""
import csv
import json
import os
import sys
import xml.etree.ElementTree as xml

EARLY, LATE = "2026-09-08", "2026-09-14"
PLACE = "test_cgdr"
LONG_LIVED = PLACE + "::test_accuracy_recurrent_reference[fp16]"
WIDTHS = (63, 65, 79, 80, 81, 95, 96, 97, 127)


def table(out, name, heading, rows):
    with open(os.path.join(out, name), "w", newline="") as file:
        writer = csv.DictWriter(file, heading.split(","), restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def counts():
    heading = "build,started,label,performance,measured,collected,passed,failed,skipped,note"

    def run(build, started, label, collected, passed, failed, skipped, note=""):
        return dict(build=build, started=started, label=label, collected=collected, passed=passed, failed=failed,
                    skipped=skipped, note=note)
    rows = [
        run("00e39ab5", EARLY, "CGDR", 10, 5, 0, 5, "6 perf cases deselected"),
        run("a9c66ddb", LATE, "CGDR", 26, 13, 0, 13, "first version"),
        run("725cf45d", LATE, "CGDR", 26, 2, 11, 13, "generalised"),
        run("69300ffc", LATE, "CGDR", 26, 12, 1, 13, "four buckets"),
        run("d0906c3e", EARLY, "CGDR", 26, 12, 1, 13, "final"),
        run("d0906c3e", LATE, "CGDR", 26, 12, 1, 13, "control, same day as the others"),
        dict(build="88d8b965", started="", label="CGDR", measured="no", note="one fix alone"),
        run("048d0427", EARLY, "CGDR", "", 15, 0, 13, "both fixes"),
        run("96ea3f55", EARLY, "CGDR", 26, 12, 1, 13, "the failure is marginal, its value not given"),
        run("96ea3f55", EARLY, "RGDR", 4, 0, 3, 0, "decode, T = 1; 1 perf case deselected"),
    ]
    for build, started in (("00e39ab5", EARLY), ("a9c66ddb", LATE), ("725cf45d", LATE), ("69300ffc", LATE),
                           ("d0906c3e", EARLY), ("048d0427", EARLY)):
        rows.append(dict(build=build, started=started, label="CGDR perf", performance="yes", passed=6))
    return heading, rows


def zero_build():
    """The executable cases of the all-zero build, and what they assert."""
    anchored = "zero-padded input and a per-token reference: cosine, nrmse"
    for width in WIDTHS:
        yield "test_non_multiple_reduce_width[%d]" % width, anchored, "fail", (0.0, 1.0)
    yield "test_accuracy_beta_zero", "numeric difference", "fail", None
    yield "test_accuracy_recurrent_reference[fp16]", "cosine, nrmse", "fail", (0.0, 1.0)
    yield "test_shapes_and_dtypes[fp16]", "isfinite", "pass", None
    yield "test_optional_g[fp16]", "isfinite", "pass", None


def junit(out):
    """As pytest writes it; what a case asserts and measured are its properties."""
    suite = xml.Element("testsuite", name="pytest", tests="13", failures="11", errors="0", skipped="0",
                        timestamp=LATE + "T00:00:00")
    for name, asserts, verdict, values in zero_build():
        case = xml.SubElement(suite, "testcase", classname=PLACE, name=name, time="0")
        properties = xml.SubElement(case, "properties")
        xml.SubElement(properties, "property", name="asserts", value=asserts)
        for measure, value in zip(("cosine", "nrmse"), values or ()):
            xml.SubElement(properties, "property", name=measure, value=str(value))
        if verdict == "fail":
            what = "difference about .50" if "beta" in name else "cosine 0.0, nrmse 1.0" if values else ""
            xml.SubElement(case, "failure", message=what)
    root = xml.Element("testsuites")
    root.append(suite)
    xml.ElementTree(root).write(os.path.join(out, "725cf45d.xml"), encoding="utf-8", xml_declaration=True)


def json_lines(out):
    """The decode sibling, as our own records."""
    with open(os.path.join(out, "rgdr.jsonl"), "w") as file:
        for record in (
                dict(record="run", protocol=1, kind="check", label="RGDR errors", subject="RGDR",
                     gate=dict(name="decode-fp16", version=1), cases=[dict(case="decode T=1", hash="")]),
                dict(record="tensor", protocol=1, case="decode T=1", tensor="o", verdict="fail", share_out=0.597,
                     max_abs=0.0104),
                dict(record="case", protocol=1, case="decode T=1", verdict="fail", reason="gate |err| <= 1e-3"),
                dict(record="summary", protocol=1, cases=1, passed=0, failed=1)):
            file.write(json.dumps(record) + "\n")


def main(out):
    os.makedirs(out, exist_ok=True)
    table(out, "counts.csv", *counts())
    junit(out)
    json_lines(out)
    failing = [("69300ffc", LATE), ("d0906c3e", EARLY), ("d0906c3e", LATE), ("96ea3f55", EARLY)]
    table(out, "cases.csv", "build,started,label,case,verdict,asserts",
          [dict(build=b, started=s, label="CGDR", case=LONG_LIVED, verdict="fail", asserts="cosine, nrmse")
           for b, s in failing])
    # The record does not say which of d0906c3e's two runs its figures are of; the control has the others' day.
    figures = "build,started,label,case,tensor,measure,value,limit,source"
    table(out, "figures.csv", figures,
          [dict(build=b, started=s, label="CGDR", case=LONG_LIVED, measure=m, value=v, limit=g)
           for b, s, cosine, nrmse in (("d0906c3e", LATE, .9996, .0269), ("69300ffc", LATE, .9995, .0319))
           for m, v, g in (("cosine", cosine, .999), ("nrmse", nrmse, .02))])
    places = ("first place", "second place", "third place")
    table(out, "rgdr_max.csv", figures,
          [dict(build="96ea3f55", started=EARLY, label="RGDR errors", case="decode T=1", tensor="o", measure="max error",
                value=v, limit=1e-3, source=p) for p, v in zip(places, (.0104, .0104, .010))])
    table(out, "probe.csv", "build,started,label,case,verdict,measure:absmax output,measure:absmax state",
          [dict(build=b, started=LATE, label="probe B1 H2 T64 K64 V32", case="probe", verdict="fail" if o == 0 else "pass",
                **{"measure:absmax output": o, "measure:absmax state": s})
           for b, o, s in (("725cf45d", 0.0, 0.0), ("a9c66ddb", .096, .023), ("69300ffc", .096, .023),
                           ("d0906c3e", .096, .023))])
    table(out, "alone.csv", "build,started,label,case,verdict,asserts",
          [dict(build=b, started=LATE, label="one case alone", case=PLACE + "::test_accuracy_beta_zero", verdict=v,
                asserts="numeric difference")
           for b, v in (("725cf45d", "fail"), ("a9c66ddb", "pass"), ("69300ffc", "pass"))])
    fault = "runtime result 507015"
    table(out, "crashes.csv", "build,started,label,performance,case,verdict,fingerprint,measure:ms",
          [dict(build=b, started=s, label="perf runs", performance="yes", case=c, verdict=v,
                fingerprint=f if v == "crashed" else "", **({"measure:ms": ms} if ms else {}))
           for b, s, c, f, runs in (
               ("a9c66ddb", LATE, "perf", "kernel suffix _2", (("crashed", 0), ("pass", 0))),
               ("69300ffc", LATE, "perf", "kernel suffix _3", (("crashed", 0), ("pass", 0))),
               ("d0906c3e", EARLY, "perf T=512", fault, (("pass", 0), ("crashed", 0), ("pass", 0))),
               ("d0906c3e", LATE, "perf T=2048", fault + ", read/write conflict",
                (("pass", 0), ("crashed", 0), ("pass", 0))),
               ("d0906c3e", LATE, "perf T=512", fault, (("crashed", 0), ("pass", 0))),
               ("048d0427", EARLY, "perf T=512", "", (("pass", 4.363), ("pass", 4.376))))
           for v, ms in runs])
    table(out, "plan.csv", "build,started,label,what,name,value",
          [dict(build=b, started=s, label="CGDR", what="K = 80", name=n, value=v)
           for b, s, step, buffer in (("725cf45d", LATE, 96, 153088), ("d0906c3e", EARLY, 80, 125312))
           for n, v in (("vStep", step), ("buffer bytes", buffer))])
    table(out, "buckets.csv", "build,suffix,meaning",
          [dict(build=b, suffix="_%d" % i, meaning=w)
           for b, widths in (("a9c66ddb", (64, 96, 128)), ("725cf45d", (64, 96, 128)), ("69300ffc", (64, 80, 96, 128)),
                             ("d0906c3e", (64, 80, 96, 128))) for i, w in enumerate(widths)])
    table(out, "claims.csv", "build,other,case,words,source",
          [dict(build="69300ffc", other="d0906c3e", case=LONG_LIVED, words="exactly the same", source="a note in the record"),
           dict(build="725cf45d", other="69300ffc", case="", words="71 hours", source="a time window in the record; the "
                "commits are of one day")])


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: facts.py OUT")
    main(sys.argv[1])
