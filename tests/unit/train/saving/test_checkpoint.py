"""Checkpoints: round trip, keeping, torn files, other models."""

import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from seatrial.train.errors import CheckpointError, DiskFullError  # noqa: E402
from seatrial.train.saving import checkpoint  # noqa: E402
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
    names = {"checkpoint-0000000001.pt", "checkpoint-0000000002.pt", "best.pt", ".training"}
    assert {path.name for path in tmp_path.iterdir()} == names, "a name is left aside"


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


def test_a_torn_checkpoint_falls_back_and_reports_it(tmp_path: Path) -> None:
    writer = CheckpointWriter(tmp_path)
    for step in (1, 2):
        writer.save(step, {"model": {"weight": torch.full((1000,), float(step))}})
    writer.close()
    newest = checkpoints(tmp_path)[0]
    newest.write_bytes(newest.read_bytes()[:1500])
    message: list[str] = []
    assert load_newest(tmp_path, message.append)["model"]["weight"][0] == 1
    assert "checkpoint-0000000002.pt" in message[0] and "falling back" in message[0]
    checkpoints(tmp_path)[0].write_bytes(b"")
    with pytest.raises(CheckpointError, match="no readable checkpoint"):
        load_newest(tmp_path, message.append)


def test_another_model_names_the_tensors() -> None:
    model = torch.nn.Linear(4, 2)
    with pytest.raises(
        CheckpointError, match=r"bias is missing; .*extra is unknown; weight is \(3, 4\) there, \(2, 4\) here"
    ):
        load_model(model, {"weight": torch.zeros(3, 4), "extra": torch.zeros(1)}, "old.pt")


@pytest.mark.parametrize("process_bytes", [0, 10**12], ids=["process", "thread"])
def test_disk_failure_reaches_the_caller(process_bytes: int) -> None:
    writer = CheckpointWriter(Path("/dev/null/checkpoints"), process_bytes=process_bytes)
    writer.save(1, {"model": {"weight": torch.ones(3)}})
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


# Files of others in the folder ------------------------------------------------------------------------------------


def saved(folder: Path, *steps: int, keep: int = 1, training: str | None = None) -> CheckpointWriter:
    """Checkpoints of a training, each also the best."""
    writer = CheckpointWriter(folder, keep=keep, training=training)
    for step in steps:
        writer.save(step, {"model": {"weight": torch.full((2,), float(step))}}, best=True)
    writer.close()
    return writer


def test_files_of_others_survive_and_are_not_resumed(tmp_path: Path) -> None:
    theirs = ("checkpoint-final.pt", "checkpoint-99999.pt", "checkpoint-0000000002.pt", "best.pt", "checkpoint-7.pt")
    for name in theirs[:-1]:
        torch.save({"model": {"weight": torch.zeros(1)}, "epoch": 9}, tmp_path / name)
    (tmp_path / theirs[-1]).write_bytes(b"not a checkpoint at all")
    before = {name: (tmp_path / name).read_bytes() for name in theirs}
    writer = saved(tmp_path, 2)
    for step in (3, 2):  # an older one is not kept
        saved(tmp_path, step, training=writer.training)
    assert {path.name for path in writer.others} == set(theirs) - {"best.pt"}
    assert {name: (tmp_path / name).read_bytes() for name in theirs} == before
    own = {path.name for path in tmp_path.iterdir()} - set(theirs)
    assert own == {".training", "checkpoint-0000000003.pt", f"best-{writer.training[:8]}.pt"}
    message: list[str] = []
    assert load_newest(tmp_path, message.append)["model"]["weight"].tolist() == [3, 3]
    assert any("checkpoint-99999.pt is not from the last training" in each for each in message)


def test_numbers_decide_which_is_newest(tmp_path: Path) -> None:
    writer = CheckpointWriter(tmp_path, keep=9)
    for step in (10_000_000_001, 2_000_000_000):
        writer.save(step, {"model": {"weight": torch.tensor([float(step)])}})
    writer.close()
    assert [path.name for path in checkpoints(tmp_path)] == ["checkpoint-10000000001.pt", "checkpoint-2000000000.pt"]


def test_new_training_leaves_an_earlier_ones_checkpoints(tmp_path: Path) -> None:
    first = saved(tmp_path, 500)
    assert [path.name for path in checkpoints(tmp_path)] == ["checkpoint-0000000500.pt"]
    second = saved(tmp_path)  # ended before its first checkpoint
    assert second.others and not checkpoints(tmp_path), "an earlier training's is taken for its own"
    saved(tmp_path, 100, 500, keep=2, training=second.training)
    newest, older = checkpoints(tmp_path)
    assert newest.name == f"checkpoint-0000000500-{second.training[:8]}.pt" and older.name == "checkpoint-0000000100.pt"
    assert checkpoint.training_of(tmp_path / "checkpoint-0000000500.pt") == first.training
    resumed = saved(tmp_path, 501, training=first.training)  # by its file's name
    assert [path.name for path in checkpoints(tmp_path)] == ["checkpoint-0000000501.pt"]
    assert {path.name for path in resumed.others} == {newest.name, older.name}


