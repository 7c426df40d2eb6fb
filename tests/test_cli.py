from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import tiny
from hypothesis import given
from hypothesis import strategies as st

import unilab
from unilab import cli
from unilab.algos.ppo import PPOConfig
from unilab.cli import main
from unilab.cli.flags import Flag, convert, flags_of, parse
from unilab.cli.train import FLAGS as TRAIN_FLAGS
from unilab.config import Config, make_config
from unilab.runtime import train as training
from unilab.runtime.checkpoint import CheckpointError
from unilab.runtime.pool import WorkerError

SLIDER = f"{tiny.__file__}:Slider"
TINY = [
    "--steps", "1.92e2", "--num-envs", "8", "--shard_size", "2", "--workers", "0", "--lag", "0", "--eval-every", "1e9",
    "--eval-episodes=3", "--learner-threads", "2", "--algo.rollout-steps", "8", "--algo.epochs", "2",
    "--algo.minibatches", "2", "--algo.actor-hidden", "8", "--algo.critic-hidden", "8", "4",
]  # fmt: skip


@pytest.fixture(autouse=True)
def away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in an empty folder, so that a run folder made by mistake shows; restore what `train` sets."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NPROC", "2")
    return tmp_path


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A run folder made by the command, and what the command wrote."""
    out = tmp_path_factory.mktemp("runs") / "my run"
    flags = ["--task.rewards.effort=-0.1", "--task.limit", "0.9", "--algo.no-mirror", "--digest", "--seed=3", "--quiet"]
    with contextlib.redirect_stdout(io.StringIO()) as text, pytest.MonkeyPatch.context() as patch:
        patch.setenv("NPROC", "2")
        assert main(["train", SLIDER, *TINY, *flags, "--out", str(out)]) == 0
    return out, text.getvalue()


# --- answers at once ------------------------------------------------------------------------------------------------


def test_help_and_list_load_neither_jax_nor_mujoco() -> None:
    """Help, lists and `import unilab` work without importing the heavy packages."""
    code = """
import sys, unilab
from unilab.cli import main
lines = "--help,-h,train --help,eval -h,video -h,resume -h,determinism -h,replay -h,list,list --json,list -h,x"
for line in [*lines.split(","), "bench -h", "bench env -h"]:
    main(line.split())
print(sorted({"jax", "mujoco", "flax", "optax", "tyro", "rich", "numpy"} & set(sys.modules)))
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert ended.stdout.splitlines()[-1] == "[]"


def test_module_is_the_command() -> None:
    """`python -m unilab` is `unilab`, and passes the exit code on."""
    ended = subprocess.run([sys.executable, "-m", "unilab", "lits"], capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stderr) == (2, "unilab: unknown command 'lits'; did you mean list?\n")


