"""Checkpoints are whole or absent: round trips, torn files, files of others, slow disks, killed processes."""

import os
import random
import resource
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from seatrial.train.errors import CheckpointError, DiskFullError  # noqa: E402
from seatrial.train.saving import arena, checkpoint  # noqa: E402
from seatrial.train.saving.arena import HostCopies, Staging  # noqa: E402
from seatrial.train.saving.atomic import write_file, write_text  # noqa: E402
from seatrial.train.saving.checkpoint import CheckpointWriter, checkpoints, load_model, load_newest  # noqa: E402
from seatrial.train.saving.rng import rng_state, set_rng_state  # noqa: E402

pytestmark = pytest.mark.torch


def saved(folder: Path, *steps: int, best: Any = None, **options: Any) -> CheckpointWriter:
    """Save checkpoints whose weights are their step's number, each also the best."""
    writer, weight = CheckpointWriter(folder, **options), torch.zeros(2)
    for step in steps:
        writer.save(step, {"model": {"weight": weight.fill_(step)}}, best=best in (None, step))
    weight.fill_(-1)  # the snapshots are copies
    writer.close()
    return writer


def names(folder: Path) -> list[str]:
    """Return the names of a folder's checkpoints, newest first."""
    return [path.name for path in checkpoints(folder)]


def weight(place: Path, note: Any = print) -> list[float]:
    found: list[float] = load_newest(place, note)["model"]["weight"].tolist()
    return found


def test_round_trip_keeps_the_last_and_the_best(tmp_path: Path) -> None:
    saved(tmp_path, 1, 2, 3, 4, keep=2, best=2)
    assert names(tmp_path) == ["checkpoint-0000000004.pt", "checkpoint-0000000003.pt"]
    assert weight(tmp_path) == [4, 4] and weight(tmp_path / "best.pt") == [2, 2]


@pytest.mark.parametrize("links", [True, False], ids=["links", "no hard links"])
def test_best_is_a_link_or_where_there_are_none_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, links: bool
) -> None:
    def refused(self: Path, target: Path) -> None:
        raise PermissionError(1, "Operation not permitted")

    if not links:
        monkeypatch.setattr(Path, "hardlink_to", refused)
    saved(tmp_path, 1, 2)
    assert (tmp_path / "best.pt").samefile(checkpoints(tmp_path)[0]) == links
    there = {"checkpoint-0000000001.pt", "checkpoint-0000000002.pt", "best.pt", ".training"}
    assert {path.name for path in tmp_path.iterdir()} == there, "a name is left aside"
    assert weight(tmp_path / "best.pt") == [2, 2]
    (tmp_path / ".training").unlink()  # as in copied checkpoints
    assert len(checkpoints(tmp_path)) == 2 and weight(tmp_path) == [2, 2]


def test_torn_checkpoint_falls_back_and_reports_it(tmp_path: Path) -> None:
    saved(tmp_path, 1, 2)
    newest, message = checkpoints(tmp_path)[0], list[str]()
    newest.write_bytes(newest.read_bytes()[:1000])
    assert weight(tmp_path, message.append) == [1, 1]
    assert "checkpoint-0000000002.pt" in message[0] and "falling back" in message[0]
    checkpoints(tmp_path)[0].write_bytes(b"")
    with pytest.raises(CheckpointError, match="no readable checkpoint"):
        load_newest(tmp_path, message.append)


def test_another_model_names_the_tensors() -> None:
    there = r"bias is missing; .*extra is unknown; weight is \(3, 4\) there, \(2, 4\) here"
    with pytest.raises(CheckpointError, match=there):
        load_model(torch.nn.Linear(4, 2), {"weight": torch.zeros(3, 4), "extra": torch.zeros(1)}, "old.pt")


@pytest.mark.parametrize("process_bytes", [0, 10**12], ids=["process", "thread"])
def test_disk_failure_reaches_the_caller(process_bytes: int) -> None:
    with pytest.raises(DiskFullError, match="cannot write"):
        saved(Path("/dev/null/checkpoints"), 1, process_bytes=process_bytes)


def test_rng_state_repeats_every_generator(tmp_path: Path) -> None:
    writer = CheckpointWriter(tmp_path)
    writer.save(1, {"rng": rng_state()})
    writer.close()
    first = (random.random(), np.random.rand(), torch.rand(()).item())
    set_rng_state(load_newest(tmp_path, print)["rng"])
    assert (random.random(), np.random.rand(), torch.rand(()).item()) == first


# Files of others in the folder ------------------------------------------------------------------------------------


