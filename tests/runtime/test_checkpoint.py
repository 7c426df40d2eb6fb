from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unilab.runtime import checkpoint as checkpoint_module
from unilab.runtime.checkpoint import (
    KEPT,
    SCHEMA,
    CheckpointError,
    _own_sum,
    load_checkpoint,
    mark_best,
    read_checkpoint,
    save_checkpoint,
)
from unilab.runtime.digest import named_leaves
from unilab.runtime.errors import SaveError

TREE = {
    "params": [jnp.arange(6.0).reshape(2, 3), jnp.int32(3)],
    "empty": jnp.zeros((0, 2)),
    "nan": jnp.array([np.nan, -0.0]),
}


def save(run: Path, iteration: int, tree: Any = TREE) -> Path:
    return save_checkpoint(run, iteration, {"algorithm": tree, "curriculum": {}}, {"fact": "so"})


def checkpoints(run: Path) -> list[int]:
    return sorted(int(path.name) for path in (run / "checkpoints").iterdir() if path.is_dir())


def test_round_trip_keeps_every_bit(tmp_path: Path) -> None:
    """A tree is read back with its structure, shapes, dtypes and bits; facts stand in the manifest."""
    save(tmp_path, 7)
    loaded = load_checkpoint(tmp_path)
    assert (loaded.manifest["iteration"], loaded.manifest["fact"]) == (7, "so")
    found, expected = named_leaves(loaded.tree("algorithm", TREE)), named_leaves(TREE)
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        assert (found[name].shape, found[name].dtype) == (array.shape, array.dtype)
        assert found[name].tobytes() == array.tobytes()
    assert loaded.tree("curriculum", {}) == {}


def flip(folder: Path) -> None:
    data = bytearray((folder / "algorithm.safetensors").read_bytes())
    data[-1] ^= 1
    (folder / "algorithm.safetensors").write_bytes(data)