def test_list_names_all(capsys: pytest.CaptureFixture[str]) -> None:
    """`list` shows every task and algorithm, as text and as JSON."""
    assert main(["list"]) == 0
    text = capsys.readouterr().out
    assert main(["list", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert set(data["tasks"]) == set(unilab.TASKS)
    assert all(name in text for name in [*unilab.TASKS, *unilab.ALGORITHMS])


def test_public_names_exist() -> None:
    """Every public name can be had from `unilab`, `train` is the function, and others are attribute errors."""
    assert all(getattr(unilab, name) is not None for name in unilab.__all__)
    assert unilab.train is training.train
    assert set(unilab.__all__) <= set(dir(unilab))
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = unilab.nonsense


# --- flags ----------------------------------------------------------------------------------------------------------


def test_help_of_a_task_shows_exactly_the_flags_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    """`train TASK --help` shows the flags that the parser knows, no more and no less, with the task's own defaults."""
    assert main(["train", "CartpoleSwingup", "--help"]) == 0
    text = capsys.readouterr().out
    shown = set(re.findall(r"--(?!(?:[\w-]+\.)*no-)([a-z][\w.-]*)", text))
    assert shown - {"help"} == {*TRAIN_FLAGS, *flags_of(make_config("CartpoleSwingup"))}
    assert "(default: 1500000)" in text


@pytest.mark.parametrize("owner", [Config, PPOConfig])
def test_every_setting_is_explained(owner: Any) -> None:
    """Each field has its line in the docstring, which is its help."""
    for field in dataclasses.fields(owner):
        assert re.search(rf"^ +{field.name}: \S", owner.__doc__, re.MULTILINE), field.name


@given(st.one_of(st.integers(-(2**53), 2**53), st.floats(allow_nan=False), st.booleans()))
def test_values_are_read_back(value: float) -> None:
    """A number or truth value is read back from its text."""
    assert convert(str(value), type(value)) == value
    assert parse([f"--x={value}"], {"x": Flag(type(value))}, "").values["x"] == value


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("--count 1e6", {"count": 1_000_000}),
        ("--count 1_000", {"count": 1000}),
        ("--on", {"on": True}),
        ("--no-on", {"on": False}),
        ("--on false", {"on": False}),
        ("--on --count 3 place", {"on": True, "count": 3}),
        ("--a.off-switch", {"a.off-switch": True}),
        ("--a.no-off_switch", {"a.off-switch": False}),
        ("--sizes 3 4 --count 1", {"sizes": (3, 4), "count": 1}),
        ("--sizes 3,4", {"sizes": (3, 4)}),
        ("--pair 3 -4.5 place", {"pair": (3, -4.5)}),
        ("--maybe none", {"maybe": None}),
        ("--maybe 1", {"maybe": 1}),
        ("--count 1 --count 2", {"count": 2}),
    ],
)
def test_grammar(line: str, expected: dict[str, Any]) -> None:
    """Flags are read by their types; both spellings of a name, and a value after a space or `=`, are the same."""
    hints: dict[str, Any] = {"count": int, "on": bool, "a.off-switch": bool, "maybe": int | None}
    hints |= {"sizes": tuple[int, ...], "pair": tuple[int, float]}
    arguments = parse(line.split(), {name: Flag(hint) for name, hint in hints.items()}, "")
    assert arguments.values == expected
    assert arguments.positional == (["place"] if "place" in line else [])


# --- what cannot be -------------------------------------------------------------------------------------------------

WRONG = [
    ("trian", "unknown command 'trian'; did you mean train?"),
    ("list all", "unexpected argument 'all'"),
    ("train", "which task?"),
    ("train --seed 1", "which task?"),
    ("train CartpoleSwing", "unknown task 'CartpoleSwing'; did you mean CartpoleSwingup?"),
    ("train nowhere.py:Mine", "no file 'nowhere.py'"),
    ("train CartpoleSwingup --algo pppo", "unknown algorithm 'pppo'; did you mean ppo?"),
    ("train CartpoleSwingup --num-env 4", "unknown flag --num-env; did you mean --num-envs?"),
    ("train CartpoleSwingup --learning-rate 4", "did you mean --algo.learning-rate?"),
    ("train CartpoleSwingup --algo.epoch 4", "did you mean --algo.epochs?"),
    ("train CartpoleSwingup --upright-centred-calm 4", "did you mean --task.rewards.upright-centred-calm?"),
    ("train CartpoleSwingup --zzz 4", "unknown flag --zzz; see unilab train CartpoleSwingup --help"),
    ("train CartpoleSwingup -n 4", "unknown flag -n"),
    ("train CartpoleSwingup more", "unexpected argument 'more'"),
    ("train CartpoleSwingup --seed abc", "--seed is 'abc'; allowed: a whole number"),
    ("train CartpoleSwingup --seed 1.5", "--seed is '1.5'; allowed: a whole number"),
    ("train CartpoleSwingup --seed", "--seed needs a value"),
    ("train CartpoleSwingup --steps inf", "--steps is 'inf'"),
    ("train CartpoleSwingup --steps 0", "steps is 0; allowed: at least 1"),
    ("train CartpoleSwingup --num-envs 0", "num_envs is 0; allowed: at least 1"),
    ("train CartpoleSwingup --lag 7", "--lag is '7'; allowed: 0, 1 or none"),
    ("train CartpoleSwingup --learner-threads 0", "learner_threads is 0"),
    ("train CartpoleSwingup --shard-size 7", "shard_size is 7; allowed: a divisor of num_envs"),
    ("train CartpoleSwingup --seeds 0", "--seeds is 0; allowed: at least 1"),
    ("train CartpoleSwingup --algo.minibatches 7", "algo.minibatches is 7"),
    ("train CartpoleSwingup --algo.activation gelu", "algo.activation is 'gelu'"),
    ("train CartpoleSwingup --task.control-dt 0.013", "control_dt 0.013 s is not a multiple"),
    ("train CartpoleSwingup --num-envs 100000000", "GiB"),
    ("train CartpoleSwingup --init-from nowhere", "nowhere has no checkpoint"),
    ("eval", "which run?"),
    ("eval nowhere", "no run folder 'nowhere'"),
    ("eval . --episodes 0", "--episodes is 0; allowed: at least 1"),
    ("eval .", ". is not a run folder"),
    ("eval . more", "unexpected argument 'more'"),
    ("eval . --checkpoint newest", "--checkpoint is 'newest'; allowed: best or latest"),
    ("eval . --fine", "did you mean --fine-physics?"),
    ("video nowhere", "no run folder 'nowhere'"),
    ("video . --seconds soon", "--seconds is 'soon'; allowed: a number"),
]


