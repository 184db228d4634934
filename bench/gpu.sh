#!/usr/bin/env bash
# On a machine with a GPU: decode on rotating slots of a pool larger than L2, in CUDA graphs, beside a copy in the same run.
#
#   bench/gpu.sh [TOOL]          (TOOL: a tool built with CUDA; default build/bundle/tidegate, from scripts/bundle.sh)
set -euo pipefail
tool=${1:-build/bundle/tidegate}
[[ -x $tool ]] || { echo "gpu: $tool is not there: scripts/bundle.sh" >&2; exit 2; }
for pass in decode packed; do
    for rule in gdn kda; do
        echo "\$ $tool bench --suite peers-cuda --pass $pass --rule $rule --subject cuda"
        "$tool" bench --suite peers-cuda --pass "$pass" --rule "$rule" --subject cuda
    done
done
