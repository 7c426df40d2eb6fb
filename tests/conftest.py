"""Fixtures that all tests share, and settings that must stand before jax is first used."""

from __future__ import annotations

import gc
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("NPROC", "2")  # threads of the learner; the number decides rounding
os.environ.setdefault("MPLBACKEND", "agg")
if "JAX_COMPILATION_CACHE_DIR" not in os.environ:  # tests compile the same functions many times
    _cache = tempfile.TemporaryDirectory(prefix="unilab-tests-")
    os.environ["JAX_COMPILATION_CACHE_DIR"] = _cache.name
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.1")

import psutil
import pytest
from hypothesis import HealthCheck, settings

settings.register_profile(
    "unilab", deadline=None, max_examples=25, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("unilab")


@pytest.fixture
def nothing_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fails a test that leaves a child process, a descriptor, a mapping of shared memory or a temporary file."""
    temporary = tmp_path / "TMPDIR"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    before = held()
    yield
    gc.collect()
    left = held() - before
    assert not left, f"left behind: {dict(left)}"
    assert not list(temporary.iterdir())


def held() -> Counter[str]:
    """Child processes, and kinds of descriptors and mappings that processes share, held by this process."""
    things = Counter({f"child {child.pid}": 1 for child in psutil.Process().children(recursive=True)})
    if sys.platform != "linux":
        return things
    for link in Path("/proc/self/fd").iterdir():
        try:
            target = os.readlink(link)
        except FileNotFoundError:  # the descriptor that listed the folder
            continue
        if target.startswith(("/memfd:", "pipe:", "socket:")):
            things[target.partition(":")[0]] += 1
    things["mapping"] += Path("/proc/self/maps").read_text().count("memfd:unilab")
    return things


def wait_until(condition: Callable[[], bool], what: str, patience_s: float = 240.0) -> None:
    """Wait for something that another process does; the patience only ends a test that hangs."""
    deadline = time.monotonic() + patience_s
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"still waiting for {what}")
        time.sleep(0.05)
