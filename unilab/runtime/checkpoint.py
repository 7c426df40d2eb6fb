"""Checkpoints: folders of safetensors parts with a manifest of checksums, written whole or not at all.

RUN/checkpoints/000000120/manifest.json           what it is, counters, SHA-256 of each part
                          algorithm.safetensors   weights, optimiser, normalisers
                          curriculum.safetensors
                          bank.safetensors        the envs
                          snapshots.safetensors   the policy versions still in use
                          memory.safetensors      the replay, with `save_replay`
RUN/checkpoints/best.json                         which one evaluated best
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from unilab.names import in_shell
from unilab.runtime.digest import leaves_by_path, named_leaves
from unilab.runtime.errors import SaveError
from unilab.runtime.metrics import sync_folder, to_plain, write_json

SCHEMA = 2
KEPT = 2  # newest checkpoints that stay, besides the best


class CheckpointError(ValueError):
    """A checkpoint is missing, damaged, or belongs to something else."""


class NewerSchemaError(CheckpointError):
    """A checkpoint was written by another version of unilab; it is whole, so an older one is no substitute."""


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that was read and whose checksums are right."""

    folder: Path
    manifest: dict[str, Any]
    parts: dict[str, dict[str, np.ndarray]]
    damaged: tuple[str, ...] = ()
    """What is wrong with newer ones, one line each, for the user to see."""

    def tree(self, part: str, template: Any) -> Any:
        """The pytree of a part on the JAX device, shaped like `template`.

        Raises:
            CheckpointError: as for `arrays`.
        """
        arrays = self.arrays(part, template)
        treedef = jax.tree.structure(template)
        return jax.tree.unflatten(treedef, [jax.numpy.asarray(arrays[name]) for name in leaves_by_path(template)])

    def arrays(self, part: str, template: Any) -> dict[str, np.ndarray]:
        """The arrays of a part on the host, named and shaped like the leaves of `template` (arrays, or their shapes).

        Raises:
            CheckpointError: names, shapes or dtypes differ; the message names the first difference.
        """
        if part not in self.parts:
            raise CheckpointError(f"{self.folder} has no part {part!r}; it has {sorted(self.parts)}")
        arrays, expected = self.parts[part], leaves_by_path(template)
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
        return arrays


def save_checkpoint(run: Path, iteration: int, parts: dict[str, Any], facts: dict[str, Any]) -> Path:
    """Write pytrees as checkpoint `iteration` of a run: to a temporary folder, synced, then renamed.

    Args:
        parts: pytrees by name.
        facts: what else the manifest should say.

    Raises:
        SaveError: it could not be written; earlier checkpoints are untouched.
    """
    try:
        return _save(run / "checkpoints", iteration, parts, facts)
    except OSError as error:
        raise _save_error(run, iteration, error) from error


def _save_error(run: Path, iteration: int, error: OSError) -> SaveError:
    return SaveError(
        f"checkpoint {iteration} cannot be written ({error.strerror or error}: {run}); earlier ones are untouched. "
        f"Make room, then `unilab resume {in_shell(run)}`"
    )


def _save(root: Path, iteration: int, parts: dict[str, Any], facts: dict[str, Any]) -> Path:
    root.mkdir(exist_ok=True)
    for leftover in root.glob(".*.tmp"):  # of a process that was killed while it wrote
        shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink()
    final, temporary = root / f"{iteration:09d}", root / f".{iteration:09d}.{os.getpid()}.tmp"
    try:
        temporary.mkdir()
        sums = {}
        for name, tree in parts.items():
            data = save({k: np.asarray(v, order="C") for k, v in named_leaves(tree).items()})
            sums[f"{name}.safetensors"] = hashlib.sha256(data).hexdigest()
            _write_synced(temporary / f"{name}.safetensors", data)
        manifest = to_plain({"schema": SCHEMA, "iteration": iteration, "sha256": sums, **facts})
        manifest["own_sha256"] = _own_sum(manifest)
        _write_synced(temporary / "manifest.json", json.dumps(manifest, indent=2).encode())
        sync_folder(temporary)
        if final.exists():  # a run saves an iteration once; this one is of another
            shutil.rmtree(final)
        temporary.rename(final)
        sync_folder(root)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    _prune(root)
    return final


