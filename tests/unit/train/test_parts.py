"""Parts of the training library, each by itself: order, data, schedules, optimizers, memory, ranks, signals."""

import argparse
import copy
import gzip
import math
import os
import random
import signal
import struct
import subprocess
import sys
import time
from contextlib import nullcontext

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.utils.data import TensorDataset  # noqa: E402

from seatrial.images.recipes import TRACKER_REQUIREMENTS, recipe_requirements  # noqa: E402
from seatrial.job.model import Target  # noqa: E402
from seatrial.train import batches, memory, options  # noqa: E402
from seatrial.train.autocast_weights import SecondStream, SideStream, gradient_counts, is_watched  # noqa: E402
from seatrial.train.data.images import ImageSet, TestImages, affine, crop, flip  # noqa: E402
from seatrial.train.data.mnist import read_folder, read_idx  # noqa: E402
from seatrial.train.data.order import deal  # noqa: E402
from seatrial.train.data.texts import Texts, TextSet  # noqa: E402
from seatrial.train.distributed import Ranks, ranks  # noqa: E402
from seatrial.train.errors import DataError, InputError  # noqa: E402
from seatrial.train.loop import StopRequest  # noqa: E402
from seatrial.train.optim.muon import orthogonalised  # noqa: E402
from seatrial.train.optim.optimizer import CHUNK, CHUNKS_PER_LAUNCH, adam, adamw, chunk_size, decay_groups, pieces  # noqa: E402
from seatrial.train.optim.schedules import cosine, staircase, triangle  # noqa: E402
from seatrial.train.saving.examples import Normalisation  # noqa: E402
from seatrial.train.traced_code import NotTraceable, read  # noqa: E402
from seatrial.train.trackers import TRACKERS, open_trackers  # noqa: E402
from seatrial.train.watchdog import Watchdog  # noqa: E402

pytestmark = pytest.mark.torch
CPU = torch.device("cpu")
ALONE = Ranks(0, 1, CPU)

# Data ----------------------------------------------------------------------------------------------------------------


@given(st.integers(1, 500), st.integers(1, 40), st.integers(1, 5))
def test_every_example_is_in_one_batch_of_one_rank(examples, batch, world):
    if batch * world > examples:
        with pytest.raises(InputError, match="larger than"):
            deal(examples, batch, 0, world)
        return
    spans = [deal(examples, batch, rank, world) for rank in range(world)]
    assert len({len(each) for each in spans}) == 1  # the same number of steps, or a rank would wait for ever
    seen = [place for each in spans for first, shape in each for place in range(first, first + shape.rows)]
    assert sorted(seen) == list(range(examples))
    for step in zip(*spans, strict=True):  # the mean of the ranks' weighted means is the mean over all rows
        rows = sum(span.shape.rows for span in step)
        assert all(span.shape.share == pytest.approx(span.shape.rows * world / rows) for span in step)


def test_tensors_that_lie_on_the_host_need_no_more_of_it(monkeypatch):
    monkeypatch.setattr("seatrial.train.data.batches.free_for_data", lambda device: 0)
    assert batches(TensorDataset(torch.ones(64, 2)), 8).resident
    assert not batches([torch.ones(2)] * 64, 8).resident


def test_ranks_test_shares_cover_the_set_once():
    data = ImageSet(torch.arange(7, dtype=torch.uint8).view(7, 1, 1, 1), torch.arange(7), 7)
    same = Normalisation(torch.ones(1, 1, 1), torch.zeros(1, 1, 1))
    shares = [TestImages(data, same, Ranks(rank, 3, CPU), 2) for rank in range(3)]
    assert sorted(int(label) for share in shares for _, labels in share for label in labels) == list(range(7))


def test_normalisation_is_of_the_data():
    images = torch.randint(0, 256, (50, 3, 5, 5), dtype=torch.uint8)
    normal = Normalisation.of(images)(images.float())
    assert normal.mean((0, 2, 3)).abs().max() < 1e-5
    assert (normal.std((0, 2, 3), correction=0) - 1).abs().max() < 1e-5


def test_augmentation_repeats_under_a_seed_and_keeps_still_images():
    images = torch.rand(16, 3, 8, 8)
    for change in (flip, lambda x: crop(x, 2), lambda x: affine(x, 10, 0.1, 0.1, 5)):
        torch.manual_seed(1)
        first = change(images)
        torch.manual_seed(1)
        assert torch.equal(change(images), first)
        assert first.shape == images.shape and not torch.equal(first, images)
        assert not torch.equal(change(images), first)
    assert torch.allclose(affine(images), images, atol=1e-5)


