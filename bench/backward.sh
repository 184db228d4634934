#!/usr/bin/env bash
# Writes docs/bench-backward.md: every rule forward and backward, and backward's memory against the length.
#
#   bench/backward.sh            (on a machine that does nothing else)
set -euo pipefail
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."
tool=build/release/tidegate
[[ -x $tool ]] || { echo "backward: $tool is not built: scripts/demo.sh" >&2; exit 2; }
page=docs/bench-backward.md
scratch=$(mktemp)
trap 'rm -f -- "$scratch"' EXIT

# rows COMMAND...: what it prints the first time after a heading, then its rows alone
first=1
rows() {
    if ((first)); then "$@"; else "$@" | grep -E '^ +[a-z0-9]+/(forward|backward)/'; fi | sed 's/^/    /' >>"$scratch"
    first=0
}
heading() { printf '\n## %s\n\n    $ %s\n' "$1" "$2" >>"$scratch"; first=1; }

{
    echo "# Backward, and every rule forward: CPU benchmarks"
    echo
    echo "Written by \`bench/backward.sh\`; version $($tool --version | cut -d' ' -f2), commit $(git rev-parse --short HEAD), $(date -u +%F)."
    echo "Machine: $(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1), $(nproc) cores. How the kernel works: [backward.md](backward.md)."
} >"$scratch"
rules=(deltanet gdn kda gdn2 gdp dplr iplr rwkv7)
sizes=fp32/1,1024,32,32,128,128/h0=1
heading "Forward: H = 32, D = 128, T = 1024, fp32 (gdp: two Householder steps a token)" \
    "tidegate bench RULE/forward/$sizes/1"
for rule in "${rules[@]}"; do rows "$tool" bench "$rule/forward/$sizes/1"; done
heading "Backward beside its forward in the same run" "tidegate bench RULE/backward/$sizes/dht=1/1"
for rule in "${rules[@]}"; do rows "$tool" bench "$rule/backward/$sizes/dht=1/1"; done
heading "Memory of backward against T: H = 4, D = 128, one thread" "tidegate bench gdn/backward/fp32/1,T,4,4,128,128/1 --threads 1"
for T in 256 1024 4096 16384; do rows "$tool" bench "gdn/backward/fp32/1,$T,4,4,128,128/1" --threads 1 --seconds 1; done
heading "With a limit of 8 MB" "tidegate bench gdn/backward/fp32/1,T,4,4,128,128/1 --threads 1 --memory-limit 8MB"
for T in 256 1024 4096 16384; do
    rows "$tool" bench "gdn/backward/fp32/1,$T,4,4,128,128/1" --threads 1 --seconds 1 --memory-limit 8MB
done
mv -- "$scratch" "$page"
chmod 644 "$page"
echo "backward: $page"
