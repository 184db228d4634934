#!/usr/bin/env bash
# On a machine with a GPU: decode on rotating slots of a pool larger than L2, in CUDA graphs, beside a copy in the same run.
#
#   bench/gpu.sh [--peers] [TOOL]     (TOOL: a tool built with CUDA; default build/bundle/tidegate, from scripts/bundle.sh)
#
# --peers: beside the PyTorch packages that are there too, in one Python process (bench/peers_cuda.py says what it needs)
set -euo pipefail
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."
peers=0
[[ ${1:-} != --peers ]] || { peers=1; shift; }
tool=${1:-build/bundle/tidegate}
[[ -x $tool ]] || { echo "gpu: $tool is not there: scripts/bundle.sh" >&2; exit 2; }
for pass in decode packed; do
    for rule in gdn kda; do
        echo "\$ $tool bench --suite peers-cuda --pass $pass --rule $rule --subject cuda"
        "$tool" bench --suite peers-cuda --pass "$pass" --rule "$rule" --subject cuda
    done
done
if ((peers)); then
    echo "\$ python3 bench/peers_cuda.py"
    python3 bench/peers_cuda.py
fi
