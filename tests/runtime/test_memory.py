from __future__ import annotations

import os
import sys
from typing import Any

import numpy as np
import pytest
from conftest import held
from hypothesis import given
from hypothesis import strategies as st

from unilab.runtime import memory as memory_module
from unilab.runtime.memory import ALIGNMENT, Memory, available_bytes, total_bytes

DTYPES = [np.float32, np.float64, np.uint32, np.bool_]
shapes = st.dictionaries(
    st.text("abc/", min_size=1, max_size=4),
    st.tuples(st.sampled_from(DTYPES), st.lists(st.integers(0, 4), max_size=3).map(tuple)),
    max_size=5,
)
SHAPES: dict[str, Any] = {"x": (np.float32, (3, 5)), "y": (np.uint32, (7,)), "z": (np.float64, (2, 0))}


@given(shapes=shapes)
def test_arrays_are_apart_and_aligned(shapes: Any) -> None:
    """Arrays have the shapes and dtypes asked for, start at multiples of 64 bytes, and never overlap."""
    memory = Memory(shapes)
    for i, (name, (dtype, shape)) in enumerate(shapes.items()):
        array = memory.arrays[name]
        assert (array.dtype, array.shape) == (np.dtype(dtype), shape)
        assert array.ctypes.data % ALIGNMENT == 0
        array.reshape(-1).view(np.uint8)[...] = i
    for i, name in enumerate(shapes):
        assert (memory.arrays[name].reshape(-1).view(np.uint8) == i).all()
    assert memory.nbytes == total_bytes(shapes) >= sum(array.nbytes for array in memory.arrays.values())
    memory.close()


def test_two_mappings_of_one_descriptor_share_their_content() -> None:
    """What is written through one mapping is read through another of the same descriptor."""
    first = Memory(SHAPES)
    second = Memory(SHAPES, os.dup(first.fd))
    first.arrays["x"][1, 2] = 42.0
    second.arrays["y"][6] = 7
    assert second.arrays["x"][1, 2] == 42.0
    assert first.arrays["y"][6] == 7
    first.close()
    second.close()


def test_poison_shows() -> None:
    """Poisoned memory holds NaN and the largest integers; other memory starts as zeros."""
    memory, clean = Memory(SHAPES, poison=True), Memory(SHAPES)
    assert np.isnan(memory.arrays["x"]).all()
    assert (memory.arrays["y"] == 2**32 - 1).all()
    assert not clean.arrays["x"].any()
    memory.close()
    clean.close()


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_closing_gives_everything_back() -> None:
    """After close neither a descriptor nor a mapping is left; closing twice and late readers do no harm."""
    before = held()
    memory = Memory(SHAPES)
    assert held() - before
    late = memory.arrays["x"]
    memory.close()
    memory.close()
    late[...] = 1.0  # still mapped as long as somebody holds it
    assert late.sum() == 15
    del late, memory
    assert not held() - before


@pytest.mark.skipif(sys.platform != "linux", reason="memfd_create")
def test_without_memfd_a_nameless_file_is_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    """Where memfd_create does not exist, a temporary file is used that has no name once it is open."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.delattr(os, "memfd_create")
    memory = Memory(SHAPES)
    memory.arrays["x"][...] = 3.0
    assert not list(tmp_path.iterdir())
    memory.close()


def test_available_memory_respects_the_cgroup(monkeypatch: pytest.MonkeyPatch) -> None:
    """What may still be taken is what the machine has free, or what the cgroup's limit leaves, whichever is less."""
    import builtins
    import io

    files = {"/sys/fs/cgroup/memory.max": "1000000", "/sys/fs/cgroup/memory.current": "400000"}
    real = builtins.open

    def fake(path: Any, *args: Any, **kwargs: Any) -> Any:
        if str(path).startswith("/sys/fs/cgroup/"):
            if path in files:
                return io.StringIO(files[path])
            raise FileNotFoundError(path)
        return real(path, *args, **kwargs)

    monkeypatch.setattr(builtins, "open", fake)
    assert available_bytes() == 600_000
    files["/sys/fs/cgroup/memory.max"] = "max"
    assert available_bytes() > 600_000
    assert memory_module.ALIGNMENT % 64 == 0
