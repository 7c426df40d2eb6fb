"""The command `unilab bench`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from unilab.cli import main
from unilab.cli.bench import MEASUREMENTS


def test_help_names_every_verb(capsys: pytest.CaptureFixture[str]) -> None:
    """`bench` alone lists the verbs, and each verb's help its flags."""
    assert main(["bench"]) == 0
    text = capsys.readouterr().out
    for verb, measurement in MEASUREMENTS.items():
        assert f"  {verb} " in text
        assert main(["bench", verb, "--help"]) == 0
        flags = capsys.readouterr().out
        assert all(f"--{name} " in flags for name in ["json", "plot", *measurement.flags])


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("phisics", "unknown measurement 'phisics'; did you mean physics?"),
        ("env --backends envpol", "unknown back end 'envpol'; did you mean envpool"),
        ("incline --backends mjy", "unknown physics 'mjy'; did you mean mjx"),
        ("env --tasks HalfCheeta-v5", "--tasks is 'HalfCheeta-v5'; did you mean HalfCheetah-v5"),
        ("env HalfCheetah-v5", "unexpected argument 'HalfCheetah-v5'; did you mean --tasks HalfCheetah-v5?"),
        ("learner --algo sacc", "--algo is 'sacc'; did you mean sac"),
        ("scaling --workers 0", "--workers is 0; allowed: greater than 0"),
        ("env --num-envs", "--num-envs needs at least one value"),
        ("env --json nowhere/a.json", "cannot write nowhere/a.json: there is no folder nowhere"),
        ("collect", "which task?"),
    ],
)
def test_errors_are_one_line_before_anything_is_measured(
    line: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """What cannot be is refused at once, naming what was given and the way out."""
    assert main(["bench", *line.split()]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"unilab: {message}")
    assert error.count("\n") == 1


def test_figures_are_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A verb prints a table, and writes the JSON object and the picture that were asked for."""
    files = [tmp_path / "a.json", tmp_path / "a.png"]
    assert main(["bench", "incline", "--backends", "mujoco", "--json", str(files[0]), "--plot", str(files[1])]) == 0
    assert "mujoco" in capsys.readouterr().out
    result = json.loads(files[0].read_text())
    assert [row["backend"] for row in result["results"]] == ["mujoco"]
    assert {"machine", "versions", "options"} <= set(result)
    assert files[1].stat().st_size > 1000
