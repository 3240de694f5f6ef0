#!/usr/bin/env bash
# Makes gpu-check.tar.gz: gpu-check.sh, its programs and the few libraries they need, for a machine with a GPU, a driver
# and CUDA 13, but without MPI, HDF5 or a network. CUDA's own libraries are taken from that machine.
#   ./launch/gpu-bundle.sh [ARCHITECTURES, default 90a]      then there: tar xf gpu-check.tar.gz && gpu-check/gpu-check.sh
set -euo pipefail
case "${1:-}" in -h | --help) sed -n '2,4s/^# *//p' "$0"; exit 0 ;; esac
source "$(dirname "$0")/setup.sh"
limit_mib=60
install_packages
find_cuda || fail "no CUDA 13 toolkit: put its nvcc on the PATH or install it under /usr/local/cuda"
cmake_options=-DKEEL_CUDA_ARCHITECTURES=${1:-90a} build cuda device_tests
bundle=$(mktemp -d)/gpu-check
mkdir -p "$bundle/bin" "$bundle/lib" "$bundle/compiler"
cp launch/gpu-check.sh "$bundle/"
find build-cuda/tests/framework/ops build-cuda/tests/framework/tensor build-cuda/tests/cuda build-cuda/launch -maxdepth 1 -type f \
  -perm -u+x \( -name 'test_ops_*' -o -name test_tensor_device -o -name test_device_api -o -name gpu_check \) \
  -exec cp {} "$bundle/bin/" \;
strip "$bundle"/bin/*
# The C library and what belongs to the driver or to CUDA stay out.
for program in "$bundle"/bin/*; do ldd "$program"; done | awk '$3 ~ "^/" {print $3}' | sort -u |
  grep -vE '/(ld-linux[^/]*|libc|libm|libdl|librt|libpthread)\.so|libcu|libnv|libnccl' | xargs -I{} cp -L {} "$bundle/lib/"
for file in "$bundle"/bin/* "$bundle"/lib/*; do
  absent=$(readelf -d "$file" | sed -nE '/NEEDED/s/.*\[(lib(nccl|mpi|hdf5)[^]]*)\]/\1/p' | head -1)
  [ -z "$absent" ] || fail "$(basename "$file") needs $absent, which the bundle does not carry: link that program without it"
done
# The compiler's libraries want a newer C library than all the rest; where the host's is too old for them, gpu-check.sh
# takes the host's own.
mv "$bundle"/lib/libstdc++.so* "$bundle"/lib/libgcc_s.so* "$bundle/compiler/"
newest() { for f in "$@"; do objdump -T "$f"; done | grep -oE 'GLIBC_2\.[0-9]+' | sort -uV | tail -1 | sed s/.*_//; }
{
  echo "needs_glibc=$(newest "$bundle"/bin/* "$bundle"/lib/*)"
  echo "compiler_needs_glibc=$(newest "$bundle"/compiler/*)"
} >"$bundle/needs"
mkdir "$bundle/golden"
cp tests/golden/adamw.json tests/golden/qk_norm.json "$bundle/golden/"
tar -C "$(dirname "$bundle")" -czf gpu-check.tar.gz gpu-check
size_mib=$(($(stat -c %s gpu-check.tar.gz) >> 20))
say "gpu-check.tar.gz: $size_mib MiB," $(cat "$bundle/needs")
rm -rf "$(dirname "$bundle")"
[ "$size_mib" -lt "$limit_mib" ] || fail "gpu-check.tar.gz has $size_mib MiB, more than $limit_mib"
