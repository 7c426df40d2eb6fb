from __future__ import annotations

import contextlib
import dataclasses
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny import Slider, tiny_config

from unilab.algos.ppo import PPOConfig
from unilab.config import MAX_SHARD_SIZE, Config, default_shard_size, make_config, replace

positive = st.floats(1e-6, 1e3, allow_nan=False)
widths = st.lists(st.integers(1, 64), max_size=3).map(tuple)
algos = st.builds(
    PPOConfig,
    rollout_steps=st.integers(1, 100), epochs=st.integers(1, 9), minibatches=st.integers(1, 9), learning_rate=positive,
    schedule=st.sampled_from(["adaptive", "linear", "constant"]), discount=st.floats(0, 1), clip=positive,
    actor_hidden=widths, critic_hidden=widths, activation=st.sampled_from(["elu", "tanh"]), mirror=st.booleans(),
)  # fmt: skip
tasks = st.builds(
    Slider, control_dt=positive, limit=positive, rewards=st.dictionaries(st.sampled_from("abc"), st.floats(-9, 9))
)


@st.composite
def configs(draw: Any) -> Config:
    """An arbitrary valid configuration, resolved or not."""
    num_envs = draw(st.integers(1, 512))
    sizes = [size for size in range(1, num_envs + 1) if num_envs % size == 0]

    def maybe(values: Any) -> Any:
        return draw(st.none() | values)

    return Config(
        task=draw(tasks), algo=draw(algos), seed=draw(st.integers(0, 2**32 - 1)), steps=draw(st.integers(1, 10**9)),
        num_envs=num_envs, shard_size=maybe(st.sampled_from(sizes)), workers=maybe(st.integers(0, 64)),
        lag=maybe(st.sampled_from([0, 1])), learner_threads=maybe(st.integers(1, 64)),
        eval_every=maybe(st.integers(1, 10**6)), eval_episodes=draw(st.integers(1, 512)),
        checkpoint_every_s=draw(positive), init_from=maybe(st.text(max_size=5)), digest=draw(st.booleans()),
        job_order=draw(st.sampled_from(["in_order", "shuffled"])),
    )  # fmt: skip


@given(config=configs())
def test_json_round_trip(config: Config) -> None:
    """A configuration that went through JSON text equals itself, tuples and all."""
    text = json.dumps(config.to_json(), allow_nan=False)
    assert Config.from_json(json.loads(text), Slider) == config


def test_every_field_is_written() -> None:
    """Every field of the configuration, of the algorithm's and of the task's stands in the JSON form."""
    config = tiny_config()
    data = config.to_json()
    assert {f.name for f in dataclasses.fields(Config)} == set(data)
    assert {f.name for f in dataclasses.fields(PPOConfig)} | {"name"} == set(data["algo"])
    assert {f.name for f in dataclasses.fields(Slider)} | {"source"} == set(data["task"])
    assert data["task"]["source"].endswith("tiny.py:Slider")


def test_a_task_is_found_again_by_its_source() -> None:
    """The JSON form leads back to a registered task and to one from a file."""
    for config in (tiny_config(), make_config("CartpoleSwingup")):
        task = Config.from_json(config.to_json()).task
        assert type(task).__name__ == type(config.task).__name__
        assert dataclasses.asdict(task) == dataclasses.asdict(config.task)


