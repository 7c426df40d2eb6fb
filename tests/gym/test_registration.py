from __future__ import annotations

import subprocess
import sys

import gymnasium
import pytest

import unilab
from unilab.gym.registration import env_id

NAMES = "print(sorted(name for name in gymnasium.registry if name.startswith('unilab/')))"


@pytest.mark.parametrize("order", [("unilab", "gymnasium"), ("gymnasium", "unilab")])
def test_tasks_are_registered_in_either_order_of_imports(order: tuple[str, str]) -> None:
    """`import unilab` registers every task, also if gymnasium is imported later; it loads neither that nor jax."""
    lines = [f"import {order[0]}", "import sys", "print(sorted({'gymnasium', 'jax', 'numpy'} & set(sys.modules)))"]
    code = "\n".join([*lines, f"import {order[1]}", "print('jax' in sys.modules)", NAMES])
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True)
    loaded, has_jax, names = done.stdout.splitlines()
    assert has_jax == "False"
    assert loaded == ("[]" if order[0] == "unilab" else "['gymnasium', 'numpy']")
    assert names == str(sorted(env_id(name) for name in unilab.TASKS))
    assert done.stderr == ""


def test_names_and_time_limits() -> None:
    """Ours are versions 0, the standard suite keeps its versions; time limits are the tasks' own."""
    assert env_id("Go1JoystickFlat") == "unilab/Go1JoystickFlat-v0"
    assert env_id("HalfCheetah-v5") == "unilab/HalfCheetah-v5"
    for name, entry in unilab.TASKS.items():
        spec = gymnasium.spec(env_id(name))
        assert spec.max_episode_steps == entry.episode_steps == unilab.envs.registry.find_task(name)().episode_steps
