#!/usr/bin/env bash
# From nothing to a verdict: installs what is missing, builds the tool, and checks the CPU kernels on two real layers.
set -euo pipefail
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."

say() { printf '\n== %s\n' "$*"; }
logged() {
    "$@" >>build/demo.log 2>&1 </dev/null && return
    tail -n 40 build/demo.log >&2
    echo "demo: failed: $*; all of its output: build/demo.log" >&2
    exit 1
}

say "packages"
scripts/setup.sh build

say "build build/release/tidegate"
: >build/demo.log
# A folder that is configured stays as it is, tests or none: dropping them would make Ninja delete what test.sh built.
[[ -f build/release/build.ninja ]] || logged cmake --preset release -DTIDEGATE_TESTS=OFF
logged cmake --build --preset release --target tidegate_cli

for file in data/gdn_layer.safetensors data/kda_layer.safetensors; do
    say "build/release/tidegate check $file --subject cpu"
    build/release/tidegate check "$file" --subject cpu
done