def test_files_of_others_survive_and_are_not_resumed(tmp_path: Path) -> None:
    theirs = ("checkpoint-final.pt", "checkpoint-99999.pt", "checkpoint-0000000002.pt", "best.pt", "checkpoint-7.pt")
    for name in theirs[:-1]:
        torch.save({"model": {"weight": torch.zeros(1)}, "epoch": 9}, tmp_path / name)
    (tmp_path / theirs[-1]).write_bytes(b"not a checkpoint at all")
    before = {name: (tmp_path / name).read_bytes() for name in theirs}
    writer = saved(tmp_path, 2, keep=1)
    for step in (3, 2):  # an older one is not kept
        saved(tmp_path, step, keep=1, training=writer.training)
    assert {path.name for path in writer.others} == set(theirs) - {"best.pt"}
    assert {name: (tmp_path / name).read_bytes() for name in theirs} == before
    own = {path.name for path in tmp_path.iterdir()} - set(theirs)
    assert own == {".training", "checkpoint-0000000003.pt", f"best-{writer.training[:8]}.pt"}
    message: list[str] = []
    assert weight(tmp_path, message.append) == [3, 3]
    assert any("checkpoint-99999.pt is not from the last training" in each for each in message)


def test_numbers_decide_which_is_newest(tmp_path: Path) -> None:
    saved(tmp_path, 10_000_000_001, 2_000_000_000, keep=9)
    assert names(tmp_path) == ["checkpoint-10000000001.pt", "checkpoint-2000000000.pt"]


def test_new_training_leaves_an_earlier_ones_checkpoints(tmp_path: Path) -> None:
    first = saved(tmp_path, 500, keep=1)
    assert names(tmp_path) == ["checkpoint-0000000500.pt"]
    second = saved(tmp_path, keep=1)  # ended before its first checkpoint
    assert second.others and not checkpoints(tmp_path), "an earlier training's is taken for its own"
    saved(tmp_path, 100, 500, keep=2, training=second.training)
    newest = f"checkpoint-0000000500-{second.training[:8]}.pt"
    assert names(tmp_path) == [newest, "checkpoint-0000000100.pt"]
    assert checkpoint.training_of(tmp_path / "checkpoint-0000000500.pt") == first.training
    resumed = saved(tmp_path, 501, keep=1, training=first.training)  # by its file's name
    assert names(tmp_path) == ["checkpoint-0000000501.pt"]
    assert {path.name for path in resumed.others} == {newest, "checkpoint-0000000100.pt"}


def test_checkpoints_without_an_id_are_resumed_and_stay(tmp_path: Path) -> None:
    state = {"model": {}, "optimizer": {}, "epoch": 2, "rng": []}
    torch.save(state, tmp_path / "checkpoint-0000000010.pt")
    assert load_newest(tmp_path, print) == state
    saved(tmp_path, 20)
    assert (tmp_path / "checkpoint-0000000010.pt").exists() and weight(tmp_path) == [20, 20]


def test_what_a_killed_training_left_aside_is_removed_and_what_is_being_written_stays(tmp_path: Path) -> None:
    left, strange = tmp_path / ".checkpoint-0000000001.pt.abcdefgh.part", tmp_path / "notes.part"
    for path in (left, strange):
        path.write_bytes(b"torn")

    def write(file: Any) -> None:
        file.write(b"whole")
        CheckpointWriter(tmp_path).close()

    write_file(tmp_path / "checkpoint-0000000002.pt", write)
    assert (tmp_path / "checkpoint-0000000002.pt").read_bytes() == b"whole"
    assert strange.exists() and not left.exists()


# Writes ------------------------------------------------------------------------------------------------------------


def test_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    """RLIMIT_FSIZE stands in for a full disk: write(2) fails in the middle of the file."""
    path, plain = tmp_path / "model.pth", tmp_path / "plain"
    plain.write_text("x")
    write_text(path, "old")
    assert path.stat().st_mode == plain.stat().st_mode, "permissions follow the umask"
    with pytest.raises(KeyError):
        write_file(path, lambda file: (file.write(b"half"), {}["x"]))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    try:
        with pytest.raises(DiskFullError, match=r"cannot write .*model\.pth"):
            write_file(path, lambda file: torch.save(torch.zeros(1_000_000), file))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert path.read_text() == "old" and {*tmp_path.iterdir()} == {path, plain}


def everything(device: str = "cpu") -> dict[str, Any]:
    """Return tensors of the types, orders and sizes that states have."""
    torch.manual_seed(0)
    return {
        "channels last": torch.randn(3, 5, 7, 2, device=device).to(memory_format=torch.channels_last),
        "turned": torch.randn(6, 4, device=device).T,
        "every other": torch.arange(40, device=device)[::2],
        "expanded": torch.randn(3, 1, device=device).expand(3, 4),
        "a view": torch.randn(50, device=device)[7:31],
        "one": torch.tensor(3.5, device=device),
        "none": torch.empty(0, 3, device=device),
        "yes and no": torch.rand(33, device=device) > 0.5,
        "half": torch.randn(129, device=device).bfloat16(),
        "complex": torch.randn(5, dtype=torch.complex64, device=device),
        "large": torch.randn(1000, device=device),
    }


@pytest.mark.parametrize("piece_bytes", [1, 7, 64, 1000, 10**6])
def test_tensors_come_out_of_small_pieces_as_they_went_in(piece_bytes: int) -> None:
    given = everything()
    held, staging = arena.Arena(arena.size_of(given)), Staging(piece_bytes)
    for _ in range(2):  # it is used again
        shown = arena.fill(held, given, lambda to, tensor: staging.copy(to, tensor, None))
        staging.finish()
        found = arena.read(held.memory, shown)
        assert all(torch.equal(found[name], tensor) for name, tensor in given.items())
        held.bytes.zero_()


