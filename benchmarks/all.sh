#!/bin/sh
# All figures of docs/benchmarks.md, in about ten minutes on 2 quiet cores.
#
#     benchmarks/all.sh [PYTHON]                    PYTHON: an interpreter with unilab (default: .venv/bin/python)
#     SBX_PYTHON=sbx/bin/python benchmarks/all.sh   ... and SBX beside it, from an interpreter that has sbx-rl
set -eu
cd "$(dirname "$0")/.."
python=${1:-.venv/bin/python}
out=docs/benchmarks
five="HalfCheetah-v5 Hopper-v5 Walker2d-v5 Ant-v5 Humanoid-v5"
sbx=${SBX_PYTHON:+--sbx-python $SBX_PYTHON}
mkdir -p $out

bench() { # NAME VERB FLAGS...: figures into NAME.json and NAME.png
    name=$1
    shift
    echo "unilab bench $*"
    "$python" -m unilab bench "$@" --json $out/"$name".json --plot $out/"$name".png
}

# shellcheck disable=SC2086  # lists are lists
{
    bench physics physics --tasks $five --backends mujoco mjbatch mujoco-uni motrixsim --seconds 0.3
    bench physics-all physics --num-envs 64 --seconds 0.3
    bench env env --tasks $five --num-envs 64 256 1024 --backends mujoco envpool envpool-async --seconds 0.3
    bench gymnasium env --tasks $five --num-envs 64 --backends mujoco gymnasium-sync gymnasium-async --seconds 0.3
    bench backends env --backends mujoco mjbatch mujoco-uni --seconds 0.3
    bench collect collect Go1JoystickFlat --num-envs 1024
    bench scaling scaling --physics-us 20
    bench learner learner --updates-per-env-step 1 8 --num-envs 4 $sbx
    bench train train --num-envs 32 $sbx
    bench incline incline
}
"$python" benchmarks/tables.py docs/benchmarks.md
