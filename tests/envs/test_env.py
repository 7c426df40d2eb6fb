from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest
from tiny import FREE, SLIDER, Rollouts, Slider

from unilab.envs.env import Columns, Env
from unilab.envs.task import Mirror, ModelNames, Physics

MISSPELT = SLIDER.replace('joint="rail" gear', 'joint="rial" gear')
SLEEPY = SLIDER.replace('<option timestep="0.01"/>', '<option timestep="0.01"><flag sleep="enable"/></option>')


def slider_with(**methods: Callable[..., Any]) -> type[Slider]:
    """A subclass of Slider with other methods."""
    return type("Broken", (Slider,), methods)


def reset_with(qpos: int = 1, qvel: int = 1) -> Callable[..., Any]:
    def reset(self: Slider, key: Any, curriculum: Any, randomised: Any) -> Any:
        return jnp.zeros(qpos), jnp.zeros(qvel), Slider.reset(self, key, curriculum, randomised)[2]

    return reset


def advance_with(change: Callable[..., Any]) -> Callable[..., Any]:
    def advance(self: Slider, *args: Any) -> Any:
        return change(*Slider.advance(self, *args))

    return advance


CONTRACT = {
    "qpos": (slider_with(reset=reset_with(qpos=2))(), r"Broken.reset\(\) qpos has shape \(2,\), expected \(1,\)"),
    "qvel": (slider_with(reset=reset_with(qvel=3))(), r"Broken.reset\(\) qvel has shape \(3,\), expected \(1,\)"),
    "missing weight": (Slider(rewards={"middle": 1.0}), r"terms without a weight: \['effort'\]"),
    "unknown weight": (
        Slider(rewards={"middle": 1.0, "effort": 1.0, "efort": 2.0}),
        r"weights without a term: \['efort'\]",
    ),
    "reward shape": (
        slider_with(advance=advance_with(lambda s, r, t, m: (s, r | {"effort": jnp.zeros(2)}, t, m)))(),
        r"reward term 'effort' has shape \(2,\), expected \(\)",
    ),
    "state shape": (
        slider_with(advance=advance_with(lambda s, r, t, m: (s._replace(wind=jnp.zeros(2)), r, t, m)))(),
        "state of other keys, shapes or dtypes",
    ),
    "state dtype": (
        slider_with(advance=advance_with(lambda s, r, t, m: (s._replace(steps=jnp.float32(0)), r, t, m)))(),
        "state of other keys, shapes or dtypes",
    ),
    "state keys": (
        slider_with(advance=advance_with(lambda s, r, t, m: ({"wind": s.wind}, r, t, m)))(),
        "state of other keys, shapes or dtypes",
    ),
    "terminated shape": (
        slider_with(advance=advance_with(lambda s, r, t, m: (s, r, jnp.zeros(1, bool), m)))(),
        r"terminated has shape \(1,\), expected \(\)",
    ),
    "control key": (
        slider_with(control=lambda self, state, action: {"ctrl": action, "force": action})(),
        r"control\(\) returned 'force'; allowed are \['ctrl', 'qvel_kick', 'xfrc_applied'\]",
    ),
    "control shape": (
        slider_with(control=lambda self, state, action: {"ctrl": jnp.zeros(2)})(),
        r"control\(\) ctrl has shape \(2,\), expected \(1,\)",
    ),
    "randomised name": (
        slider_with(randomise=lambda self, key, nominal: {"body_weight": jnp.zeros(2)})(),
        r"randomise\(\) returned 'body_weight', which is not",
    ),
    "randomised shape": (
        slider_with(randomise=lambda self, key, nominal: {"body_mass": jnp.zeros(1)})(),
        r"randomise\(\) body_mass has shape \(1,\), expected \(2,\)",
    ),
    "no actor": (
        slider_with(observe=lambda self, state, physics, key: {"critic": physics.qpos})(),
        r"observe\(\) returned \['critic'\]; allowed are 'actor'",
    ),
    "unknown group": (
        slider_with(observe=lambda self, state, physics, key: {"actor": physics.qpos, "policy": physics.qpos})(),
        r"observe\(\) returned \['actor', 'policy'\]",
    ),
    "empty observation": (
        slider_with(observe=lambda self, state, physics, key: {"actor": jnp.zeros(0)})(),
        r"observe\(\) 'actor' has shape \(0,\)",
    ),
    "scalar observation": (
        slider_with(observe=lambda self, state, physics, key: {"actor": physics.qpos[0]})(),
        r"observe\(\) 'actor' has shape \(\)",
    ),
    "control step": (Slider(control_dt=0.025), "control_dt 0.025 s is not a multiple of the physics step 0.01 s"),
    "control step too short": (Slider(control_dt=0.004), "control_dt 0.004 s is not a multiple"),
    "sleep": (
        slider_with(model=lambda self, fine=False: mujoco.MjSpec.from_string(SLEEPY))(),
        r"Broken.model\(\) enables sleep",
    ),
    "no action": (slider_with(action_size=lambda self, model: 0)(), "Broken has 0 actions; a task needs at least one"),
    "model": (
        slider_with(model=lambda self, fine=False: mujoco.MjSpec.from_string(MISSPELT))(),
        r"Broken.model\(\) does not compile: .*rial",
    ),
    "field": (type("Broken", (Slider,), {"fields": ("qpos", "contact")})(), "field 'contact' cannot be read"),
}  # fmt: skip