WRONG = {
    "steps": ("1000", "steps is '1000'"),
    "seed": (1.5, "seed is 1.5"),
    "num_envs": (True, "num_envs is True"),
    "digest": (1, "digest is 1"),
    "lag": (2, "lag is 2"),
    "job_order": ("random", "job_order is 'random'"),
    "algo.epochs": ("five", "algo.epochs is 'five'"),
    "algo.actor_hidden": ([8, "x"], "algo.actor_hidden is 'x'"),
    "algo.schedule": ("cosine", "algo.schedule is 'cosine'"),
    "algo.clip": (None, "algo.clip is None"),
    "task.limit": ([1], r"task.limit is \[1\]"),
    "task.rewards": ({"middle": "much"}, "task.rewards.middle is 'much'"),
    "stepps": (1, "unknown key stepps; did you mean steps"),
    "algo.epoch": (1, "unknown key algo.epoch; did you mean epochs"),
    "task.limmit": (1, "unknown key task.limmit; did you mean limit"),
    "algo.name": ("pppo", r"algo.name is 'pppo'; allowed: \['ppo'"),
    "task.source": (None, "task.source is null"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_json_is_named(name: str) -> None:
    """An unknown key or a value of another type is refused with its place in the file, the value and what would do."""
    value, message = WRONG[name]
    data = json.loads(json.dumps(tiny_config().to_json()))
    owner, _, key = name.rpartition(".")
    (data[owner] if owner else data)[key] = value
    with pytest.raises(ValueError, match=message):
        Config.from_json(data)


@pytest.mark.parametrize("data", [None, [], {}, {"task": {}}, {"task": [], "algo": {}}])
def test_what_is_no_configuration_is_refused(data: Any) -> None:
    """Other JSON values give a ValueError, not a KeyError or TypeError."""
    with pytest.raises(ValueError, match="a configuration is a JSON object"):
        Config.from_json(data)


BAD = {
    "steps": 0, "num_envs": -4, "shard_size": 3, "workers": -1, "lag": 2, "learner_threads": 0, "eval_every": 0,
    "eval_episodes": 0, "seed": -1, "eval_seed": 2**32, "checkpoint_every_s": 0.0, "job_order": "backwards",
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_bad_values_are_named(name: str) -> None:
    """A value that is not allowed is refused with the field, the value and what is allowed."""
    with pytest.raises(ValueError, match=rf"{name} is {BAD[name]!r}; allowed: \w+"):
        tiny_config(**{name: BAD[name]})


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@given(data=st.data())
def test_any_value_anywhere_is_read_or_refused(data: st.DataObject) -> None:
    """A configuration with any JSON value in place of one of its own: it is read, or a ValueError."""
    content = make_config("CartpoleSwingup").to_json()
    part = data.draw(st.sampled_from([None, "task", "algo"]))
    target = content if part is None else content[part]
    name = data.draw(st.sampled_from(sorted(target)) | st.text(max_size=5))
    target[name] = data.draw(JSON)
    with contextlib.suppress(ValueError):
        json.dumps(Config.from_json(content).to_json(), allow_nan=False)


def test_not_a_number_is_refused() -> None:
    """NaN seconds between checkpoints are refused."""
    with pytest.raises(ValueError, match="checkpoint_every_s is nan"):
        tiny_config(checkpoint_every_s=float("nan"))


@given(num_envs=st.integers(1, 20_000))
def test_default_shards_are_equal_and_small(num_envs: int) -> None:
    """The default shard size divides the envs, is bounded, and leaves four shards or more from four envs on."""
    size = default_shard_size(num_envs)
    assert num_envs % size == 0
    assert 1 <= size <= MAX_SHARD_SIZE
    assert num_envs // size >= min(4, num_envs)
    larger = [s for s in range(size + 1, MAX_SHARD_SIZE + 1) if num_envs % s == 0 and num_envs // s >= 4]
    assert not larger


def test_resolving_depends_on_nothing_that_decides_results(monkeypatch: pytest.MonkeyPatch) -> None:
    """The shards are the same on every machine; resolving fills every gap, keeps what is given, and is idempotent."""
    config = tiny_config(shard_size=None, workers=None, lag=None, learner_threads=None, eval_every=None, num_envs=96)
    sizes = set()
    for cores in (1, 8, 200):
        monkeypatch.setattr("os.cpu_count", lambda cores=cores: cores)
        monkeypatch.setattr("os.sched_getaffinity", lambda pid, cores=cores: set(range(cores)), raising=False)
        resolved = config.resolved()
        assert None not in (resolved.workers, resolved.lag, resolved.learner_threads, resolved.eval_every)
        assert resolved.workers == cores
        assert resolved.resolved() == resolved
        sizes.add(resolved.shard_size)
    assert sizes == {24}
    assert config.resolved(on_accelerator=True).lag == 1
    assert config.resolved(on_accelerator=False).lag == 0
    assert tiny_config(lag=0).resolved(on_accelerator=True).lag == 0


def test_replace_reaches_into_parts() -> None:
    """Dotted names change fields of the task, the algorithm and the rewards; the original stays as it was."""
    config = tiny_config()
    changed = replace(config, **{"seed": 5, "algo.epochs": 7, "algo.clip": 0.3, "task.rewards.effort": -1.0})
    assert (changed.seed, changed.algo.epochs, changed.algo.clip) == (5, 7, 0.3)
    assert changed.task.rewards == {"middle": 1.0, "effort": -1.0}
    assert config == tiny_config()
    assert replace(config) == config
    new_algo = replace(config, **{"algo": PPOConfig(epochs=3), "algo.clip": 0.4})
    assert (new_algo.algo.epochs, new_algo.algo.clip) == (3, 0.4)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("stepz", "unknown field 'stepz'; did you mean steps"),
        ("algo.epoch", "unknown field 'epoch'; did you mean epochs"),
        ("task.rewards.midle", "unknown field 'midle'; did you mean middle"),
        ("rewards.middle", "unknown field 'rewards'"),
    ],
)
def test_replace_refuses_unknown_names(name: str, message: str) -> None:
    """A name that matches nothing is an error with the nearest valid names, at every level."""
    with pytest.raises(ValueError, match=message):
        replace(tiny_config(), **{name: 1})


def test_a_tasks_defaults_apply_and_yield() -> None:
    """A task's own settings for the algorithm are used, and what the caller says goes before them."""
    task = make_config("CartpoleSwingup").task
    defaults = dict(type(task).train_defaults["ppo"])
    config = make_config("CartpoleSwingup", steps=77)
    assert config.num_envs == defaults["num_envs"]
    assert config.steps == 77


def test_unknown_tasks_and_algorithms_are_named() -> None:
    """Unknown names are answered with the nearest known ones."""
    with pytest.raises(ValueError, match="unknown task 'CartpoleSwingUp'; did you mean CartpoleSwingup"):
        make_config("CartpoleSwingUp")
    with pytest.raises(ValueError, match=r"unknown algorithm 'pppo'.*ppo"):
        make_config("CartpoleSwingup", algo="pppo")
    with pytest.raises(ValueError, match=r"no file 'nowhere\.py'"):
        make_config("nowhere.py:Task")


@given(steps=st.integers(1, 10**6), num_envs=st.integers(1, 64), rollout_steps=st.integers(1, 64))
def test_iterations_cover_the_steps(steps: int, num_envs: int, rollout_steps: int) -> None:
    """The iterations make at least `steps` env steps, and less than one rollout more."""
    config = tiny_config(steps=steps, num_envs=num_envs, shard_size=None, **{"algo.rollout_steps": rollout_steps})
    assert config.env_steps_per_iteration == num_envs * rollout_steps
    assert 0 <= config.iterations * config.env_steps_per_iteration - steps < config.env_steps_per_iteration