@pytest.mark.parametrize(("line", "message"), WRONG, ids=[line for line, _ in WRONG])
def test_wrong_command_lines(line: str, message: str, away: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What cannot be is one line on standard error that says what can, exit code 2, and leaves no run folder."""
    assert main(line.split()) == 2
    said = capsys.readouterr()
    assert re.fullmatch(r"unilab: .*\n", said.err)
    assert message in said.err
    assert not said.out
    assert not list(away.iterdir())


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (CheckpointError("no\ncheckpoint"), None, ""),
        (MemoryError("too small"), 2, "unilab: too small\n"),
        (WorkerError("worker 3 failed\nTraceback ..."), 1, "unilab: worker 3 failed\nTraceback ...\n"),
        (KeyboardInterrupt(), 130, "unilab: interrupted\n"),
        (PermissionError(13, "Permission denied", "/x"), 1, "unilab: Permission denied: /x\n"),
        (SystemExit(143), None, ""),
        (TypeError("a mistake"), None, ""),
    ],
)
def test_exit_codes(
    error: BaseException,
    code: int | None,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Each kind of failure has its exit code; mistakes, also a ValueError from foreign code, keep their traceback."""

    def fail(self: cli.Verb, args: Any) -> int:
        raise error

    monkeypatch.setattr(cli.Verb, "run", fail)
    if code is None:
        with pytest.raises(type(error)) as raised:
            main(["list"])
        assert raised.value is error
    else:
        assert main(["list"]) == code
    assert capsys.readouterr().err == said


# --- training -------------------------------------------------------------------------------------------------------


def test_flags_reach_the_run(trained: tuple[Path, str]) -> None:
    """What was given on the command line stands in the run's configuration."""
    config = json.loads((trained[0] / "config.json").read_text())
    assert (config["steps"], config["num_envs"], config["shard_size"], config["seed"]) == (192, 8, 2, 3)
    assert config["task"]["source"] == SLIDER
    assert (config["task"]["limit"], config["task"]["rewards"]) == (0.9, {"middle": 1.0, "effort": -0.1})
    assert (config["algo"]["critic_hidden"], config["algo"]["mirror"]) == ([8, 4], False)


def test_end_of_training_says_what_to_do_next(trained: tuple[Path, str]) -> None:
    """The last lines show the evaluation, the digest, the folder and the next commands, ready to be pasted."""
    folder, text = trained
    summary = json.loads((folder / "summary.json").read_text())
    assert f"digest {summary['digest']}" in text
    assert f"next    unilab eval '{folder}'\n        unilab video '{folder}'\n" in text
    assert re.search(r"return +-?[\d.]+ \+- [\d.]+\n", text)
    assert "run folder:" not in text  # progress, which --quiet leaves out


def test_taken_folder_is_refused(trained: tuple[Path, str], capsys: pytest.CaptureFixture[str]) -> None:
    """A run is never written over."""
    before = (trained[0] / "config.json").read_text()
    assert main(["train", SLIDER, *TINY, "--out", str(trained[0])]) == 2
    assert "already holds a run" in capsys.readouterr().err
    assert (trained[0] / "config.json").read_text() == before


def test_eval_prints_a_table_or_json(trained: tuple[Path, str], capsys: pytest.CaptureFixture[str]) -> None:
    """`eval` shows the same figures as a table and as one JSON object."""
    line = ["eval", str(trained[0]), "--episodes", "4", "--workers", "0", "--seed", "5"]
    assert main(line) == 0
    table = capsys.readouterr().out
    assert main([*line, "--json", "--fine-physics"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert (figures["episodes"], figures["seed"], figures["fine_physics"]) == (4, 5, True)
    assert f"{figures['return_mean']:.4g} +- {figures['return_std']:.4g}" in table
    assert all(name in table for name in ("4 episodes, seed 5", "length", "termination_rate", "distance"))


def test_folder_of_several_runs_is_named(trained: tuple[Path, str], capsys: pytest.CaptureFixture[str]) -> None:
    """`eval` of the folder above some runs names these."""
    assert main(["eval", str(trained[0].parent)]) == 2
    assert str(trained[0]) in capsys.readouterr().err


def test_seeds_are_trained_one_after_the_other(
    monkeypatch: pytest.MonkeyPatch, away: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`--seeds 3 --seed 5` trains seeds 5, 6 and 7 into folders below OUT, and shows mean, min and max."""

    def pretend(config: Config, out: Path, display: Any) -> training.Result:
        out.mkdir(parents=True)
        return training.Result(out, {"return_mean": float(config.seed), "return_std": 1.0, "episodes": 3}, {})

    monkeypatch.setattr(training, "train", pretend)
    assert main(["train", SLIDER, "--seeds", "3", "--seed", "5", "--out", "many"]) == 0
    text = capsys.readouterr().out
    assert sorted(path.name for path in (away / "many").iterdir()) == ["curve.png", "seed5", "seed6", "seed7"]
    assert re.search(r"return +6 +5 +7\n", text)


def test_threads_are_set_before_the_first_array(tmp_path: Path) -> None:
    """The learner's number of threads is in the environment before a task's file can make an array."""
    (tmp_path / "early.py").write_text(
        "import os\nassert os.environ['NPROC'] == '3'\nimport jax.numpy as jnp\nX = jnp.zeros(3)\n"
        "from unilab.envs.tasks.cartpole_swingup import CartpoleSwingup\nclass Early(CartpoleSwingup): pass\n"
    )
    code = """
import os, sys
from unilab.cli import main
from unilab.runtime import train
from jax._src import xla_bridge
def pretend(config, out, display):
    print(config.learner_threads, xla_bridge.backends_are_initialized())
    raise MemoryError
train.train = pretend
for task in ("CartpoleSwingup", "early.py:Early"):
    main(["train", task, "--learner-threads", "3"])
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=True)
    assert ended.stdout.splitlines() == ["3 False", "3 True"]


@pytest.mark.process
@pytest.mark.timeout(120)
def test_a_worker_that_fails_shows_its_traceback(
    away: Path, capsys: pytest.CaptureFixture[str], nothing_left: None
) -> None:
    """An error in a task's code in a worker is shown with its traceback and ends with exit code 1."""
    (away / "boom.py").write_text(
        "import os\nfrom tiny import Slider\n"
        "class Boom(Slider):\n"
        "    def observe(self, state, physics, key):\n"
        "        if os.environ['NPROC'] == '1':\n            raise RuntimeError('only in a worker')\n"
        "        return super().observe(state, physics, key)\n"
    )
    line = ["train", "boom.py:Boom", *TINY, "--workers", "1", "--quiet", "--out", "run"]
    assert main(line) == 1
    said = capsys.readouterr().err
    assert said.startswith("unilab: worker 0 failed")
    assert "RuntimeError: only in a worker" in said
