#!/usr/bin/env bash
# timed.sh TARGET... [-- BACKGROUND_TARGET...]
#
# Makes one target after the other and prints how long each took. Those behind `--` are made beside
# them (downloads beside compilation) once the first two are there, and have ended before the last
# one begins: the first two must have filled what both sides would write, such as .venv's tools.
set -euo pipefail

make=${MAKE:-make}
targets=()
while (($# > 0)) && [[ $1 != -- ]]; do
  targets+=("$1")
  shift
done
(($# == 0)) || shift

background=
log=$(mktemp)
finish() {
  [[ -z $background ]] || kill "$background" 2>/dev/null || true
  rm -f "$log"
}
trap finish EXIT

lines=()
start=$SECONDS
for index in "${!targets[@]}"; do
  target=${targets[index]}
  begin=$SECONDS
  if ((index == ${#targets[@]} - 1)) && [[ -n $background ]]; then
    wait "$background" || { cat "$log"; exit 1; }
    background=
    lines+=("$(printf '%6d s  waiting for: %s' $((SECONDS - begin)) "$*")")
    begin=$SECONDS
  fi
  "$make" "$target"
  lines+=("$(printf '%6d s  %s' $((SECONDS - begin)) "$target")")
  if ((index == 1 && $# > 0)); then
    "$make" "$@" >"$log" 2>&1 &
    background=$!
  fi
done
printf '%s\n' "time by target" "${lines[@]}"
printf '%6d s  in all\n' $((SECONDS - start))
