# Shared by quickstart.sh and test.sh: installs what is missing and builds. Sourced, not run.
# Every function says what it does and ends with a sentence that says what to do where it cannot.

cd "$(dirname "${BASH_SOURCE[0]}")/.."

packages="g++ cmake ninja-build git ca-certificates python3 python3-numpy python3-h5py python3-yaml bzip2
  openmpi-bin libopenmpi-dev libhdf5-openmpi-dev hdf5-tools libyaml-cpp-dev libdnnl-dev libhwy-dev libsentencepiece-dev
  libcli11-dev nlohmann-json3-dev libfmt-dev libgtest-dev libgmock-dev libbenchmark-dev ccache
  libboost-dev libboost-context-dev libicu-dev gnuplot-nox iproute2 procps"

say() { printf '== %s\n' "$*"; }
fail() { printf '!! %s\n' "$*" >&2; exit 1; }

# Open MPI refuses root and more ranks than cores unless told otherwise.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_hwloc_base_binding_policy=none

as_root() {
  if [ "$(id -u)" = 0 ]; then "$@"; elif command -v sudo >/dev/null; then sudo "$@"; else
    fail "installing packages needs root: run this as root, install sudo, or install by hand: $packages"
  fi
}

install_packages() {
  command -v dpkg-query >/dev/null || fail "this script knows Debian and Ubuntu; elsewhere install what README lists under Dependencies"
  local missing=""
  for package in $packages; do
    dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing="$missing $package"
  done
  [ -z "$missing" ] && return
  say "installing$missing"
  as_root apt-get update -qq || fail "apt-get update failed: is there a network, and are the package sources right?"
  # shellcheck disable=SC2086
  as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing >/dev/null ||
    fail "apt-get install failed: its own message is above"
}

# Whether there is a CUDA 13 toolkit; CMake then finds it too.
find_cuda() {
  local nvcc
  nvcc=$(command -v nvcc || command -v /usr/local/cuda/bin/nvcc) || return 1
  "$nvcc" --version | grep -q "release 1[3-9]" || return 1
  export CUDACXX=$nvcc
}

# build PRESET [target...]; $cmake_options go to cmake.
build() {
  local preset=$1
  shift
  say "building (preset $preset) in build-$preset"
  cmake --preset "$preset" ${cmake_options:-} >"build-$preset.log" 2>&1 || { cat "build-$preset.log" >&2; fail "cmake failed: see above"; }
  cmake --build "build-$preset" -j"$(nproc)" ${1:+--target "$@"} >>"build-$preset.log" 2>&1 ||
    { grep -aE "error|FAILED" "build-$preset.log" | head -40 >&2; fail "the build failed: all of it is in build-$preset.log"; }
}