def mark_best(run: Path, iteration: int) -> None:
    """Record which checkpoint evaluated best; it will be kept.

    Raises:
        SaveError: it could not be written.
    """
    try:
        write_json(run / "checkpoints" / "best.json", {"iteration": iteration})
    except OSError as error:
        raise _save_error(run, iteration, error) from error
    _prune(run / "checkpoints")


def load_checkpoint(run: Path, which: str = "latest") -> Checkpoint:
    """Read the "latest" or "best" checkpoint of a run and check every part.

    The latest is the newest that is whole; `damaged` tells of newer ones.

    Raises:
        CheckpointError: there is none, the best is damaged, or all are.
    """
    root = run / "checkpoints"
    folders = _numbers(root)
    if not folders:
        raise CheckpointError(
            f"{run} has no checkpoint; a run folder holds checkpoints/<iteration>/manifest.json. If the run was killed "
            "before its first one, remove it and train anew"
        )
    best = _best(root) if which == "best" else None
    if best:
        return read_checkpoint(root / best)
    damaged: list[str] = []
    for folder in reversed(folders):
        try:
            return replace(read_checkpoint(folder), damaged=tuple(damaged))
        except NewerSchemaError:
            raise
        except CheckpointError as error:
            damaged.append(str(error))
    raise CheckpointError("; ".join(damaged))


def has_checkpoint(run: Path) -> bool:
    """Whether a run has a checkpoint, whole or not."""
    return bool(_numbers(run / "checkpoints"))


def drop_newer(run: Path, iteration: int, best: int | None) -> None:
    """Put aside damaged checkpoints after `iteration`, from which a run goes on, and mark `best` as it was then."""
    root = run / "checkpoints"
    for folder in _numbers(root):
        if int(folder.name) > iteration:
            shutil.rmtree(root / f"{folder.name}.damaged", ignore_errors=True)
            folder.rename(root / f"{folder.name}.damaged")
    if best is not None and (root / f"{best:09d}").is_dir():
        write_json(root / "best.json", {"iteration": best})
    else:
        (root / "best.json").unlink(missing_ok=True)


def read_checkpoint(folder: Path) -> Checkpoint:
    """Read one checkpoint folder.

    Raises:
        CheckpointError: the manifest or a part is missing, cut short, altered, or of a newer schema.
    """
    try:
        manifest = json.loads((folder / "manifest.json").read_text())
        schema, sums, own_sum = manifest["schema"], dict(manifest["sha256"]), manifest.pop("own_sha256", None)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"{folder}: the manifest cannot be read ({type(error).__name__}: {error})") from None
    is_signed = own_sum is not None or schema == SCHEMA  # schema 1 was not
    if is_signed and own_sum != _own_sum(manifest):
        raise CheckpointError(f"{folder}: manifest.json is damaged (its checksum differs)")
    if schema != SCHEMA:
        raise NewerSchemaError(
            f"{folder}: schema {schema}, but this version of unilab reads schema {SCHEMA}; it was written by another "
            "version of unilab: use that one"
        )
    parts = {}
    for name, expected in sums.items():
        try:
            data = (folder / name).read_bytes()
        except OSError as error:
            raise CheckpointError(f"{folder}: {name} cannot be read ({error.strerror})") from None
        if hashlib.sha256(data).hexdigest() != expected:
            raise CheckpointError(f"{folder}: {name} is damaged (its checksum differs from the manifest's)")
        try:
            parts[name.removesuffix(".safetensors")] = load(data)
        except SafetensorError as error:
            raise CheckpointError(f"{folder}: {name} cannot be read ({error})") from None
    return Checkpoint(folder, manifest, parts)


def _numbers(root: Path) -> list[Path]:
    return sorted(path for path in root.iterdir() if path.name.isdecimal() and path.is_dir()) if root.is_dir() else []


def _own_sum(manifest: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


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
