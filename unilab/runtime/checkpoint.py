"""Checkpoints: folders of safetensors parts with a manifest of checksums, written whole or not at all.

RUN/checkpoints/000000120/manifest.json       what it is, SHA-256 of each part
                          algorithm.safetensors
RUN/checkpoints/best.json                     which one evaluated best
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
from safetensors.numpy import load, save

from unilab.runtime.determinism import named_leaves
from unilab.runtime.metrics import write_json

SCHEMA = 1
KEPT = 2  # newest checkpoints that stay, besides the best


class CheckpointError(ValueError):
    """A checkpoint is missing, damaged, or belongs to something else."""


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that was read and whose checksums are right."""

    folder: Path
    manifest: dict[str, Any]
    parts: dict[str, dict[str, np.ndarray]]

    def tree(self, part: str, template: Any) -> Any:
        """The pytree of a part, shaped like `template`.

        Raises:
            CheckpointError: names, shapes or dtypes differ; the message names the first difference.
        """
        if part not in self.parts:
            raise CheckpointError(f"{self.folder} has no part {part!r}; it has {sorted(self.parts)}")
        arrays, expected = self.parts[part], named_leaves(template)
        missing, surplus = sorted(set(expected) - set(arrays)), sorted(set(arrays) - set(expected))
        if missing or surplus:
            raise CheckpointError(f"{self.folder}: part {part!r} lacks {missing[:3]} and has unknown {surplus[:3]}")
        for name, leaf in expected.items():
            found = arrays[name]
            if found.shape != leaf.shape or found.dtype != leaf.dtype:
                raise CheckpointError(
                    f"{self.folder}: {part}/{name} is {found.dtype}{list(found.shape)}, "
                    f"this configuration needs {leaf.dtype}{list(leaf.shape)}"
                )
        treedef = jax.tree.structure(template)
        return jax.tree.unflatten(treedef, [jax.numpy.asarray(arrays[name]) for name in expected])


def save_checkpoint(run: Path, iteration: int, parts: dict[str, Any], facts: dict[str, Any]) -> Path:
    """Write pytrees as checkpoint `iteration` of a run: to a temporary folder, synced, then renamed.

    Args:
        parts: pytrees by name.
        facts: what else the manifest should say.

    Raises:
        OSError: it could not be written; earlier checkpoints are untouched.
    """
    root = run / "checkpoints"
    root.mkdir(exist_ok=True)
    final, temporary = root / f"{iteration:09d}", root / f".{iteration:09d}.{os.getpid()}.tmp"
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        temporary.mkdir()
        sums = {}
        for name, tree in parts.items():
            data = save({k: np.asarray(v, order="C") for k, v in named_leaves(tree).items()})
            sums[f"{name}.safetensors"] = hashlib.sha256(data).hexdigest()
            _write_synced(temporary / f"{name}.safetensors", data)
        manifest = {"schema": SCHEMA, "iteration": iteration, "sha256": sums, **facts}
        _write_synced(temporary / "manifest.json", json.dumps(manifest, indent=2).encode())
        if final.exists():
            shutil.rmtree(final)
        temporary.rename(final)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    _prune(root)
    return final


def mark_best(run: Path, iteration: int) -> None:
    """Record which checkpoint evaluated best; it will be kept."""
    write_json(run / "checkpoints" / "best.json", {"iteration": iteration})
    _prune(run / "checkpoints")


def load_checkpoint(run: Path, which: str = "latest") -> Checkpoint:
    """Read the "latest" or "best" checkpoint of a run and check every part.

    Raises:
        CheckpointError: there is none, or it is damaged.
    """
    root = run / "checkpoints"
    numbers = _numbers(root)
    if not numbers:
        raise CheckpointError(f"{run} has no checkpoint; a run folder holds checkpoints/<iteration>/manifest.json")
    best = _best(root) if which == "best" else None
    return read_checkpoint(root / best if best else numbers[-1])


def read_checkpoint(folder: Path) -> Checkpoint:
    """Read one checkpoint folder.

    Raises:
        CheckpointError: the manifest or a part is missing, cut short, altered, or of a newer schema.
    """
    try:
        manifest = json.loads((folder / "manifest.json").read_text())
        schema, sums = manifest["schema"], dict(manifest["sha256"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{folder}: the manifest cannot be read ({type(error).__name__}: {error})") from None
    if schema != SCHEMA:
        raise CheckpointError(f"{folder}: schema {schema}, but this version of unilab reads schema {SCHEMA}")
    parts = {}
    for name, expected in sums.items():
        try:
            data = (folder / name).read_bytes()
        except OSError as error:
            raise CheckpointError(f"{folder}: {name} cannot be read ({error.strerror})") from None
        if hashlib.sha256(data).hexdigest() != expected:
            raise CheckpointError(f"{folder}: {name} is damaged (its checksum differs from the manifest's)")
        parts[name.removesuffix(".safetensors")] = load(data)
    return Checkpoint(folder, manifest, parts)


def _numbers(root: Path) -> list[Path]:
    return sorted(path for path in root.glob("[0-9]*") if path.is_dir()) if root.is_dir() else []


def _best(root: Path) -> str | None:
    """Folder name of the best checkpoint, or None while none is marked."""
    pointer = root / "best.json"
    if not pointer.exists():
        return None
    try:
        return f"{json.loads(pointer.read_text())['iteration']:09d}"
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{pointer} cannot be read ({type(error).__name__}: {error})") from None


def _prune(root: Path) -> None:
    try:
        best = _best(root)
    except CheckpointError:
        return  # whichever was best must not be lost
    for path in _numbers(root)[:-KEPT]:
        if path.name != best:
            shutil.rmtree(path)


def _write_synced(path: Path, data: bytes) -> None:
    with open(path, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
