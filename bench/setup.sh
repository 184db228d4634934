#!/usr/bin/env bash
# Makes what `tidegate bench --suite peers-cpu` compares with: bench/.venv with ggml's libraries (libggml-python from
# PyPI), and from it the plugin build/release/libtidegate_peer_ggml.so.
#
#   bench/setup.sh
#
# Where all is there it returns at once. Nothing else of the project needs either of the two.
set -euo pipefail
bench=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
root=$(cd -- "$bench/.." && pwd)
venv=$bench/.venv
build=$root/build/bench
log=$root/build/bench-setup.log
plugin=$root/build/release/libtidegate_peer_ggml.so

# The one place that names the peer's version: ggml 0.20.2. Binaries: CPython on Linux, x86_64 and aarch64.
package=libggml-python==0.20.2.post1

fail() {
    printf 'bench/setup: %s\n' "$@" >&2
    exit 1
}

missing=()
command -v cmake >/dev/null || missing+=(cmake)
command -v ninja >/dev/null || missing+=(ninja-build)
[[ -n ${CXX:-} ]] || command -v c++ >/dev/null || command -v g++ >/dev/null || missing+=(g++)
command -v python3 >/dev/null || missing+=(python3)
if command -v python3 >/dev/null && ! python3 -c 'import venv, ensurepip' 2>/dev/null; then missing+=(python3-venv); fi
(( ${#missing[@]} == 0 )) || fail "needs these first (Debian's names): ${missing[*]}"

mkdir -p "$root/build"

# The path is part of the stamp: a venv does not survive being moved, nor does CMake's cache.
want="$(python3 -V) $package $venv"
if [[ ! -f $venv/stamp || $(<"$venv/stamp") != "$want" ]]; then
    echo "bench/setup: bench/.venv with $package"
    rm -rf -- "$venv" "$build" "$plugin"
    python3 -m venv "$venv" >"$log" 2>&1 </dev/null ||
        fail "python3 cannot make bench/.venv (Debian's package: python3-venv); its output: $log"
    # A binary package or none: building ggml from source takes minutes.
    if ! "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --only-binary :all: "$package" \
            >"$log" 2>&1 </dev/null; then
        tail -n 5 "$log" >&2
        fail "no $package from PyPI: is the network there, and is this a CPython it is published for" \
            "($(python3 -V), $(uname -sm))? All of pip's output: $log" \
            "without it the benchmark skips ggml's rows; nothing else is affected"
    fi
    echo "$want" >"$venv/stamp"
fi

configs=("$venv"/lib*/python3*/site-packages/libggml/lib*/cmake/ggml/ggml*onfig.cmake)
[[ -f ${configs[0]} ]] || fail "$package has no CMake configuration of ggml; remove bench/.venv and try again"
if ! { cmake -S "$bench" -B "$build" -G Ninja -Dggml_DIR="${configs[0]%/*}" && cmake --build "$build"; } \
        >"$log" 2>&1 </dev/null; then
    tail -n 20 "$log" >&2
    fail "the plugin does not build; all of the output: $log"
fi
echo "bench/setup: build/release/${plugin##*/} is ready"