def test_crop_moves_by_whole_pixels():
    images = torch.arange(64.0).view(1, 1, 8, 8).repeat(200, 1, 1, 1)
    padded = nn.functional.pad(images[:1], (1, 1, 1, 1), mode="reflect")[0, 0]
    views = {tuple(padded[i : i + 8, j : j + 8].flatten().tolist()) for i in range(3) for j in range(3)}
    assert {tuple(image.flatten().tolist()) for image in crop(images, 1)} == views


def test_affine_turns_a_dot_on_its_circle_by_at_most_the_angle():
    torch.manual_seed(0)
    images = torch.zeros(64, 1, 65, 65)
    images[:, :, 30:35, 55:60] = 1
    turned = affine(images, degrees=20)
    mass, axis = turned.sum((1, 2, 3)), torch.arange(65.0) - 32
    x, y = (turned.sum((1, 2)) @ axis) / mass, (turned.sum((1, 3)) @ axis) / mass
    angles = torch.atan2(y, x) * 180 / math.pi
    assert 10 < angles.abs().max() <= 20.5
    assert (x.square() + y.square()).sqrt().sub(25).abs().max() < 0.5


def test_texts_have_like_lengths_and_every_one_once():
    lengths = torch.randint(3, 60, (101,), generator=torch.Generator().manual_seed(0)).tolist()
    data = TextSet.of([[number + 1] * length for number, length in enumerate(lengths)], torch.zeros(101).long())
    source = Texts(data, 16, ALONE, seed=3)
    shapes, orders = sorted(span.shape for span in source.spans), []
    for epoch in (1, 2):
        source.start(epoch, 0)
        assert sorted(span.shape for span in source.spans) == shapes  # all of them can be captured beforehand
        seen = []
        for step, span in enumerate(source.spans):
            (tokens, real), _ = source.load(torch.tensor([step]), span.shape, 0, span.shape.rows)
            assert tokens.shape == (span.shape.rows, span.shape.length) == real.shape
            assert real.sum(1).tolist() == [lengths[int(row[0]) - 1] for row in tokens]
            seen += tokens[:, 0].tolist()
        assert sorted(seen) == list(range(1, 102))
        orders.append(seen)
    assert orders[0] != orders[1] and source.padding < 0.25


def write_idx(path, array):
    content = struct.pack(f">{1 + array.ndim}I", 0x0800 | array.ndim, *array.shape) + array.tobytes()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)


@pytest.mark.parametrize(("layout", "gz"), [(".", ""), ("MNIST/raw", ".gz")])
def test_official_layouts_are_read_and_files_that_do_not_belong_together_refused(tmp_path, layout, gz):
    folder, numbers = tmp_path / layout, np.random.default_rng(0)
    folder.mkdir(parents=True, exist_ok=True)
    for part, count in (("train", 20), ("t10k", 10)):
        write_idx(folder / f"{part}-images-idx3-ubyte{gz}", numbers.integers(0, 256, (count, 12, 14), np.uint8))
        write_idx(folder / f"{part}-labels-idx1-ubyte{gz}", (np.arange(count) % 3).astype(np.uint8))
    data = read_folder(tmp_path)
    assert data.train_images.shape == (20, 12, 14) and data.classes == 3
    assert data.test_labels.tolist() == [0, 1, 2, 0, 1, 2, 0, 1, 2, 0]
    labels = folder / f"t10k-labels-idx1-ubyte{gz}"
    write_idx(labels, np.zeros(3, np.uint8))
    with pytest.raises(DataError, match=r"10 images but .* has 3 labels"):
        read_folder(tmp_path)
    labels.unlink()
    with pytest.raises(DataError, match="lacks t10k-labels-idx1-ubyte"):
        read_folder(tmp_path)


IDX = struct.pack(">4I", 0x803, 5, 4, 4) + bytes(80)


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("images", IDX[:-1], r"images is truncated: expected 96 bytes for shape \(5, 4, 4\), got 95"),
        ("images", b"PNG\r" + bytes(40), "is not IDX with 3 dimensions: magic 0x504e470d"),
        ("images", b"\0\0\x08", "expected at least 16 bytes, got 3"),
        ("images", struct.pack(">4I", 0x803, 1, 2, 2) + bytes(5), "is too long: expected 20 bytes"),
        ("images", struct.pack(">4I", 0x803, 0, 2, 2), "holds no examples"),
        ("images.gz", gzip.compress(IDX)[:-9], "is not a whole gzip file"),
    ],
    ids=["a byte short", "a picture", "no head", "too long", "no examples", "torn gzip"],
)
def test_files_that_are_not_idx_are_refused(tmp_path, name, content, sentence):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=sentence):
        read_idx(tmp_path / name, 3)
    for folder, reason in (("none", "does not exist"), (".", "holds no IDX files")):
        with pytest.raises(DataError, match=reason):
            read_folder(tmp_path / folder)


