#!/usr/bin/env bash
# Builds and runs every test.
#
#   scripts/test.sh [--long] [--preset release|debug|asan|tsan] [-- CTEST ARGUMENTS]
#
# --long: longer sweeps (TIDEGATE_LONG=1 in the tests' environment).
set -euo pipefail
preset=release
while (( $# )); do
    case $1 in
        --long) export TIDEGATE_LONG=1; shift ;;
        --preset) preset=${2:?--preset needs a name}; shift 2 ;;
        --) shift; break ;;
        *) sed -n '2,6s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2; exit 2 ;;
    esac
done
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."

say() { printf '\n== %s\n' "$*"; }
logged() {
    "$@" >>build/test.log 2>&1 </dev/null && return
    tail -n 60 build/test.log >&2
    echo "test: failed: $*; all of its output: build/test.log" >&2
    exit 1
}

say "packages"
scripts/setup.sh test

say "build build/$preset"
: >build/test.log
logged cmake --preset "$preset"
# What was left out, and why, is said here and not only in the log.
grep -E '^-- .*: skipped, ' build/test.log || true
logged cmake --build --preset "$preset"

say "tests"
ctest --preset "$preset" -j "$(nproc)" "$@"
