#!/usr/bin/env bash
# Installs what is missing, builds everything and runs the whole test suite. Safe to run twice. Where a CUDA 13 toolkit
# is found, the GPU sources are compiled for sm_90a, and executed on the CPU by the device tests; no GPU is needed.
#   ./launch/test.sh [ctest options, such as -R golden]
# KEEL_NEEDS_CUDA=1 makes a missing toolkit a failure instead of a skip, KEEL_NEEDS_NAMESPACES=1 a machine that does
# not allow network namespaces, of which the test of two hosts makes its hosts.
set -euo pipefail
case "${1:-}" in -h | --help) sed -n '2,7s/^# *//p' "$0"; exit 0 ;; esac
source "$(dirname "$0")/setup.sh"

# run_tests PRESET [ctest options]
run_tests() {
  local preset=$1
  shift
  say "testing (preset $preset)"
  # More at a time than there are cores: ranks wait for one another, and for what is interfered with, more than they work.
  local log=build-$preset/Testing/Temporary/LastTest.log output=build-$preset/tests.log
  ctest --test-dir "build-$preset" --output-on-failure -j"$((3 * $(nproc)))" "$@" | tee "$output" | grep --line-buffered -vE '^ +Start ' ||
    fail "some tests failed: see above"
  # Single cases of the programs, and programs that are left out as a whole.
  passed=$((passed + $(grep -cE '\[       OK \]' "$log" || true)))
  skipped=$((skipped + $(grep -cE '\[  SKIPPED \] .*\([0-9]+ ms\)' "$log" || true)))
  skipped=$((skipped + $(grep -cF '***Skipped' "$output" || true)))
}

begin=$SECONDS skipped=0 passed=0
install_packages
build ci
run_tests ci "$@"
if find_cuda; then
  build cuda-host device_tests
  run_tests cuda-host -L device "$@"
  cmake_options=-DKEEL_CUDA_ARCHITECTURES=90a build cuda device_tests
  run_tests cuda -L resources "$@"
elif [ "${KEEL_NEEDS_CUDA:-0}" = 1 ]; then
  fail "no CUDA 13 toolkit: put its nvcc on the PATH or install it under /usr/local/cuda"
else
  say "skipped: the GPU sources, since there is no CUDA 13 toolkit (nvcc on the PATH or under /usr/local/cuda)"
  skipped=$((skipped + 1))
fi
say "built and tested in $(((SECONDS - begin) / 60))m$(((SECONDS - begin) % 60))s: $passed cases passed, $skipped skipped"