def test_checkpoints_without_an_id_are_resumed_and_stay(tmp_path: Path) -> None:
    state = {"model": {}, "optimizer": {}, "epoch": 2, "rng": []}
    torch.save(state, tmp_path / "checkpoint-0000000010.pt")
    assert load_newest(tmp_path, print) == state
    saved(tmp_path, 20)
    assert (tmp_path / "checkpoint-0000000010.pt").exists()
    assert load_newest(tmp_path, print)["model"]["weight"].tolist() == [20, 20]


def test_copied_checkpoints_need_no_hidden_file(tmp_path: Path) -> None:
    saved(tmp_path, 1, 2, keep=2)
    (tmp_path / ".training").unlink()
    assert len(checkpoints(tmp_path)) == 2 and load_newest(tmp_path, print)["model"]["weight"].tolist() == [2, 2]


def test_file_that_another_training_is_writing_stays(tmp_path: Path) -> None:
    from seatrial.train.saving.atomic import write_file

    left = tmp_path / ".checkpoint-0000000001.pt.abcdefgh.part"
    strange = tmp_path / ".checkpoint-mine.part"
    for path in (left, strange):
        path.write_bytes(b"torn")

    def write(file: Any) -> None:
        file.write(b"whole")
        CheckpointWriter(tmp_path).close()

    write_file(tmp_path / "checkpoint-0000000002.pt", write)
    assert (tmp_path / "checkpoint-0000000002.pt").read_bytes() == b"whole"
    assert strange.exists() and not left.exists()


class SlowDisk:
    """Writes nothing before ``goes_on`` is set; then the steps in ``written``."""

    def __init__(self) -> None:
        self.goes_on, self.written = threading.Event(), list[int]()


def slow_disk(monkeypatch: pytest.MonkeyPatch) -> SlowDisk:
    """Put a slow disk under every CheckpointWriter."""
    disk, write = SlowDisk(), CheckpointWriter._write

    def slow(self: CheckpointWriter, global_step: int, *others: Any) -> None:
        disk.goes_on.wait(30)
        disk.written.append(global_step)
        write(self, global_step, *others)

    monkeypatch.setattr(CheckpointWriter, "_write", slow)
    return disk


# Written by a process of its own ---------------------------------------------------------------------------------


def state_of(number: int) -> dict[str, object]:
    """A state with everything that there may be: layouts, formats, nothing, names for numbers."""
    images = torch.full((2, 3, 4, 5), float(number)).contiguous(memory_format=torch.channels_last)
    return {
        "model": {"weight": torch.arange(600.0) * number, "nhwc": images, "half": torch.ones(3).bfloat16() * number},
        "optimizer": {"state": {0: {"step": torch.tensor(number)}}, "param_groups": [{"lr": 0.1, "params": [0]}]},
        "sliced": torch.arange(24.0).view(4, 6)[:, ::2] + number,
        "none": [torch.empty(0, 3), None, (1, "text", True)],
        "rng": rng_state(),
    }


def same(a: object, b: object) -> bool:
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and torch.equal(a, b)  # type: ignore[attr-defined]
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)  # type: ignore[call-overload,index]
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))  # type: ignore[arg-type]
    return a == b


def test_the_process_writes_what_the_thread_writes(tmp_path: Path) -> None:
    saved = state_of(3)
    for place, process_bytes in (("thread", 10**9), ("process", 0)):
        writer = CheckpointWriter(tmp_path / place, process_bytes=process_bytes, training="0" * 32)
        writer.save(7, saved, best=True)
        writer.close()
    thread, process = (load_newest(tmp_path / place, print) for place in ("thread", "process"))
    assert same({**saved, "training": "0" * 32}, thread) and same(thread, process)
    assert process["model"]["nhwc"].is_contiguous(memory_format=torch.channels_last)
    sizes = [(tmp_path / place / "best.pt").stat().st_size for place in ("thread", "process")]
    assert abs(sizes[0] - sizes[1]) < 2000, "tensors share a storage that is written whole for each"


