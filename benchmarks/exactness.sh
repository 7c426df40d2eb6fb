#!/usr/bin/env bash
# The digest of a few iterations, whatever the workers, the order of jobs and the cores: all lines of a lag must agree.
#     benchmarks/exactness.sh Go1JoystickFlat
set -euo pipefail
task=${1:-Go1JoystickFlat}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

digest() { # name, then the command
  local name=$1
  shift
  "$@" --digest --quiet --steps 60000 --eval-episodes 8 --out "$folder/$name" >/dev/null
  printf '%-28s %s\n' "$name" "$(python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["digest"])' "$folder/$name/summary.json")"
}

for workers in 0 1 2 3; do digest "lag0-workers-$workers" unilab train "$task" --lag 0 --workers "$workers"; done
digest lag0-shuffled unilab train "$task" --lag 0 --workers 2 --job-order shuffled
command -v taskset >/dev/null && digest lag0-one-core taskset -c 0 unilab train "$task" --lag 0
digest lag1-first unilab train "$task" --lag 1
digest lag1-second unilab train "$task" --lag 1 --workers 3
