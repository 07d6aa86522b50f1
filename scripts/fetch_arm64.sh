#!/usr/bin/env bash
# fetch_arm64.sh FOLDER PACKAGE...
#
# Unpacks Debian packages of the architecture arm64 into FOLDER, to cross-compile against. apt keeps
# its lists below FOLDER meanwhile: the system's packages and architectures stay as they are, and
# root is not needed.
set -euo pipefail

root=$1
shift
for tool in apt-get dpkg-deb; do
  command -v "$tool" >/dev/null || { echo "fetch_arm64.sh: expected $tool, got none" >&2; exit 1; }
done

rm -rf "$root"
mkdir -p "$root"/apt/{debs,state/lists/partial,cache/archives/partial}
apt=$(cd "$root/apt" && pwd)
touch "$apt/status"
run_apt() {
  apt-get -qq -o APT::Architecture=arm64 -o APT::Architectures=arm64 -o APT::Sandbox::User=root \
    -o Dir::State="$apt/state" -o Dir::State::status="$apt/status" -o Dir::Cache="$apt/cache" "$@"
}
run_apt update
(cd "$apt/debs" && run_apt download "$@")
for deb in "$apt"/debs/*.deb; do dpkg-deb -x "$deb" "$root"; done
rm -rf "$apt"
