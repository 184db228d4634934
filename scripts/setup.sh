#!/usr/bin/env bash
# Installs what a script needs and this machine lacks.
#
#   scripts/setup.sh build|test|ci
#
# build: the library and the tool. test: also GoogleTest, RapidCheck, and a Python with numpy and safetensors in
# build/venv. ci: also clang and its tools. Not root: names the missing packages and exits 2. Where all is there it
# returns at once. CUDA and MPI are never asked for.
set -euo pipefail
root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)

# The one list of Debian packages (names of Debian 12).
build_packages=(g++ cmake ninja-build pkg-config libhwy-dev libfmt-dev libcli11-dev nlohmann-json3-dev libxxhash-dev
    libsqlitecpp-dev libsqlite3-dev libpugixml-dev libboost-math-dev)
test_packages=(libgtest-dev librapidcheck-dev python3 python3-venv)
ci_packages=(git clang libclang-rt-14-dev clang-format clang-tidy python3-dev)
# The one list of Python packages.
python_packages=(numpy safetensors)

group=${1:-}
case $group in
    build) packages=("${build_packages[@]}") ;;
    test) packages=("${build_packages[@]}" "${test_packages[@]}") ;;
    ci) packages=("${build_packages[@]}" "${test_packages[@]}" "${ci_packages[@]}") ;;
    *) echo "usage: scripts/setup.sh build|test|ci" >&2; exit 2 ;;
esac

mkdir -p "$root/build"
log=$root/build/setup.log

install_debian() {
    if ! command -v dpkg-query >/dev/null; then
        echo "setup: not a Debian system; going on with what is here. Needed (Debian's names): ${packages[*]}" >&2
        return
    fi
    local package missing=()
    for package in "${packages[@]}"; do
        # db:Status-Status, since `dpkg -s` also succeeds for a package that was removed but left its configuration.
        [[ $(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null) == installed ]] || missing+=("$package")
    done
    (( ${#missing[@]} )) || return 0
    local install="apt-get install -y --no-install-recommends ${missing[*]}"
    if (( EUID != 0 )); then
        printf 'setup: packages are missing. Run this, then try again:\n    sudo %s\n' "$install" >&2
        exit 2
    fi
    echo "setup: $install"
    export DEBIAN_FRONTEND=noninteractive
    if ! { apt-get update && apt-get -o DPkg::Lock::Timeout=120 install -y --no-install-recommends "${missing[@]}"; } \
            >"$log" 2>&1 </dev/null; then
        tail -n 20 "$log" >&2
        echo "setup: apt-get failed; all of its output: $log" >&2
        exit 1
    fi
}

make_venv() {
    local venv=$root/build/venv want
    # The path is part of the stamp: a venv does not survive being moved.
    want="$(python3 -V) ${python_packages[*]} $venv"
    [[ -f $venv/stamp && $(<"$venv/stamp") == "$want" ]] && return
    echo "setup: build/venv with ${python_packages[*]}"
    if { rm -rf -- "$venv" && python3 -m venv "$venv" &&
            "$venv/bin/python" -m pip install --quiet "${python_packages[@]}"; } >"$log" 2>&1 </dev/null; then
        echo "$want" >"$venv/stamp"
        return
    fi
    tail -n 5 "$log" >&2
    echo "setup: no ${python_packages[*]} from PyPI; all of pip's output: $log" >&2
    # A developer's tests go on, and CMake says which were left out; CI must not pass with less than all of them.
    [[ $group != ci ]] || exit 1
    echo "setup: going on; the tests that need Python are left out" >&2
}

install_debian
[[ $group == build ]] || make_venv
