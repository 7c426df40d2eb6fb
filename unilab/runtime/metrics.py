"""Where the numbers of a run go: `metrics.jsonl`, TensorBoard events and small JSON files.

A row is one flat dictionary per iteration. Its keys are the TensorBoard tags too, for instance `env_steps`,
`episode/return_mean`, `reward/tracking_lin_vel`, `train/kl`, `eval/return_mean`, `time/collect_s`.
"""

from __future__ import annotations

import json
import math
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from unilab.cores import usable_cores

METRICS_FILE = "metrics.jsonl"
TENSORBOARD_FOLDER = "tensorboard"

Row = dict[str, Any]
"""Flat: names to float, int, str or None."""

_FLUSH_S = 5.0
_PACKAGES = ("mujoco", "jax", "jaxlib", "flax", "optax", "gymnasium", "numpy")


def _warn_on_stderr(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


class RunLog:
    """Appends the rows of a run to `folder/metrics.jsonl` and to TensorBoard events in `folder/tensorboard/`.

    Losing numbers is bad, losing a training is worse: a writer that fails is reported once, in one line, through
    `warn`, and training and the other writer go on. JSON lines are tried again at every row, since a full disk may
    be emptied; TensorBoard stays off, since what follows half a record cannot be read.
    """

    def __init__(self, folder: Path, warn: Callable[[str], None] = _warn_on_stderr) -> None:
        self._path = folder / METRICS_FILE
        self._warn = warn
        self._is_reported: set[str] = set()
        self._events: _Events | None = None
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._events = _Events(folder / TENSORBOARD_FOLDER)
        except Exception as error:  # whatever is wrong with TensorBoard, the run matters more
            self._report("TensorBoard events", error)

    def write(self, row: Mapping[str, Any]) -> None:
        """Append one row; NaN and infinities become null. TensorBoard needs `env_steps` and leaves out other rows."""
        try:
            _append_line(self._path, json.dumps(to_plain(row), allow_nan=False))
        except Exception as error:
            self._report(METRICS_FILE, error)
        if self._events is None:
            return
        try:
            self._events.write(row)
        except Exception as error:
            self._report("TensorBoard events", error)
            self._close_events()

    def close(self) -> None:
        """Close the TensorBoard file. Safe to call twice."""
        self._close_events()

    def _close_events(self) -> None:
        events, self._events = self._events, None
        if events is None:
            return
        try:
            events.close()
        except Exception as error:
            self._report("TensorBoard events", error)

    def _report(self, writer: str, error: Exception) -> None:
        if writer in self._is_reported:
            return
        self._is_reported.add(writer)
        reason = " ".join(str(error).split()) or type(error).__name__
        self._warn(f"cannot write {writer}, training goes on: {reason}")


class _Events:
    """TensorBoard events, written in the caller's thread.

    tensorboardX's SummaryWriter hands events to a thread through a queue of ten; when the thread dies of a full disk,
    the queue fills and the caller blocks for ever. Its file writer alone has neither thread nor queue.
    """

    def __init__(self, folder: Path) -> None:
        from tensorboardX.event_file_writer import EventsWriter

        folder.mkdir(exist_ok=True)
        # The writer's own name has whole seconds; a resume within the same second must not overwrite the file.
        self._writer = EventsWriter(str(folder / "events"), filename_suffix=f".{os.getpid()}")
        self._flushed_at = -math.inf

    def write(self, row: Mapping[str, Any]) -> None:
        from tensorboardX.proto.event_pb2 import Event
        from tensorboardX.proto.summary_pb2 import Summary

        plain = to_plain(row)
        env_steps = plain.get("env_steps")
        if env_steps is None:
            return
        values = [
            Summary.Value(tag=tag, simple_value=number)
            for tag, number in plain.items()
            if isinstance(number, int | float) and tag != "env_steps"
        ]
        event = Event(step=int(env_steps), summary=Summary(value=values))
        event.wall_time = time.time()
        self._writer.write_event(event)
        # A flush is an fsync, which takes tens of milliseconds on some disks.
        if time.monotonic() - self._flushed_at >= _FLUSH_S:
            self._writer.flush()
            self._flushed_at = time.monotonic()

    def close(self) -> None:
        self._writer.close()


def _append_line(path: Path, line: str) -> None:
    """Append `line`, first cutting off what a crash or a full disk left of the line before."""
    with path.open("a+b") as file:
        size = file.seek(0, os.SEEK_END)
        if size > 0:
            file.seek(size - 1)
            if file.read(1) != b"\n":
                file.seek(0)
                file.truncate(file.read().rfind(b"\n") + 1)
        file.write(line.encode() + b"\n")


def read_metrics(run: Path) -> list[Row]:
    """The rows of a run folder, in order of `env_steps`; empty when there are none.

    A cut last line (the run was killed, or is writing it now) is left out. A resumed run collects again from its
    checkpoint on: its rows replace those from there on. Rows with equal `env_steps` become one, the later value
    of each key counting.

    Raises:
        ValueError: another line is not a JSON object; names file and line.
    """
    path = run / METRICS_FILE
    if not path.exists():
        return []
    lines = path.read_bytes().split(b"\n")
    rows: list[Row] = []
    # What follows the last newline is empty, or a line that is not complete.
    for number, line in enumerate(lines[:-1], start=1):
        try:
            row = json.loads(line)
        except ValueError as error:
            raise ValueError(f"{path}, line {number}: not JSON ({error})") from error
        if not isinstance(row, dict):
            raise ValueError(f"{path}, line {number}: expected an object, got {type(row).__name__}")
        env_steps = row.get("env_steps")
        if env_steps is not None:
            while rows and (rows[-1].get("env_steps") or 0) > env_steps:
                rows.pop()
            if rows and rows[-1].get("env_steps") == env_steps:
                row = rows.pop() | row
        rows.append(row)
    return rows


def write_json(path: Path, obj: object) -> None:
    """Write `obj` to `path` whole or not at all: temporary file beside it, fsync, rename.

    Keys keep their order, NaN and infinities become null, NumPy scalars and arrays are accepted.

    Raises:
        TypeError: `obj` holds something that JSON cannot; names its type. Nothing is written.
        OSError: the folder cannot be written. `path` is as it was, and no temporary file is left.
    """
    text = json.dumps(to_plain(obj), indent=2, allow_nan=False) + "\n"
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Put a folder's entries on the disk: only then is a rename in it there too."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def to_plain(obj: Any) -> Any:
    """`obj` in JSON's own types: NumPy and JAX numbers as Python's, NaN and infinities as None, paths as text.

    Raises:
        TypeError: something in `obj` has no such form; names its type.
    """
    if obj is None or isinstance(obj, str | bool | int):
        return obj
    if isinstance(obj, float):
        return obj if math.isfinite(obj) else None
    if isinstance(obj, Mapping):
        return {str(key): to_plain(value) for key, value in obj.items()}
    if isinstance(obj, list | tuple):
        return [to_plain(value) for value in obj]
    if isinstance(obj, Path):
        return str(obj)
    if hasattr(obj, "__array__"):
        array = np.asarray(obj)
        if array.dtype.kind in "biufU":
            return to_plain(array.tolist())
    raise TypeError(f"cannot write a value of type {type(obj).__name__} as JSON")


def versions() -> dict[str, str]:
    """Versions of unilab, Python and the packages that decide results, without importing them; "unknown" if absent."""
    return {
        "unilab": _version("unilab", fallback=str(getattr(sys.modules.get("unilab"), "__version__", "unknown"))),
        "python": platform.python_version(),
        **{package: _version(package) for package in _PACKAGES},
    }


def _version(package: str, fallback: str = "unknown") -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return fallback


def devices() -> dict[str, str]:
    """What decides bits besides the versions: the type of CPU, and the learner's device."""
    import jax

    return {"CPU type": _cpu_model(), "learner's device": jax.devices()[0].device_kind}


def machine() -> dict[str, Any]:
    """The computer of a run: operating system, CPU type, cores, cores this process may use, memory in bytes."""
    import psutil

    return {
        "platform": platform.platform(),
        "architecture": platform.machine(),
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "cores_usable": usable_cores(),
        "memory_bytes": psutil.virtual_memory().total,
    }


def _cpu_model() -> str:
    if sys.platform == "darwin":
        command = ["sysctl", "-n", "machdep.cpu.brand_string"]
        answer = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
        return answer or "unknown"
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or "unknown"
