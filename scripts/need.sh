#!/usr/bin/env bash
# need.sh PACKAGE...
#
# Makes sure that what these Debian packages bring is there, from wherever it came. What is missing
# is installed when this runs as root on a machine with apt-get, and named otherwise.
set -euo pipefail

python=${PYTHON:-python3}
cxx=${CXX:-c++}

has_header() {
  echo "#include <$1>" | "$cxx" -std=c++20 -E -x c++ - -o /dev/null
}

has() {
  case $1 in
    make) command -v make ;;
    g++) command -v "$cxx" ;;
    valgrind) command -v valgrind ;;
    pkg-config) command -v pkg-config || command -v pkgconf ;;
    python3-venv) "$python" -c 'import ensurepip, venv' ;;
    python3-dev)
      "$python" -c 'import os, sysconfig
os.stat(os.path.join(sysconfig.get_path("include"), "Python.h"))'
      ;;
    libgtest-dev) has_header gtest/gtest.h ;;
    librapidcheck-dev) has_header rapidcheck.h ;;
    libbenchmark-dev) has_header benchmark/benchmark.h ;;
    libsimde-dev) has_header simde/x86/avx512.h ;;
    g++-aarch64-linux-gnu) command -v aarch64-linux-gnu-g++ ;;
    clang) command -v clang++ ;;
    clang-tidy) command -v clang-tidy ;;
    qemu-user) command -v qemu-x86_64 && command -v qemu-aarch64 ;;
    *)
      echo "need.sh: expected a package that it knows, got $1" >&2
      exit 2
      ;;
  esac >/dev/null 2>&1
}

find_missing() {
  missing=()
  for package in "$@"; do
    has "$package" || missing+=("$package")
  done
}

find_missing "$@"
if ((${#missing[@]} > 0)) && ((EUID == 0)) && command -v apt-get >/dev/null; then
  echo "installing ${missing[*]}"
  export DEBIAN_FRONTEND=noninteractive
  apt-get update -qq
  apt-get install -qq -y --no-install-recommends "${missing[@]}" >/dev/null
  find_missing "$@"
fi
if ((${#missing[@]} > 0)); then
  echo "missing: ${missing[*]} (names of Debian packages; install these or their like)" >&2
  exit 1
fi
