from __future__ import annotations

import errno
import json
import sys
from pathlib import Path

import numpy as np
import pytest

from unilab.runtime.metrics import RunLog, machine, read_metrics, versions, write_json


@pytest.fixture
def warnings() -> list[str]:
    return []


def make_row(iteration: int, **more: object) -> dict[str, object]:
    return {"iteration": iteration, "env_steps": 100 * iteration, "episode/return_mean": 0.5 * iteration, **more}


def read_events(run: Path) -> list[tuple[int, dict[str, float]]]:
    """Step and scalars of each TensorBoard event, read with the record format's own framing."""
    from tensorboardX.proto.event_pb2 import Event

    events = []
    for path in sorted((run / "tensorboard").iterdir()):
        data = path.read_bytes()
        while data:
            length = int.from_bytes(data[:8], "little")
            event = Event.FromString(data[12 : 12 + length])
            data = data[16 + length :]
            if event.summary.value:
                events.append((event.step, {value.tag: value.simple_value for value in event.summary.value}))
    return events


def test_rows_come_back_as_written(tmp_path: Path, warnings: list[str]) -> None:
    """What is written is read back, in order, as numbers, text and null."""
    log = RunLog(tmp_path, warnings.append)
    rows = [make_row(1, note="first"), make_row(2, **{"train/kl": None})]
    for row in rows:
        log.write(row)
    log.close()
    assert read_metrics(tmp_path) == rows
    assert warnings == []


def test_a_line_is_on_disk_at_once(tmp_path: Path) -> None:
    """A row can be read before the log is closed, so that a killed run loses none."""
    log = RunLog(tmp_path)
    log.write(make_row(1))
    assert len(read_metrics(tmp_path)) == 1
    log.close()


def test_numbers_that_json_lacks_become_null(tmp_path: Path) -> None:
    """NaN and infinities, of Python or NumPy, become null, and NumPy scalars become plain numbers."""
    log = RunLog(tmp_path)
    log.write(make_row(1, a=float("nan"), b=np.float32("inf"), c=np.float32(0.5), d=np.int64(3)))
    log.close()
    line = (tmp_path / "metrics.jsonl").read_text()
    row = json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert (row["a"], row["b"], row["c"], row["d"]) == (None, None, 0.5, 3)


def test_tensorboard_has_the_numbers_at_their_env_steps(tmp_path: Path) -> None:
    """TensorBoard gets finite numbers under their row keys at step `env_steps`, and neither text nor null."""
    log = RunLog(tmp_path)
    log.write(make_row(3, **{"train/kl": 0.25, "eval/return_mean": None, "note": "text"}))
    log.write({"iteration": 4})
    log.close()
    assert read_events(tmp_path) == [(300, {"iteration": 3.0, "episode/return_mean": 1.5, "train/kl": 0.25})]


def test_unwritable_lines_leave_tensorboard_alone(tmp_path: Path, warnings: list[str]) -> None:
    """When metrics.jsonl cannot be written, one line says so and TensorBoard still gets every row."""
    (tmp_path / "metrics.jsonl").mkdir()
    log = RunLog(tmp_path, warnings.append)
    log.write(make_row(1))
    log.write(make_row(2))
    log.close()
    assert len(warnings) == 1
    assert "metrics.jsonl" in warnings[0]
    assert "\n" not in warnings[0]
    assert [step for step, _ in read_events(tmp_path)] == [100, 200]