# Optimizers and schedules --------------------------------------------------------------------------------------------


def test_schedules():
    warm = cosine(warmup=0.1)
    assert [round(warm(step, 100), 3) for step in (0, 4, 9, 10, 55, 99)] == [0.1, 0.5, 1.0, 1.0, 0.5, 0.0]
    assert triangle(0.2)(19, 100) == 1 and triangle(0.2)(60, 100) == pytest.approx(0.5)
    assert [staircase(0.5, 0.1)(step, 10) for step in (0, 4, 5, 9)] == [1, 1, 0.1, 0.1]


def convolved():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Flatten(), nn.Linear(8 * 36, 10))
    return model.to(memory_format=torch.channels_last)


def stepped(model, optimizer, steps=5):
    torch.manual_seed(1)
    for _ in range(steps):
        model.zero_grad()
        model(torch.randn(4, 3, 8, 8)).square().mean().backward()
        optimizer.step()
    return list(model.parameters())


@pytest.mark.parametrize("kind", ["adam", "adamw"])
def test_optimizers_take_torchs_steps_and_go_on_from_its_state(kind):
    def torchs(model):
        kinds = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
        return kinds[kind](
            decay_groups(model, 0.1) if kind == "adamw" else model.parameters(), lr=torch.tensor(1e-2), fused=True
        )

    def ours(model):
        return adam(model, 1e-2) if kind == "adam" else adamw(model, 1e-2, 0.1)

    own, theirs = convolved(), convolved()
    before = torchs(theirs)
    assert all(map(torch.equal, stepped(own, ours(own)), stepped(theirs, before)))
    own.load_state_dict(theirs.state_dict())
    after = ours(own)
    after.load_state_dict(copy.deepcopy(before.state_dict()))
    assert all(map(torch.equal, stepped(theirs, before, 2), stepped(own, after, 2)))


def test_pieces_cover_the_memory_once_and_chunks_fill_one_launch():
    weights = torch.randn(8, 3, 5, 5).to(memory_format=torch.channels_last)
    cut = pieces(weights, 64)
    assert [len(piece) for piece in cut] == [64] * 9 + [24]
    for piece in cut:
        piece.add_(1)
    assert torch.equal(torch.cat(cut), weights.permute(0, 2, 3, 1).reshape(-1))
    mnist = (288, 32, 18432, 64, 204800, 128, 1280, 10)
    assert 24 < sum(-(-number // chunk_size(mnist)) for number in mnist) <= CHUNKS_PER_LAUNCH
    assert chunk_size((50_000_000, 60_000_000)) == CHUNK


def test_no_compiler_is_imported_by_a_training_that_does_not_compile(tmp_path):
    code = """if True:
        import sys, torch
        from seatrial.train.optim.optimizer import adam
        model = torch.nn.Linear(3, 2)
        optimizer = adam(model, 0.1)
        model(torch.ones(1, 3)).sum().backward()
        optimizer.step()
        sys.exit('torch._dynamo' in sys.modules)"""
    assert subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=False).returncode == 0


def test_orthogonalised_brings_singular_values_close_to_one():
    torch.manual_seed(0)
    updates = [torch.randn(8, 3, 3, 3), torch.randn(32, 2, 3, 3), torch.randn(8, 3, 3, 3)]
    for update, original in zip(orthogonalised(updates), updates, strict=True):
        values = torch.linalg.svdvals(update.flatten(1))
        assert update.shape == original.shape and values.max() < 1.4 and values.median() > 0.4


# Host and ranks ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("files", "free_bytes"),
    [
        pytest.param({}, 8000 * 1024, id="no control groups"),
        pytest.param({"memory.max": "max", "memory.current": "5"}, 8000 * 1024, id="no limit"),
        pytest.param(
            {"memory.max": "9000000", "memory.current": "7000000", "memory.stat": "anon 1\ninactive_file 3000000"},
            5_000_000,
            id="page cache is free",
        ),
        pytest.param(
            {"jobs/memory.max": "4000000", "jobs/memory.current": "1000000",
             "jobs/42/memory.max": "max", "jobs/42/memory.current": "1000000"},
            3_000_000,
            id="the limit is further up",
        ),
        pytest.param(
            {"memory/memory.limit_in_bytes": "2000000", "memory/memory.usage_in_bytes": "1500000",
             "memory/memory.stat": "total_inactive_file 500000"},
            1_000_000,
            id="version 1, in a container",
        ),
        pytest.param({"memory.max": "10", "memory.current": "20"}, 0, id="more than allowed"),
    ],
)  # fmt: skip
def test_free_memory_is_what_the_control_groups_leave(tmp_path, files, free_bytes):
    version_1 = any(name.startswith("memory/") for name in files)
    lines = "4:cpu,cpuacct:/jobs/42\n3:memory:/jobs/42\n0::/" if version_1 else "0::/jobs/42"
    stats = {f"{name.rpartition('memory.')[0]}memory.stat": "" for name in files}
    cgroups = {f"cgroup/{name}": text for name, text in {**stats, **files}.items()}
    host = {"proc/self/cgroup": lines, "proc/meminfo": "MemTotal: 9000 kB\nMemAvailable: 8000 kB\n"}
    for name, text in {**host, **cgroups}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert memory._free_on_host(tmp_path / "proc", tmp_path / "cgroup") == free_bytes


