#!/usr/bin/env bash
# Gathers what a GPU machine needs, which has only the driver and common system libraries: the tool built with CUDA, the
# tests that use the device, and the shared libraries of theirs that such a machine lacks, in build/bundle.
#
#   scripts/bundle.sh            (needs nvcc; CUDACXX names it, default /usr/local/cuda/bin/nvcc)
set -euo pipefail
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."
scripts/setup.sh test
export CUDACXX=${CUDACXX:-/usr/local/cuda/bin/nvcc}
[[ -x $CUDACXX ]] || { echo "bundle: no nvcc at $CUDACXX" >&2; exit 2; }
cmake -S . -B build/cuda -G Ninja -DCMAKE_BUILD_TYPE=Release -DTIDEGATE_CUDA=ON -DTIDEGATE_TESTS=ON \
    '-DCMAKE_BUILD_RPATH=$ORIGIN' >build/bundle.log
cmake --build build/cuda --target tidegate_cli cuda_test >>build/bundle.log 2>&1 || { tail -n 40 build/bundle.log >&2; exit 1; }
rm -rf build/bundle
mkdir -p build/bundle
cp build/cuda/tidegate build/cuda/tests/cuda_test build/bundle/
for library in libhwy.so.1 libxxhash.so.0 libsqlite3.so.0 libpugixml.so.1; do
    found=$(ldd build/cuda/tidegate | awk -v name="$library" '$1 == name { print $3 }')
    [[ -z $found ]] || cp -L -- "$found" build/bundle/
done
strip build/bundle/tidegate build/bundle/cuda_test
du -sh build/bundle