def test_unwritable_tensorboard_leaves_lines_alone(tmp_path: Path, warnings: list[str]) -> None:
    """When TensorBoard's folder cannot be made, one line says so and metrics.jsonl still gets every row."""
    (tmp_path / "tensorboard").write_text("a file in the way")
    log = RunLog(tmp_path, warnings.append)
    log.write(make_row(1))
    log.write(make_row(2))
    log.close()
    assert len(warnings) == 1
    assert len(read_metrics(tmp_path)) == 2


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_reported_once(tmp_path: Path, warnings: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Both writers on a full disk give two lines in all, however many rows are written."""

    class FullEvents:
        def __init__(self, folder: Path) -> None:
            pass

        def write(self, row: object) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        def close(self) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("unilab.runtime.metrics._Events", FullEvents)
    (tmp_path / "metrics.jsonl").symlink_to("/dev/full")
    log = RunLog(tmp_path, warnings.append)
    for iteration in range(30):
        log.write(make_row(iteration))
    log.close()
    assert len(warnings) == 2
    assert all("No space left" in warning for warning in warnings)


def test_a_value_of_a_strange_type_does_not_stop_training(tmp_path: Path, warnings: list[str]) -> None:
    """A row that no writer understands is reported, not raised."""
    log = RunLog(tmp_path, warnings.append)
    log.write(make_row(1, strange=object()))
    log.close()
    assert len(warnings) == 2
    assert all("object" in warning for warning in warnings)


def test_a_cut_last_line_is_left_out_and_cut_off(tmp_path: Path) -> None:
    """A line that a kill cut short is not read, and the next run's first row is not glued to it."""
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"env_steps": 100}\n{"env_steps": 20')
    assert read_metrics(tmp_path) == [{"env_steps": 100}]
    log = RunLog(tmp_path)
    log.write({"env_steps": 200})
    log.close()
    assert path.read_text() == '{"env_steps": 100}\n{"env_steps": 200}\n'


def test_a_broken_line_inside_is_an_error(tmp_path: Path) -> None:
    """Damage elsewhere than at the end is not passed over in silence."""
    (tmp_path / "metrics.jsonl").write_text('{"env_steps": 100}\nnonsense\n{"env_steps": 300}\n')
    with pytest.raises(ValueError, match="line 2"):
        read_metrics(tmp_path)


def test_rows_of_a_resumed_run_replace_those_collected_again(tmp_path: Path) -> None:
    """After a resume from step 200, what the first attempt wrote beyond it is gone."""
    log = RunLog(tmp_path)
    for env_steps, attempt in ((100, 1), (200, 1), (300, 1), (400, 1), (300, 2)):
        log.write({"env_steps": env_steps, "attempt": attempt})
    log.close()
    assert [(row["env_steps"], row["attempt"]) for row in read_metrics(tmp_path)] == [(100, 1), (200, 1), (300, 2)]


def test_a_run_without_metrics_is_empty(tmp_path: Path) -> None:
    """A folder without metrics has no rows."""
    assert read_metrics(tmp_path) == []


def test_json_keeps_order_and_accepts_numpy(tmp_path: Path) -> None:
    """Keys stay in order, NumPy values become plain ones, NaN becomes null."""
    path = tmp_path / "result.json"
    write_json(path, {"b": np.float64("nan"), "a": np.arange(2), "c": {"path": Path("x"), "t": (1, True)}})
    text = path.read_text()
    assert json.loads(text) == {"b": None, "a": [0, 1], "c": {"path": "x", "t": [1, True]}}
    assert text.index('"b"') < text.index('"a"')
    assert list(tmp_path.iterdir()) == [path]


def test_json_that_fails_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    """A value without a JSON form raises, names its type, and changes nothing on disk."""
    path = tmp_path / "result.json"
    write_json(path, {"a": 1})
    with pytest.raises(TypeError, match="complex"):
        write_json(path, {"a": 1j})
    assert json.loads(path.read_text()) == {"a": 1}
    assert list(tmp_path.iterdir()) == [path]


def test_json_into_a_place_that_is_taken_leaves_no_temporary_file(tmp_path: Path) -> None:
    """When the rename fails, the temporary file is removed."""
    path = tmp_path / "result.json"
    path.mkdir()
    with pytest.raises(OSError):
        write_json(path, {})
    assert list(tmp_path.iterdir()) == [path]


def test_versions_and_machine_are_filled(tmp_path: Path) -> None:
    """Versions name every package that decides results, the machine its memory and cores, and both are JSON."""
    found = versions()
    assert list(found) == ["unilab", "python", "mujoco", "jax", "jaxlib", "flax", "optax", "gymnasium", "numpy"]
    assert found["numpy"] == np.__version__
    assert found["python"] == ".".join(str(part) for part in sys.version_info[:3])
    computer = machine()
    assert computer["cores"] >= computer["cores_usable"] >= 1
    assert computer["memory_bytes"] > 2**20
    write_json(tmp_path / "machine.json", computer)
