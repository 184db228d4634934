#!/usr/bin/env bash
# Makes a ledger of a real port's record.
#
#   examples/ledger/import.sh LEDGER [TOOL]     (TOOL: default build/release/tidegate)
set -euo pipefail
here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
[[ $# -ge 1 ]] || { echo "usage: import.sh LEDGER [TOOL]" >&2; exit 2; }
ledger=$1
tool=${2:-$here/../../build/release/tidegate}
files=$(mktemp -d)
trap 'rm -rf -- "$files"' EXIT
python3 "$here/facts.py" "$files"
cd -- "$files"
add() { "$tool" ledger import --ledger "$ledger" "$@"; }
add counts.csv cases.csv figures.csv probe.csv alone.csv crashes.csv plan.csv buckets.csv claims.csv
add 725cf45d.xml --build 725cf45d --started 2026-09-14 --label CGDR
add rgdr.jsonl --build 96ea3f55 --started 2026-09-08
add rgdr_max.csv