def cut_short(folder: Path) -> None:
    data = (folder / "algorithm.safetensors").read_bytes()
    (folder / "algorithm.safetensors").write_bytes(data[: len(data) // 2])


def empty(folder: Path) -> None:
    for path in folder.iterdir():
        path.unlink()


def newer(folder: Path) -> None:
    manifest = json.loads((folder / "manifest.json").read_text())
    del manifest["own_sha256"]
    manifest["schema"] = SCHEMA + 1
    (folder / "manifest.json").write_text(json.dumps(manifest | {"own_sha256": _own_sum(manifest)}))


DAMAGE = {
    "a flipped bit": (flip, r"algorithm\.safetensors is damaged"),
    "a part cut short": (cut_short, r"algorithm\.safetensors is damaged"),
    "an empty folder": (empty, "the manifest cannot be read"),
    "a missing part": (lambda f: (f / "algorithm.safetensors").unlink(), r"algorithm\.safetensors cannot be read"),
    "a newer schema": (newer, f"schema {SCHEMA + 1}, but this version of unilab reads schema {SCHEMA}"),
    "a manifest cut short": (
        lambda f: (f / "manifest.json").write_text('{"schema": 1,'),
        "the manifest cannot be read",
    ),
    "another manifest": (lambda f: (f / "manifest.json").write_text("[]"), "the manifest cannot be read"),
    "binary rubbish": (lambda f: (f / "manifest.json").write_bytes(b"\xff\xfe\x00"), "the manifest cannot be read"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_named(tmp_path: Path, damage: str) -> None:
    """A damaged checkpoint is refused with one line that names the folder and what is wrong."""
    folder = save(tmp_path, 3)
    spoil, message = DAMAGE[damage]
    spoil(folder)
    with pytest.raises(CheckpointError, match=message) as caught:
        load_checkpoint(tmp_path)
    assert str(folder) in str(caught.value)
    assert "\n" not in str(caught.value)


OTHER = {
    "shape": (TREE | {"empty": jnp.zeros((0, 3))}, r"algorithm/empty is float32\[0, 2\], .* needs float32\[0, 3\]"),
    "dtype": (TREE | {"nan": jnp.zeros(2, jnp.int32)}, r"algorithm/nan is float32\[2\], .* needs int32\[2\]"),
    "missing": (TREE | {"more": jnp.zeros(1)}, r"lacks \['more'\]"),
    "surplus": ({"params": TREE["params"]}, r"unknown \['empty', 'nan'\]"),
}


@pytest.mark.parametrize("other", OTHER)
def test_another_configurations_tree_is_refused(tmp_path: Path, other: str) -> None:
    """A template of other names, shapes or dtypes is an error that names the first difference, never a cast."""
    save(tmp_path, 3)
    template, message = OTHER[other]
    with pytest.raises(CheckpointError, match=message):
        load_checkpoint(tmp_path).tree("algorithm", template)


def test_no_checkpoint_is_named(tmp_path: Path) -> None:
    """A folder without checkpoints says so, and what it should hold."""
    for run in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(CheckpointError, match=r"has no checkpoint; a run folder holds checkpoints/"):
            load_checkpoint(run)


def test_a_missing_part_of_a_sound_checkpoint_is_named(tmp_path: Path) -> None:
    """Asking for a part that was never saved is a CheckpointError too."""
    save(tmp_path, 3)
    with pytest.raises(CheckpointError, match="optimizer"):
        load_checkpoint(tmp_path).tree("optimizer", {})


@pytest.mark.parametrize("failure", ["part", "manifest", "rename"])
def test_a_failed_write_leaves_the_earlier_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: str) -> None:
    """When the disk is full half way, the error is raised, earlier checkpoints stay sound, and no rubbish is left."""
    save(tmp_path, 1)
    save(tmp_path, 2)
    calls: list[Path] = []
    real_write, real_rename = checkpoint_module._write_synced, Path.rename

    def full_disk(path: Path, data: bytes) -> None:
        calls.append(path)
        if (path.name == "manifest.json") == (failure == "manifest"):
            path.write_bytes(data[: len(data) // 2])
            raise OSError(28, "No space left on device")
        real_write(path, data)

    def no_rename(self: Path, target: Any) -> Any:
        if str(target).endswith("000000003"):
            raise OSError(28, "No space left on device")
        return real_rename(self, target)

    if failure == "rename":
        monkeypatch.setattr(Path, "rename", no_rename)
    else:
        monkeypatch.setattr(checkpoint_module, "_write_synced", full_disk)
    with pytest.raises(SaveError, match=r"checkpoint 3 cannot be written \(No space left"):
        save(tmp_path, 3)
    assert checkpoints(tmp_path) == [1, 2]
    assert len(list((tmp_path / "checkpoints").iterdir())) == 2
    assert load_checkpoint(tmp_path).manifest["iteration"] == 2


def test_a_checkpoint_is_written_again_whole(tmp_path: Path) -> None:
    """Saving an iteration again replaces it."""
    save(tmp_path, 4)
    save(tmp_path, 4, TREE | {"nan": jnp.ones(2)})
    assert load_checkpoint(tmp_path).tree("algorithm", TREE)["nan"].tolist() == [1.0, 1.0]
    assert checkpoints(tmp_path) == [4]


def test_the_newest_and_the_best_are_kept(tmp_path: Path) -> None:
    """Only the newest few checkpoints and the best one stay; the best one is found again, and may change."""
    for iteration in range(1, 4):
        save(tmp_path, iteration)
    mark_best(tmp_path, 3)
    for iteration in range(4, 9):
        save(tmp_path, iteration)
    assert checkpoints(tmp_path) == [3, *range(9 - KEPT, 9)]
    assert load_checkpoint(tmp_path, "best").manifest["iteration"] == 3
    assert load_checkpoint(tmp_path, "latest").manifest["iteration"] == 8
    mark_best(tmp_path, 8)
    assert checkpoints(tmp_path) == list(range(9 - KEPT, 9))
    assert load_checkpoint(tmp_path, "best").manifest["iteration"] == 8


def test_best_is_the_latest_while_none_is_marked(tmp_path: Path) -> None:
    """Before any evaluation the best checkpoint is the newest."""
    save(tmp_path, 1)
    save(tmp_path, 2)
    assert load_checkpoint(tmp_path, "best").manifest["iteration"] == 2


@pytest.mark.parametrize("content", ["", "{}", "[1]", '{"iteration": "x"}', '{"iteration": 99}'])
def test_a_damaged_best_pointer_is_named(tmp_path: Path, content: str) -> None:
    """A pointer to the best checkpoint that leads nowhere is a CheckpointError, and saving goes on."""
    save(tmp_path, 1)
    (tmp_path / "checkpoints" / "best.json").write_text(content)
    with pytest.raises(CheckpointError):
        load_checkpoint(tmp_path, "best")
    assert load_checkpoint(tmp_path, "latest").manifest["iteration"] == 1
    save(tmp_path, 2)
    assert load_checkpoint(tmp_path, "latest").manifest["iteration"] == 2


def test_the_one_before_a_damaged_checkpoint_is_used(tmp_path: Path) -> None:
    """Damaged newest checkpoints are passed over, newest first, and told of."""
    for iteration in (1, 2, 3):
        folder = save(tmp_path, iteration)
        if iteration == 1:
            mark_best(tmp_path, 1)
    flip(folder)
    empty(tmp_path / "checkpoints" / "000000002")
    loaded = load_checkpoint(tmp_path)
    assert loaded.manifest["iteration"] == 1
    assert ["000000003" in loaded.damaged[0], "000000002" in loaded.damaged[1]] == [True, True]


def test_a_newer_schema_is_not_passed_over(tmp_path: Path) -> None:
    """A checkpoint of a newer unilab is whole: an older one in its place would silently lose work."""
    save(tmp_path, 1)
    newer(save(tmp_path, 2))
    with pytest.raises(CheckpointError, match="it was written by another version"):
        load_checkpoint(tmp_path)


@given(data=st.data())
def test_no_damage_goes_unnoticed(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """Any file of a checkpoint with bytes changed, cut off or added: a CheckpointError, and never anything else."""
    run = tmp_path_factory.mktemp("run")
    folder = save(run, 3)
    path = data.draw(st.sampled_from(sorted(folder.iterdir())))
    content = path.read_bytes()
    start = data.draw(st.integers(0, len(content)))
    stop = data.draw(st.integers(start, min(len(content), start + 20)))
    changed = content[:start] + data.draw(st.binary(max_size=20)) + content[stop:]
    path.write_bytes(changed)
    if path.suffix == ".json" and _means_the_same(content, changed):
        return
    if changed == content:
        read_checkpoint(folder)
    else:
        with pytest.raises(CheckpointError):
            read_checkpoint(folder)


def _means_the_same(a: bytes, b: bytes) -> bool:
    """Whether two manifests differ in white space at most."""
    try:
        return bool(json.loads(a) == json.loads(b))
    except ValueError:
        return False


def test_a_left_over_temporary_folder_is_no_checkpoint(tmp_path: Path) -> None:
    """What a killed writer left behind is not taken for a checkpoint."""
    save(tmp_path, 1)
    left = tmp_path / "checkpoints" / f".000000002.{os.getpid()}.tmp"
    left.mkdir()
    (left / "manifest.json").write_text("{}")
    (tmp_path / "checkpoints" / f".best.json.{os.getpid()}.tmp").write_text("{")
    assert load_checkpoint(tmp_path).manifest["iteration"] == 1
    assert read_checkpoint(save(tmp_path, 2)).manifest["iteration"] == 2
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["000000001", "000000002"]
