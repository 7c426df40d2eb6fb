"""`bench learner` and `bench train`, and the process on SBX's side."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from unilab.bench import learner, sbx, train
from unilab.bench.learner import bench_learner, learner_config, updates_per_rollout
from unilab.bench.result import COLUMNS
from unilab.bench.sbx import Sbx
from unilab.bench.train import bench_train


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Networks and a replay that compile at once."""
    for name, value in {"HIDDEN": (8,), "BATCH_SIZE": 4, "REPLAY_STEPS": 64}.items():
        monkeypatch.setattr(learner, name, value)


def ignore(text: str) -> None:
    pass


@pytest.mark.parametrize(("algo", "updates"), [("sac", 8), ("td3", 64)])
def test_updates_are_those_that_were_asked_for(algo: str, updates: int) -> None:
    """SAC and TD3 make `updates_per_env_step` gradient steps per env step."""
    config = learner_config(algo, "InvertedPendulum-v5", 1, updates // 8)
    assert updates_per_rollout(config) == updates


def test_learner_gives_rows_of_the_common_form(small: None) -> None:
    """Without SBX's interpreter SBX is listed as skipped, with the way to get it."""
    result = bench_learner(ignore, ("sac",), ("InvertedPendulum-v5",), (1,), (1,), repeats=1)
    (row,) = result["results"]
    assert set(COLUMNS) <= set(row)
    assert (row["backend"], row["device"], row["updates_per_env_step"]) == ("unilab", "cpu", 1.0)
    assert row["updates_per_s"] == pytest.approx(row["env_steps_per_s"])
    (skipped,) = result["skipped"]
    assert skipped["backend"] == "sbx"
    assert "--sbx-python" in skipped["install"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"steps": 9}, "--steps says"),
        ({"target": 1.0, "repeats": 2}, "--repeats has no effect with --target"),
        ({"target": 1.0, "sbx_python": "python"}, "--sbx-python has no effect with --target"),
        ({"sbx_vec_env": ("subproc",)}, "--sbx-vec-env has no effect without --sbx-python"),
    ],
)
def test_train_refuses_what_it_would_ignore(options: dict[str, Any], message: str) -> None:
    """An option without effect is an error before anything is trained."""
    with pytest.raises(ValueError, match=message):
        bench_train(ignore, **options)


@pytest.mark.process
def test_train_gives_rows_of_the_common_form(
    small: None, nothing_left: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Ours and the other program train in turn, for as many rounds as were asked for."""
    monkeypatch.setattr(sbx, "PROGRAM", other_program(tmp_path))
    monkeypatch.setattr(train, "WARM_UP_ITERATIONS", 2)
    result = bench_train(ignore, ("sac",), ("InvertedPendulum-v5",), (1,), (1,), repeats=2, sbx_python=sys.executable)
    ours, other = result["results"]
    assert (ours["backend"], other["backend"]) == ("unilab", "sbx-dummy")
    assert (len(ours["repeats"]), other["repeats"]) == (2, [20.0, 20.0])
    assert result["options"]["sbx"] == {"sbx-rl": "0"}


def other_program(folder: Path) -> Path:
    """A program that answers as `sbx_program.py` does: 10 of something in half a second."""
    path = folder / "program.py"
    path.write_text(
        'import sys\nprint(\'{"versions": {"sbx-rl": "0"}}\', flush=True)\n'
        'for _ in sys.stdin: print(\'{"count": 10, "seconds": 0.5}\', flush=True)\n'
    )
    return path


def test_a_process_without_sbx_is_an_error(nothing_left: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An interpreter that is not there, or whose program ends at once, is told with the way to install SBX."""
    with pytest.raises(ValueError, match=r"cannot be started .*pip install sbx-rl"):
        Sbx("sbx", str(tmp_path / "nowhere"), {}, 1)
    monkeypatch.setattr(sbx, "PROGRAM", tmp_path / "missing.py")
    with pytest.raises(ValueError, match=r"missing.py on .* ended.*pip install sbx-rl"):
        Sbx("sbx", sys.executable, {}, 1)
