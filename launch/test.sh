#!/usr/bin/env bash
# Installs what is missing, builds everything and runs the whole test suite. Safe to run twice.
#   ./launch/test.sh [ctest options, such as -R golden]
set -euo pipefail
case "${1:-}" in -h | --help) sed -n '2,3s/^# *//p' "$0"; exit 0 ;; esac
source "$(dirname "$0")/setup.sh"

begin=$SECONDS
install_packages
build ci
say "testing"
ctest --test-dir build-ci --output-on-failure -j"$(nproc)" "$@" | grep -vE '^ +Start ' || fail "some tests failed: see above"
say "built and tested in $(((SECONDS - begin) / 60))m$(((SECONDS - begin) % 60))s"
