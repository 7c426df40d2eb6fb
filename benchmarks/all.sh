#!/bin/sh
# The figures of docs/benchmarks.md, the most important ones first; it tells how long each command takes.
#
#     benchmarks/all.sh [PYTHON]                    PYTHON: an interpreter with unilab (default: .venv/bin/python)
#     SBX_PYTHON=sbx/bin/python benchmarks/all.sh   ... and SBX beside it, from an interpreter that has sbx-rl
#     ENVPOOL_MUJOCO_PYTHON=old/bin/python ...      ... and EnvPool's own limit, from one that has mujoco 3.6.0
#     FULL=1 benchmarks/all.sh                      ... and the tables of physics, collecting, other back ends
set -eu
cd "$(dirname "$0")/.."
python=${1:-.venv/bin/python}
out=docs/benchmarks
five="HalfCheetah-v5 Hopper-v5 Walker2d-v5 Ant-v5 Humanoid-v5"
sbx=${SBX_PYTHON:+--sbx-python $SBX_PYTHON}
old=${ENVPOOL_MUJOCO_PYTHON:+--envpool-mujoco-python $ENVPOOL_MUJOCO_PYTHON}
mkdir -p $out

bench() { # NAME VERB FLAGS...: figures into NAME.json and NAME.png
    name=$1
    shift
    echo "unilab bench $*"
    began=$(date +%s)
    "$python" -m unilab bench "$@" --json $out/"$name".json --plot $out/"$name".png
    echo "$name took $(($(date +%s) - began)) s"
}

# shellcheck disable=SC2086  # lists are lists
{
    for envs in 256 1024 64; do
        bench env-$envs env --tasks $five --num-envs $envs --backends mujoco mjbatch envpool envpool-async $old \
            --seconds 0.3
    done
    bench scaling scaling --physics-us 20 --stub-workers 16 64 --seconds 0.3 --repeats 3
    bench learner learner --algo sac --updates-per-env-step 1 8 --num-envs 4 --repeats 3 $sbx
    bench train train --num-envs 32 --repeats 3 $sbx
    bench gymnasium env --tasks $five --num-envs 64 256 --backends mujoco gymnasium-sync gymnasium-async --seconds 0.3 --repeats 3
    bench incline incline
    if [ -n "${FULL:-}" ]; then
        bench physics physics --tasks $five --backends mujoco mjbatch mujoco-uni motrixsim --seconds 0.3
        bench physics-all physics --num-envs 64 --seconds 0.3
        bench gymnasium-1024 env --tasks $five --num-envs 1024 --backends mujoco gymnasium-sync --seconds 0.3 --repeats 3
        bench backends env --backends mujoco mjbatch mujoco-uni --seconds 0.3
        bench collect collect Go1JoystickFlat --num-envs 1024
    fi
}
"$python" benchmarks/tables.py docs/benchmarks.md
