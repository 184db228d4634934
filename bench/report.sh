#!/usr/bin/env bash
# Runs the CPU benchmark beside its peer and writes docs/bench-cpu.md: the tables with the commands that made them.
#
#   bench/report.sh            (after bench/setup.sh; on a machine that does nothing else)
set -euo pipefail
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."
tool=build/release/tidegate
[[ -x $tool ]] || { echo "report: $tool is not built: scripts/demo.sh" >&2; exit 2; }
page=docs/bench-cpu.md
scratch=$(mktemp)
trap 'rm -f -- "$scratch"' EXIT

# table HEADING COMMAND...
table() {
    local heading=$1
    shift
    printf '\n## %s\n\n    $ %s\n' "$heading" "$(printf '%q ' "$@" | sed "s/\\\\,/,/g; s/ $//")" >>"$scratch"
    "$@" | sed 's/^/    /' >>"$scratch"
}

{
    echo "# CPU benchmarks"
    echo
    echo "Written by \`bench/report.sh\`; version $($tool --version | cut -d' ' -f2), commit $(git rev-parse --short HEAD), $(date -u +%F)."
    echo "Machine: $(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1), $(nproc) cores. The peer is ggml's"
    echo "\`gated_delta_net\` from PyPI, in the same process and run. How the kernel works: [cpu-kernel.md](cpu-kernel.md)."
} >"$scratch"
table "Beside the peer: fp32, one sequence, H = 32, D = 128" "$tool" bench --suite peers-cpu
table "AVX2 forced" "$tool" --isa AVX2 bench --suite peers-cpu --threads 1
table "No slow-down with length" "$tool" bench gdn/forward/fp32/1,65536,4,4,128,128/h0=1/1 --threads 1
table "Head dims off the powers of two: K = V = 80" "$tool" bench gdn/forward/fp32/1,256,32,32,80,80/h0=1/1 --threads 1
table "96" "$tool" bench gdn/forward/fp32/1,256,32,32,96,96/h0=1/1 --threads 1
table "100" "$tool" bench gdn/forward/fp32/1,256,32,32,100,100/h0=1/1 --threads 1
table "bf16 inputs and output" "$tool" bench gdn/forward/bf16/1,256,32,32,128,128/h0=1/1 --threads 1
table "Decode, in place on a pool" "$tool" bench --suite peers-cpu --pass decode
table "Packed decode" "$tool" bench --suite peers-cpu --pass packed
table "One head on one and two threads" "$tool" bench gdn/forward/fp32/1,1024,1,1,128,128/h0=1/1 --threads 1,2
mv -- "$scratch" "$page"
chmod 644 "$page"
echo "report: $page"
