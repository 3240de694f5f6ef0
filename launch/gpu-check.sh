#!/usr/bin/env bash
# Checks and measures Keel on the first GPU of this machine: the device tests against the double references, products,
# single passes, and training steps of a small model beside the CPU's, a 124M and a 1B one.
#   ./gpu-check.sh [--out FILE] [--results FILE.tgz]   in a bundle that launch/gpu-bundle.sh made
#   ./launch/gpu-check.sh --build build-cuda           from a build; build-cuda-host with --small needs no GPU
# Needs a driver and CUDA 13's libraries. Writes JSON (gpu-check.json) after each part, and beside it the log of each
# test (gpu-check-logs/); --results packs both into one file at the end, however that comes. Ends with 0 where
# everything was done and is right. After --deadline 480 seconds it is over, a test after --test-limit 120; what was
# left out is named.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
build="" out=gpu-check.json results="" options=() deadline=480 of_a_test=120
while [ $# -gt 0 ]; do
  case "$1" in
    -h | --help) sed -n '2,10s/^# *//p' "$0"; exit 0 ;;
    --build) build=$2; shift 2 ;;
    --out) out=$2; shift 2 ;;
    --results) results=$2; shift 2 ;;
    --deadline) deadline=$2; shift 2 ;;
    --small) options+=(--small); shift ;;
    --test-limit) of_a_test=$2; shift 2 ;;
    --steps) options+=(--steps "$2"); shift 2 ;;
    *) echo "!! unknown option $1: see --help" >&2; exit 2 ;;
  esac
done
[ ! -d "$out" ] || { echo "!! --out $out: a folder; name the file that the results go to" >&2; exit 2; }
# CUDA 13's libraries: as CUDA_HOME says, where toolkits install themselves, beside nvcc, in pip's packages.
cuda_folders() {
  local nvcc root
  nvcc=$(readlink -f "$(command -v nvcc)" || true)
  for root in "${CUDA_HOME:-/usr/local/cuda}" /usr/local/cuda-13* ${nvcc:+"${nvcc%/bin/nvcc}"}; do
    printf '%s\n' "$root/lib64" "$root/lib" "$root/targets/x86_64-linux/lib"
  done
  python3 -c 'import nvidia; [print(path + "/cu13/lib") for path in nvidia.__path__]' 2>/dev/null || true
}
# What there is for one who cannot carry many files away.
pack() {
  local folder=$(dirname "$out") packed=() one
  for one in "$out" "$logs"; do [ ! -e "$one" ] || packed+=("$(basename "$one")"); done
  tar -czf "$results" -C "$folder" "${packed[@]}" &&
    echo "== packed: $results, $(($(stat -c %s "$results") >> 10)) KiB" ||
    echo "!! $results could not be written; the results are $out and $logs" >&2
}
case "$deadline" in '' | *[!0-9]*) echo "!! --deadline $deadline: whole seconds are wanted" >&2; exit 2 ;; esac
[ -z "$results" ] || [ -d "$(dirname "$results")" ] ||
  { echo "!! --results $results: the folder is missing" >&2; exit 2; }
if [ -n "$build" ]; then
  tests=$(find "$build/tests/framework/ops" "$build/tests/framework/tensor" "$build/tests/cuda" -maxdepth 1 -type f \
          -name 'test_*' -perm -u+x | grep -E '/test_(ops_|tensor_device|device_api)' | sort) ||
    { echo "!! $build has no device tests: build the target device_tests there" >&2; exit 2; }
  check="$build/launch/gpu_check"
else
  tests=$(ls "$here"/bin/test_*) check="$here/bin/gpu_check"
  export KEEL_GOLDEN_DIR="$here/golden"
  export LD_LIBRARY_PATH="$here/lib:$(cuda_folders | tr '\n' ':')${LD_LIBRARY_PATH:-}"
  # The bundle's libstdc++ and libgcc want a C library as new as where it was made; older hosts take their own.
  source "$here/needs"
  glibc=$(getconf GNU_LIBC_VERSION | awk '{print $2}')
  echo "== glibc here is $glibc; the programs need $needs_glibc, the bundle's libstdc++ $compiler_needs_glibc"
  [ "$(printf '%s\n' "$compiler_needs_glibc" "$glibc" | sort -V | head -1)" != "$compiler_needs_glibc" ] ||
    export LD_LIBRARY_PATH="$here/compiler:$LD_LIBRARY_PATH"
fi
[ -x "$check" ] || { echo "!! $check is missing: build the target device_tests, or unpack a bundle" >&2; exit 2; }
"$check" --help >/dev/null || {
  echo "!! gpu_check does not start here, for the reason above: with a GLIBC or GLIBCXX in it, make the bundle" \
       "on a system as old as this or run it in a container of Debian 12; else set CUDA_HOME to CUDA 13, of which" \
       "libcublasLt.so.13 was looked for in" $(cuda_folders) >&2
  exit 2
}
export KEEL_TEST_DEVICE=cuda OMP_WAIT_POLICY=passive
timeout 60 "$check" --look || { echo "!! no usable GPU, for the reason above" >&2; exit 2; }

logs="${out%.json}-logs"
rm -rf -- "$logs" && rm -f -- "$out"  # of an earlier start
mkdir -p "$logs"
[ -z "$results" ] || trap pack EXIT
touch "$logs/results" "$logs/left_out"
left() { echo $((deadline - SECONDS)); }
failed=0
for test in $tests; do
  name=$(basename "$test") code=0
  limit=$(($(left) - deadline * 2 / 5))  # the rest belongs to what follows
  if [ "$limit" -lt 1 ]; then
    echo "== $name: left out, too late"
    echo "$name" >>"$logs/left_out"
    failed=1
    continue
  fi
  begin=$(date +%s.%N)
  [ "$limit" -lt "$of_a_test" ] || limit=$of_a_test
  timeout -k 5 "$limit" "$test" "--gtest_output=json:$logs/$name.json" >"$logs/$name.log" 2>&1 || code=$?
  seconds=$(echo "$begin $(date +%s.%N)" | awk '{printf "%.1f", $2 - $1}')
  echo "$name $code $seconds" >>"$logs/results"
  echo "== $name: $([ $code = 0 ] && echo passed || echo "FAILED ($code)") in $seconds s"
  [ $code = 0 ] || { failed=1; tail -n 40 "$logs/$name.log" >&2; }
done
# No part begins in the last fifth, none outlasts it; where time is up, what is known is still written.
limit=$(left) code=0
[ "$limit" -ge 0 ] || limit=0
most=$((limit > 15 ? limit : 15))
timeout -k 5 "$most" "$check" "${options[@]}" --tests "$logs" --out "$out" --limit $((limit * 4 / 5)) || code=$?
[ $code = 0 ] || failed=1
if [ ! -f "$out" ]; then
  echo "!! ended ($code) before $out was written; the tests' logs are in $logs" >&2
  exit 1
fi
part=$(sed -n 's/^  "at": "\(.*\)",\{0,1\}$/\1/p' "$out")
[ -z "$part" ] || echo "!! ended ($code) in the part '$part', after at most $most s: $out has what was known before" >&2
exit $failed