@pytest.mark.parametrize(("config", "taken"), [("cuda:nccl", True), ("cpu:gloo,cuda:nccl", True), ("cpu:gloo", False)])
def test_process_group_of_the_scripts_own(monkeypatch, config, taken):
    """Without a backend's name torch calls it "undefined" (2.13, init_process_group)."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    group = {"is_initialized": True, "get_backend": "undefined", "get_backend_config": config, "get_rank": 1}
    group |= {"get_world_size": 2, "new_group": None}
    places = {"cuda.device_count": 1, "cuda.set_device": None, **{f"distributed.{k}": v for k, v in group.items()}}
    for place, value in places.items():
        monkeypatch.setattr(f"torch.{place}", lambda *_, value=value, **__: value)
    with nullcontext() if taken else pytest.raises(InputError, match="not of nccl"), ranks() as found:
        assert (found.rank, found.world) == (1, 2)


def late(*beats):
    """Ranks named, of beats (step, seconds since progress, seconds since the heartbeat, whether it makes steps)."""
    now = time.time()
    keys = ("step", "changed", "beat", "stepping")
    written = [b and dict(zip(keys, (b[0], now - b[1], now - b[2], b[3]), strict=True)) for b in beats]
    return Watchdog(Ranks(0, len(beats), CPU), 10.0)._late(written, 10.0)


@pytest.mark.parametrize(
    ("beats", "named"),
    [
        ([(8, 30, 1, True), (7, 30, 1, True)], [1]),
        ([(8, 30, 1, True), (8, 30, 1, True)], [0, 1]),
        ([(8, 30, 1, False), (8, 30, 1, True)], []),  # the first tests, the second waits for it
        ([(8, 1, 1, True), (7, 30, 1, True)], []),  # the first makes a slow step
        ([(8, 30, 30, False), (8, 30, 1, True)], [0]),  # its process is gone or stopped
        ([(8, 30, 1, True), None], [0]),  # the other has not begun
    ],
)
def test_ranks_are_named_when_none_works_or_one_does_not_answer(beats, named):
    assert late(*beats) == named


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_within_a_run_is_remembered_and_a_second_interrupt_raised(number, monkeypatch):
    monkeypatch.setenv(options.RUN_DIR_VARIABLE, "/seatrial/run")
    before = signal.getsignal(number)
    with StopRequest() as stop:
        assert not stop.requested
        os.kill(os.getpid(), number)
        assert stop.requested
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(number) is before
    monkeypatch.delenv(options.RUN_DIR_VARIABLE)
    with StopRequest() as stop, pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGINT)
    assert not stop.requested, "outside of a run an interrupt is the caller's"


@pytest.mark.parametrize("there", ["missing", "empty", "torn", "whole", "named by a person"])
def test_resume_of_a_run_begins_anew_without_a_checkpoint(tmp_path, monkeypatch, capsys, there):
    """A folder that a person named is kept: without a checkpoint in it, the loop refuses it."""
    folder = tmp_path / "checkpoints"
    if there != "missing":
        folder.mkdir()
    for name in {"torn": [".checkpoint-0000000001.pt.tmp"], "whole": ["checkpoint-0000000001.pt"]}.get(there, []):
        (folder / name).write_bytes(b"half")
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.setenv("SEATRIAL_RESUME_DIR", str(tmp_path / "other" if there == "named by a person" else folder))
    parser = argparse.ArgumentParser()
    options.add_folder_options(parser)
    options.add_training_options(parser, epochs=1, batch=8, learning_rate=0.1)
    found = options.parse(parser, ["--resume", str(folder), "--models", str(tmp_path / "models")]).resume
    kept = there in ("whole", "named by a person")
    assert found == (folder if kept else None)
    assert ("starts from scratch" in capsys.readouterr().err) != kept


def test_tracker_that_cannot_start_names_its_packages_and_images_get_them(tmp_path, monkeypatch):
    monkeypatch.delenv("SEATRIAL_EVENTS", raising=False)
    monkeypatch.setitem(sys.modules, "mlflow", None)
    with pytest.raises(InputError, match="the tracker mlflow cannot start") as refused:
        open_trackers(["mlflow"], tmp_path)
    assert refused.value.fix == "pip install mlflow-skinny sqlalchemy alembic"
    assert {name: tuple(packages.split()) for name, (_, packages) in TRACKERS.items()} == TRACKER_REQUIREMENTS
    target = Target(kind="recipe", value="mnist", args=("--track", "mlflow", "--track=tensorboard"))
    assert {"mlflow-skinny", "sqlalchemy", "alembic", "tensorboard"} <= set(recipe_requirements(target))
    assert "tensorboard" not in recipe_requirements(target.model_copy(update={"args": ("--epochs", "1")}))


# Code and gradients of others ----------------------------------------------------------------------------------------


class Masked(nn.Module):
    def forward(self, x, mask=None):
        return x if mask is None else x * mask


class Asking(nn.Module):
    def forward(self, x):
        return x if isinstance(x, torch.Tensor) else x[0]


class Drawing(nn.Module):
    def forward(self, x):
        return x * random.random()


@pytest.mark.parametrize("kind", [Masked, Asking, Drawing])
def test_code_that_may_do_otherwise_is_not_read(kind):
    before = random.getstate()
    with pytest.raises(NotTraceable, match=kind.__name__):
        read(kind())
    assert random.getstate() == before


class Tied(nn.Module):
    """One matrix in two layers, another called twice, one alone, one whose gradient somebody watches, one unused."""

    def __init__(self):
        super().__init__()
        self.words, self.head = nn.Embedding(7, 4), nn.Linear(4, 7, bias=False)
        self.head.weight = self.words.weight
        self.twice, self.once, self.seen, self.unused = (nn.Linear(4, 4, bias=False) for _ in range(4))
        self.seen.weight.register_hook(lambda grad: grad)

    def forward(self, places):
        return self.head(self.seen(self.once(self.twice(self.twice(self.words(places))))))


def test_second_stream_takes_only_weights_with_one_gradient_that_nobody_watches():
    model = Tied()
    loss = model(torch.tensor([1, 2])).square().sum()
    counts = gradient_counts(loss)
    assert {counts[model.words.weight], counts[model.twice.weight]} == {2} and counts[model.once.weight] == 1
    assert is_watched(model.seen.weight) and not is_watched(model.once.weight)
    side, weights = SecondStream(), list(model.parameters())
    with side.backward(loss, weights):
        assert [weight for weight in weights if side.takes(weight)] == [model.once.weight]
        loss.backward()
        made = side.run(model.once.weight, lambda: model.once.weight.grad)  # on a CPU at once
        assert made is model.once.weight.grad is not None
    assert not side.takes(model.once.weight)
    again = model(torch.tensor([3])).sum()
    with side.backward(again, weights):  # a gradient is there, to which the next would be added
        assert not side.takes(model.once.weight)
    model.once.weight.grad = None
    side.refused.add(model.once.weight)
    with side.backward(again, weights):
        assert not side.takes(model.once.weight)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_capture_that_fails_while_the_second_stream_works_ends_with_its_own_error():
    device = torch.device("cuda", 0)
    side_stream, values = SideStream(device), torch.zeros(1 << 20, device=device)
    with pytest.raises(torch.OutOfMemoryError), torch.cuda.graph(torch.cuda.CUDAGraph()):
        with side_stream.running(values):
            values.add_(1)
        try:
            torch.empty(1 << 50, device=device)
        finally:
            side_stream.forget()
    with side_stream.running(values):
        values.add_(1)
    side_stream.wait()
    assert values.sum().item() == 1 << 20