def test_a_python_without_memfd_create_saves_a_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "memfd_create")  # as conda's
    saved(tmp_path, 1, process_bytes=1)
    assert load_newest(tmp_path, print)["model"]["weight"].tolist() == [1.0, 1.0]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_tensors_come_from_a_gpu_behind_kernels_that_still_run() -> None:
    given, copies = everything("cuda"), HostCopies()
    given["huge"] = torch.zeros(60_000_000, device="cuda")
    for number in range(3):
        torch.cuda._sleep(100_000_000)
        given["huge"].add_(1.0)
        ready = torch.cuda.Event()
        ready.record()
        held = arena.Arena(arena.size_of(given))
        found = arena.read(held.memory, copies.fill(held, given, ready))
        assert (found["huge"] == number + 1).all()
        assert all(torch.equal(found[name], tensor.cpu()) for name, tensor in given.items())


class SlowDisk:
    """Writes nothing before ``goes_on`` is set; then the steps in ``written``."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.goes_on, self.written, write = threading.Event(), list[int](), CheckpointWriter._write

        def slow(writer: CheckpointWriter, global_step: int, *others: Any) -> None:
            self.goes_on.wait(120)
            self.written.append(global_step)
            write(writer, global_step, *others)

        monkeypatch.setattr(CheckpointWriter, "_write", slow)


def state_of(number: int) -> dict[str, Any]:
    """Return a state with everything that there may be: layouts, formats, nothing, names for numbers."""
    images = torch.full((2, 3, 4, 5), float(number)).contiguous(memory_format=torch.channels_last)
    return {
        "model": {"weight": torch.arange(600.0) * number, "nhwc": images, "half": torch.ones(3).bfloat16() * number},
        "optimizer": {"state": {0: {"step": torch.tensor(number)}}, "param_groups": [{"lr": 0.1, "params": [0]}]},
        "sliced": torch.arange(24.0).view(4, 6)[:, ::2] + number,
        "none": [torch.empty(0, 3), None, (1, "text", True)],
        "rng": rng_state(),
    }


def same(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and torch.equal(a, b)
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    return bool(a == b)


def test_process_writes_what_the_thread_writes(tmp_path: Path) -> None:
    state = state_of(3)
    for place, process_bytes in (("thread", 10**9), ("process", 0)):
        writer = CheckpointWriter(tmp_path / place, process_bytes=process_bytes, training="0" * 32)
        writer.save(7, state, best=True)
        writer.close()
        assert not writer._process_died, "the thread has written in its place"
    thread, process = (load_newest(tmp_path / place, print) for place in ("thread", "process"))
    assert same({**state, "training": "0" * 32}, thread) and same(thread, process)
    assert process["model"]["nhwc"].is_contiguous(memory_format=torch.channels_last)
    sizes = [(tmp_path / place / "best.pt").stat().st_size for place in ("thread", "process")]
    assert abs(sizes[0] - sizes[1]) < 2000, "tensors share a storage that is written whole for each"


def test_large_states_wait_for_a_slow_disk_if_memory_allows_and_the_training_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, writer = SlowDisk(monkeypatch), CheckpointWriter(tmp_path, keep=2, process_bytes=0)
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


def test_training_waits_where_a_large_state_does_not_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk, writer = SlowDisk(monkeypatch), CheckpointWriter(tmp_path, keep=1, process_bytes=0)
    monkeypatch.setattr(checkpoint, "free_bytes", lambda device: 0)
    done = threading.Thread(target=lambda: [writer.save(step, state_of(step), best=True) for step in range(1, 7)])
    done.start()
    done.join(1)
    assert done.is_alive(), "six states were copied, and none fits"
    disk.goes_on.set()
    done.join(120)
    writer.close()
    assert disk.written == [1, 2, 3, 4, 5, 6], "the best of its time is never left out"


def test_process_that_is_killed_is_done_without(tmp_path: Path) -> None:
    writer = CheckpointWriter(tmp_path, process_bytes=0)
    writer.save(1, state_of(1))
    while not checkpoints(tmp_path):
        time.sleep(0.05)
    assert writer._process is not None
    os.kill(writer._process.pid, signal.SIGKILL)
    writer.save(2, state_of(2))
    writer.close()
    assert same(load_newest(tmp_path, print)["model"], state_of(2)["model"])


def lives(process: str) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


TRAINING = """
import sys, torch
from pathlib import Path
from seatrial.train.saving.checkpoint import CheckpointWriter, last_training
torch.set_num_threads(1)
folder = Path(sys.argv[1])
writer = CheckpointWriter(folder, keep=2, process_bytes=int(sys.argv[2]), training=last_training(folder))
print("ready", flush=True)
newest = max([int(path.stem.split("-")[1]) for path in folder.glob("checkpoint-*.pt")], default=0)
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
        deadline = time.monotonic() + 240
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