def test_large_states_wait_for_a_slow_disk_if_memory_allows_and_the_training_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = slow_disk(monkeypatch)
    writer = CheckpointWriter(tmp_path, keep=2, process_bytes=0)
    for step in range(1, 10):
        writer.save(step, state_of(step), best=step == 3)  # returns although nothing can be written
        assert len(writer._waiting) <= 2 + 1, "copies on the device: those to keep, and the best"
        time.sleep(0.05)
    assert not disk.written
    disk.goes_on.set()
    writer.close()
    assert disk.written[-2:] == [8, 9] and 3 in disk.written and len(disk.written) <= 5
    assert same(load_newest(tmp_path, print)["model"], state_of(9)["model"])
    assert same(load_newest(tmp_path / "best.pt", print)["model"], state_of(3)["model"])


def test_the_training_waits_where_a_large_state_does_not_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = slow_disk(monkeypatch)
    monkeypatch.setattr(checkpoint, "free_bytes", lambda device: 0)
    writer = CheckpointWriter(tmp_path, keep=1, process_bytes=0)
    done = threading.Thread(target=lambda: [writer.save(step, state_of(step), best=True) for step in range(1, 7)])
    done.start()
    done.join(1)
    assert done.is_alive(), "six states were copied, and none fits"
    disk.goes_on.set()
    done.join(60)
    writer.close()
    assert disk.written == [1, 2, 3, 4, 5, 6], "the best of its time is never left out"


def test_a_process_that_is_killed_is_done_without(tmp_path: Path) -> None:
    writer = CheckpointWriter(tmp_path, process_bytes=0)
    writer.save(1, state_of(1))
    while not checkpoints(tmp_path):
        time.sleep(0.05)
    os.kill(writer._process.pid, signal.SIGKILL)  # type: ignore[union-attr]
    writer.save(2, state_of(2))
    writer.close()
    assert same(load_newest(tmp_path, print)["model"], state_of(2)["model"])


def test_what_a_killed_training_left_aside_is_removed(tmp_path: Path) -> None:
    (tmp_path / ".checkpoint-0000000001.pt.x7.part").write_bytes(b"half")
    (tmp_path / "notes.part").write_text("mine")
    CheckpointWriter(tmp_path).close()
    assert {path.name for path in tmp_path.iterdir()} == {"notes.part", ".training"}


def lives(process: str) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


TRAINING = """
import sys, torch
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from seatrial.train.saving.checkpoint import CheckpointWriter, last_training
torch.set_num_threads(1)
folder = Path(sys.argv[1])
writer = CheckpointWriter(folder, keep=2, process_bytes=int(sys.argv[2]), training=last_training(folder))
print("ready", flush=True)
newest = max([int(path.stem.split("-")[1]) for path in Path(sys.argv[1]).glob("checkpoint-*.pt")], default=0)
for step in range(newest + 1, 10**6):
    tensors = {str(n): torch.full((100_000,), float(step)) for n in range(40)}
    writer.save(step, {"model": tensors}, best=step % 5 == 0)
"""


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("process_bytes", [0, 10**12], ids=["process", "thread"])
@pytest.mark.parametrize("whom", ["training", "both"])
def test_killed_at_any_moment_of_a_write(tmp_path: Path, process_bytes: int, whom: str) -> None:
    """SIGKILL at random moments, over and over in one folder: each time the newest is whole, and none gets older."""
    if whom == "both" and process_bytes:
        pytest.skip("there is one process only")
    draws, newest, torn = random.Random(7), 0, 0
    for _ in range(12):
        started = subprocess.Popen(
            [sys.executable, "-c", TRAINING, str(tmp_path), str(process_bytes)], stdout=subprocess.PIPE
        )
        assert started.stdout is not None and started.stdout.readline() == b"ready\n"
        before = {path.name for path in checkpoints(tmp_path)}
        deadline = time.monotonic() + 60
        while {path.name for path in checkpoints(tmp_path)} == before:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        time.sleep(draws.uniform(0, 0.4))
        tasks = Path(f"/proc/{started.pid}/task").glob("*/children")  # a thread started the process
        children = [child for task in tasks for child in task.read_text().split()]
        assert len(children) == (process_bytes == 0)
        started.kill()
        if whom == "both":
            for child in children:
                os.kill(int(child), signal.SIGKILL)
        started.wait()
        while whom == "training" and any(map(lives, children)):
            time.sleep(0.05)  # it finishes what it has
        torn += len(list(tmp_path.glob(".checkpoint-*.part")))
        for path in (checkpoints(tmp_path)[0], *tmp_path.glob("best.pt")):
            tensors = load_newest(path, print)["model"]
            assert len({float(value) for tensor in tensors.values() for value in (tensor.min(), tensor.max())}) == 1
        assert int(checkpoints(tmp_path)[0].stem.split("-")[1]) > newest
        newest = int(checkpoints(tmp_path)[0].stem.split("-")[1])
    assert newest and (torn or whom == "training"), "no write was hit"
