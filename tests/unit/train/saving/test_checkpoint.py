"""Checkpoints: round trip, keeping, torn files, other models."""

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from seatrial.train.errors import CheckpointError, DiskFullError  # noqa: E402
from seatrial.train.saving.checkpoint import CheckpointWriter, checkpoints, load_model, load_newest  # noqa: E402
from seatrial.train.saving.rng import rng_state, set_rng_state  # noqa: E402

pytestmark = pytest.mark.torch


def test_round_trip_keeps_the_last_and_the_best(tmp_path: Path) -> None:
    weight = torch.zeros(3)
    writer = CheckpointWriter(tmp_path, keep=2)
    for step in range(1, 5):
        weight += 1
        writer.save(step, {"model": {"weight": weight}, "rng": rng_state()}, best=step == 2)
    weight += 100  # the snapshots are copies
    writer.close()
    assert [path.name for path in checkpoints(tmp_path)] == ["checkpoint-0000000004.pt", "checkpoint-0000000003.pt"]
    assert load_newest(tmp_path, print)["model"]["weight"].tolist() == [4, 4, 4]
    assert load_newest(tmp_path / "best.pt", print)["model"]["weight"].tolist() == [2, 2, 2]


def test_the_best_is_not_written_twice(tmp_path: Path) -> None:
    writer = CheckpointWriter(tmp_path)
    for step in (1, 2):
        writer.save(step, {"model": {"weight": torch.full((3,), float(step))}}, best=True)
    writer.close()
    assert (tmp_path / "best.pt").samefile(checkpoints(tmp_path)[0])
    assert len(list(tmp_path.iterdir())) == 3, "a name is left aside"


def test_a_file_system_without_hard_links_gets_the_best_as_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(self: Path, target: Path) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(Path, "hardlink_to", refused)
    writer = CheckpointWriter(tmp_path)
    writer.save(1, {"model": {"weight": torch.ones(3)}}, best=True)
    writer.close()
    assert not (tmp_path / "best.pt").samefile(checkpoints(tmp_path)[0])
    assert load_newest(tmp_path / "best.pt", print)["model"]["weight"].tolist() == [1, 1, 1]


def test_a_torn_checkpoint_falls_back_and_says_so(tmp_path: Path) -> None:
    writer = CheckpointWriter(tmp_path)
    for step in (1, 2):
        writer.save(step, {"model": {"weight": torch.full((1000,), float(step))}})
    writer.close()
    newest = checkpoints(tmp_path)[0]
    newest.write_bytes(newest.read_bytes()[:1500])
    said: list[str] = []
    assert load_newest(tmp_path, said.append)["model"]["weight"][0] == 1
    assert "checkpoint-0000000002.pt" in said[0] and "falling back" in said[0]
    checkpoints(tmp_path)[1].write_bytes(b"")
    with pytest.raises(CheckpointError, match="no readable checkpoint"):
        load_newest(tmp_path, said.append)


def test_no_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no checkpoint in"):
        load_newest(tmp_path, print)


def test_another_model_names_the_tensors() -> None:
    model = torch.nn.Linear(4, 2)
    with pytest.raises(
        CheckpointError, match=r"bias is missing; .*extra is unknown; weight is \(3, 4\) there, \(2, 4\) here"
    ):
        load_model(model, {"weight": torch.zeros(3, 4), "extra": torch.zeros(1)}, "old.pt")


def test_a_disk_failure_reaches_the_caller() -> None:
    writer = CheckpointWriter(Path("/dev/null/checkpoints"))
    writer.save(1, {"model": {}})
    with pytest.raises(DiskFullError, match="cannot write"):
        writer.close()


def test_rng_state_repeats_every_generator(tmp_path: Path) -> None:
    import random

    import numpy as np

    writer = CheckpointWriter(tmp_path)
    writer.save(1, {"rng": rng_state()})
    writer.close()
    first = (random.random(), np.random.rand(), torch.rand(()).item())
    set_rng_state(load_newest(tmp_path, print)["rng"])
    assert (random.random(), np.random.rand(), torch.rand(()).item()) == first