@pytest.mark.parametrize("case", CONTRACT)
def test_a_broken_task_is_named(case: str) -> None:
    """A task that breaks the contract is refused before anything runs, with what is wrong and what was expected."""
    task, message = CONTRACT[case]
    with pytest.raises((ValueError, TypeError), match=message):
        Env(task)


def test_a_missing_method_is_named() -> None:
    """A task without one of the methods says which it must define."""
    from unilab.envs.task import Task

    task = type("Bare", (Task,), {"model": Slider.model})()
    with pytest.raises(NotImplementedError, match=r"Bare must define reset\(\)"):
        Env(task)


def test_physics_lists_the_declared_fields() -> None:
    """Reading a field that the task does not declare names those that it does; named rows and sensors are found."""
    names = ModelNames.of(mujoco.MjModel.from_xml_string(SLIDER))
    physics = Physics({"xpos": jnp.arange(6.0).reshape(2, 3), "sensordata": jnp.array([7.0])}, names)
    assert physics.sensor("rail").tolist() == [7.0]
    assert physics.row("xpos", "block").tolist() == [3.0, 4.0, 5.0]
    with pytest.raises(AttributeError, match=r"does not read the field 'qpos'; it declares \['sensordata', 'xpos'\]"):
        _ = physics.qpos
    with pytest.raises(KeyError, match=r"no sensor 'rial' in the model; it has \['rail'\]"):
        physics.sensor("rial")
    with pytest.raises(KeyError, match=r"no body 'blok' in the model; it has \['world', 'block'\]"):
        physics.row("xpos", "blok")
    assert copy.copy(physics).xpos.shape == (2, 3)


def test_a_mirror_must_be_an_involution() -> None:
    """A mirror that does not undo itself is refused; parts are put one after the other."""
    with pytest.raises(ValueError, match="not its own inverse"):
        Mirror.of([1, 1, 1], [1, 2, 0])
    with pytest.raises(ValueError, match="one sign"):
        Mirror.of([1, -1], [1, 0])
    both = Mirror.concatenate(Mirror.of([-1]), Mirror.of([1, 1], [1, 0]))
    assert both(jnp.array([1.0, 2.0, 3.0])).tolist() == [-1.0, 3.0, 2.0]


def test_columns_give_means_per_episode_and_per_step() -> None:
    """Means divide sums by their own counts: episodes, steps, or a metric's weights; without any they are NaN."""
    columns = Columns(("a", "b"), ("speed",), "fall_rate")
    totals = dict(zip(columns.names, np.zeros(len(columns.names)), strict=True))
    totals |= {"episodes": 4, "steps": 100, "return": 10, "terminated": 1, "reward:a": 50, "reward:b": -20}
    totals |= {"metric:speed": 30, "weight:speed": 15}
    values = np.array(list(totals.values()))
    assert columns.episode_means(values) == {"return_mean": 2.5, "length_mean": 25.0, "fall_rate": 0.25, "speed": 2.0}
    assert columns.step_means(values) == {"reward/a": 0.5, "reward/b": -0.2, "metric/speed": 2.0}
    assert all(np.isnan(v) for v in columns.episode_means(np.zeros(len(values))).values())


