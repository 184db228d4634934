#!/usr/bin/env bash
# How long the questions take on a large ledger: 1,000,000 results of 250 runs.
#
#   bench/ledger.sh [TOOL]     (TOOL: default build/release/tidegate)
set -euo pipefail
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."
tool=${1:-build/release/tidegate}
folder=$(mktemp -d)
trap 'rm -rf -- "$folder"' EXIT
python3 - "$folder" <<'PY'
import random, sys
random.seed(1)
for part in range(10):
    with open("%s/%d.csv" % (sys.argv[1], part), "w") as file:
        file.write("build,started,label,case,verdict,measure:nrmse,limit:nrmse\n")
        for run in range(part * 25, part * 25 + 25):
            for case in range(4000):
                bad = random.random() < 0.002
                file.write("b%03d,2026-01-01T%02d:%02d:00Z,all,case/%d,%s,%.4g,0.02\n" % (
                    run, run // 60, run % 60, case, "fail" if bad else "pass", 0.03 if bad else 0.01 + 1e-5 * run))
PY
timed() {
    local begin
    begin=$(date +%s%N)
    "$tool" ledger "$@" --ledger "$folder/l.db" >"$folder/out" || [[ $? == 1 ]]
    echo "ledger $* : $(( ($(date +%s%N) - begin) / 1000000 )) ms"
}
timed import "$folder"/?.csv
du -h "$folder/l.db" | cut -f 1
timed show
timed show --build b100
timed trend 'case/17'
timed trend 'case/1*'
timed compare b100 b249
