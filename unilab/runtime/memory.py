"""Anonymous shared memory: mapped by descriptor, without a name, so nothing can be left behind."""

from __future__ import annotations

import contextlib
import math
import mmap
import os
import tempfile
from collections.abc import Mapping
from typing import Any

import numpy as np

ALIGNMENT = 64  # bytes; a cache line, and what jax needs to use host memory without a copy

FieldShapes = Mapping[str, tuple[Any, tuple[int, ...]]]  # name -> (dtype, shape)


class Memory:
    """Named arrays in one anonymous mapping that processes share through a file descriptor.

    Args:
        shapes: dtype and shape of each array; both sides must give the same.
        fd: descriptor of an existing mapping, or None to make one.
        poison: fill with NaN and impossible integers, so that reading what nobody wrote shows.
    """

    def __init__(self, shapes: FieldShapes, fd: int | None = None, poison: bool = False) -> None:
        self.nbytes = total_bytes(shapes)
        self.fd = _anonymous_file(self.nbytes) if fd is None else fd
        self._map = mmap.mmap(self.fd, max(self.nbytes, 1))
        self.arrays: dict[str, np.ndarray] = {}
        offset = 0
        for name, (dtype, shape) in shapes.items():
            array: np.ndarray = np.frombuffer(self._map, dtype, math.prod(shape), offset).reshape(shape)
            self.arrays[name] = array
            offset += _aligned(array.nbytes)
            if poison:
                array[...] = np.nan if array.dtype.kind == "f" else np.iinfo(array.dtype).max

    def close(self) -> None:
        """Give the mapping back. Arrays still in use keep it alive until they are gone."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
        self.arrays = {}
        with contextlib.suppress(BufferError):  # somebody still holds an array: the mapping goes with the last of them
            self._map.close()


def total_bytes(shapes: FieldShapes) -> int:
    """Bytes of a mapping with these arrays."""
    return sum(_aligned(np.dtype(dtype).itemsize * math.prod(shape)) for dtype, shape in shapes.values())


def _aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def _anonymous_file(nbytes: int) -> int:
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("unilab", os.MFD_CLOEXEC)
    else:  # macOS: a file without a name
        fd, path = tempfile.mkstemp(prefix="unilab-")
        os.unlink(path)
    os.ftruncate(fd, max(nbytes, 1))
    return fd


def oom_kills() -> int:
    """Processes that the kernel has killed for want of memory, on this machine or in this cgroup, since it started."""
    count = 0
    for path in ("/proc/vmstat", "/sys/fs/cgroup/memory.events"):
        with contextlib.suppress(OSError, ValueError), open(path) as file:
            count = max(count, *(int(line.split()[1]) for line in file if line.startswith("oom_kill ")), 0)
    return count


def available_bytes() -> int:
    """Memory that this process may still take: what the machine has free, or what is left of the cgroup's limit."""
    import psutil

    free = int(psutil.virtual_memory().available)
    for limit_file, usage_file in (
        ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
        ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ):
        try:
            with open(limit_file) as limit, open(usage_file) as usage:
                free = min(free, int(limit.read()) - int(usage.read()))
        except (OSError, ValueError):
            continue  # no such cgroup, or no limit ("max")
    return free