SIZES = {"num_envs": 4, "shard_size": 4, "algo.rollout_steps": 12, "steps": 1000}


def undefined_metric(state: Any, terms: Any, terminated: Any, metrics: Any) -> Any:
    counts = state.steps > 2
    return state, terms, terminated, {"odd": (jnp.where(counts, 3.0, jnp.nan), counts)}


@pytest.fixture(scope="module")
def truncating() -> Rollouts:
    return Rollouts(slider_with(advance=advance_with(undefined_metric))(episode_s=0.1, **FREE), **SIZES)


def test_the_time_limit_truncates(truncating: Rollouts) -> None:
    """Reaching the time limit ends an episode without terminating it."""
    rollout, step, ended = truncating.collect()
    assert not rollout["terminated"].any()
    truncated = rollout["truncated"]
    assert all(set(np.diff(np.flatnonzero(truncated[:, env]))) == {5.0} for env in range(4))
    assert ended["episodes"] == truncated.sum()
    assert ended["terminated"] == 0
    assert step["steps"] == truncated.size


def test_a_metric_that_does_not_count_may_be_anything(truncating: Rollouts) -> None:
    """A metric with weight 0 leaves the mean alone, even where its value is not a number."""
    _, step, ended = truncating.collect()
    for means in (truncating.means(step)[0], truncating.means(ended)[1]):
        assert means.get("metric/odd", means.get("odd")) == 3.0


def test_termination_is_no_truncation() -> None:
    """A step that terminates is not truncated, even at the time limit."""
    rollout, _, ended = Rollouts(Slider(episode_s=0.1, limit=0.0), **SIZES).collect()
    assert rollout["terminated"].all()
    assert not rollout["truncated"].any()
    assert ended["episodes"] == ended["terminated"] == rollout["terminated"].size


def break_reset(self: Slider, key: Any, curriculum: Any, randomised: Any) -> Any:
    qpos, qvel, state = Slider.reset(self, key, curriculum, randomised)
    kind = jax.random.randint(key, (), 0, 3)
    return qpos, qvel, state._replace(steps=100 * kind)


def break_control(self: Slider, state: Any, action: Any) -> Any:
    return Slider.control(self, state, action) | {"qvel_kick": jnp.where(state.steps == 3, 1e20, 0.0)[None]}


def break_reward(state: Any, terms: Any, terminated: Any, metrics: Any) -> Any:
    nan = jnp.where(state.steps == 104, jnp.nan, 0.0)
    return (
        state,
        terms | {"middle": terms["middle"] + nan},
        terminated,
        metrics | {"distance": metrics["distance"] + nan},
    )


def break_observation(self: Slider, state: Any, physics: Any, key: Any) -> Any:
    nan = jnp.where(state.steps == 204, jnp.nan, 0.0)
    return {name: value + nan for name, value in Slider.observe(self, state, physics, key).items()}


def test_an_env_whose_numbers_broke_counts_in_nothing() -> None:
    """Numbers that break in physics, reward or observation end the episode and enter no total but "unstable".

    They break in the 4th step of every episode, in one of the three ways, which the reset draws.
    """
    task = slider_with(
        reset=break_reset, control=break_control, advance=advance_with(break_reward), observe=break_observation
    )(episode_s=1e6, **FREE)
    rollout, step, ended = Rollouts(task, **SIZES).collect()
    for name, value in rollout.items():
        assert np.isfinite(value).all(), name
    void = rollout["weight"] == 0
    assert void.tolist() == [[t % 4 == 3] * 4 for t in range(12)]
    assert (rollout["weight"][~void] == 1).all()
    assert not rollout["reward"][void].any()
    assert rollout["terminated"][void].all()
    assert not rollout["truncated"].any()
    assert step["unstable"] == void.sum()
    assert step["steps"] == (~void).sum()
    np.testing.assert_allclose(step["return"], rollout["reward"].sum(), rtol=1e-5)
    assert ended["unstable"] == void.sum()
    assert {name: total for name, total in ended.items() if name != "unstable" and total} == {}
    assert np.isfinite(list(step.values())).all()
