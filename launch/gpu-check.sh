#!/usr/bin/env bash
# Checks and measures Keel on the first GPU of this machine: the device tests against the double references, products,
# single passes, and training steps of a 124M and a 1B model. Needs a driver and CUDA 13's libraries, nothing else.
#   ./gpu-check.sh [--small] [--out FILE]      in a bundle that launch/gpu-bundle.sh made
#   ./launch/gpu-check.sh --build build-cuda   from a build; build-cuda-host with --small needs no GPU
# Writes JSON (gpu-check.json) and ends with 0 where every test passed and every model learned. Under 8 minutes.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
build="" out=gpu-check.json small=""
while [ $# -gt 0 ]; do
  case "$1" in
    -h | --help) sed -n '2,6s/^# *//p' "$0"; exit 0 ;;
    --build) build=$2; shift 2 ;;
    --out) out=$2; shift 2 ;;
    --small) small=--small; shift ;;
    *) echo "!! unknown option $1: see --help" >&2; exit 2 ;;
  esac
done
if [ -n "$build" ]; then
  tests=$(find "$build/tests/framework/ops" "$build/tests/framework/tensor" "$build/tests/cuda" -maxdepth 1 -type f \
          -name 'test_*' -perm -u+x | grep -E '/test_(ops_|tensor_device|device_api)' | sort)
  check="$build/launch/gpu_check"
else
  tests=$(ls "$here"/bin/test_*) check="$here/bin/gpu_check"
  export KEEL_GOLDEN_DIR="$here/golden"
  cuda=${CUDA_HOME:-/usr/local/cuda}
  export LD_LIBRARY_PATH="$here/lib:$cuda/lib64:$cuda/targets/x86_64-linux/lib:${LD_LIBRARY_PATH:-}"
fi
[ -x "$check" ] || { echo "!! $check is missing: build the target device_tests, or unpack a bundle" >&2; exit 2; }

results=$(mktemp) failed=0
trap 'rm -f "$results"' EXIT
export KEEL_TEST_DEVICE=cuda OMP_WAIT_POLICY=passive
for test in $tests; do
  begin=$(date +%s.%N) code=0
  timeout 120 "$test" >"$results.log" 2>&1 || code=$?
  seconds=$(echo "$begin $(date +%s.%N)" | awk '{printf "%.1f", $2 - $1}')
  echo "$(basename "$test") $code $seconds" >>"$results"
  echo "== $(basename "$test"): $([ $code = 0 ] && echo passed || echo "FAILED ($code)") in $seconds s"
  [ $code = 0 ] || { failed=1; grep -E "Failure|error|what|FAILED" "$results.log" | head -20 >&2 || true; }
done
rm -f "$results.log"
"$check" $small --tests "$results" --out "$out"
exit $failed
