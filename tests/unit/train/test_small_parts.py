"""Schedules, augmentation, precision, data checks, Muon and texts: each by itself."""

import math
from contextlib import nullcontext
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from seatrial.common.gpu_peaks import peak_tflops  # noqa: E402
from seatrial.images.recipes import TRACKER_REQUIREMENTS, recipe_requirements  # noqa: E402
from seatrial.job.model import Target  # noqa: E402
from seatrial.train import memory  # noqa: E402
from seatrial.train.data import augment  # noqa: E402
from seatrial.train.data.images import ImageSet, TestImages  # noqa: E402
from seatrial.train.data.texts import Texts, TextSet  # noqa: E402
from seatrial.train.distributed import Ranks, ranks  # noqa: E402
from seatrial.train.errors import DataError, InputError  # noqa: E402
from seatrial.train.memory import cap  # noqa: E402
from seatrial.train.optim.muon import orthogonalised  # noqa: E402
from seatrial.train.optim.schedules import cosine, staircase, triangle  # noqa: E402
from seatrial.train.precision import choose_precision  # noqa: E402
from seatrial.train.saving.examples import Normalisation  # noqa: E402
from seatrial.train.trackers import TRACKERS, open_trackers  # noqa: E402

pytestmark = pytest.mark.torch
CPU = torch.device("cpu")
ALONE = Ranks(0, 1, CPU)


def test_schedules() -> None:
    warm = cosine(warmup=0.1)
    assert [round(warm(step, 100), 3) for step in (0, 4, 9, 10, 55, 99)] == [0.1, 0.5, 1.0, 1.0, 0.5, 0.0]
    assert triangle(0.2)(19, 100) == 1 and triangle(0.2)(60, 100) == pytest.approx(0.5)
    assert [staircase(0.5, 0.1)(step, 10) for step in (0, 4, 5, 9)] == [1, 1, 0.1, 0.1]


def test_augmentation_repeats_under_a_seed_and_keeps_still_images() -> None:
    images = torch.rand(16, 3, 8, 8)
    for change in (augment.flip, lambda x: augment.crop(x, 2), lambda x: augment.affine(x, 10, 0.1, 0.1, 5)):
        torch.manual_seed(1)
        first = change(images)
        torch.manual_seed(1)
        assert torch.equal(change(images), first)
        assert first.shape == images.shape and not torch.equal(first, images)
        assert not torch.equal(change(images), first)
    assert torch.allclose(augment.affine(images), images, atol=1e-5)
    flat = torch.full((4, 1, 8, 8), 7.0)
    assert torch.equal(augment.crop(flat, 3), flat)


def test_crop_moves_by_whole_pixels() -> None:
    images = torch.arange(64.0).view(1, 1, 8, 8).repeat(200, 1, 1, 1)
    padded = torch.nn.functional.pad(images[:1], (1, 1, 1, 1), mode="reflect")[0, 0]
    views = {tuple(padded[i : i + 8, j : j + 8].flatten().tolist()) for i in range(3) for j in range(3)}
    assert {tuple(image.flatten().tolist()) for image in augment.crop(images, 1)} == views


def test_affine_turns_by_at_most_the_angle() -> None:
    """A bright dot to the right of the centre stays on its circle, within the angle."""
    torch.manual_seed(0)
    images = torch.zeros(64, 1, 65, 65)
    images[:, :, 30:35, 55:60] = 1
    turned = augment.affine(images, degrees=20)
    mass = turned.sum((1, 2, 3))
    axis = torch.arange(65.0) - 32
    x, y = (turned.sum((1, 2)) @ axis) / mass, (turned.sum((1, 3)) @ axis) / mass
    angles = torch.atan2(y, x) * 180 / math.pi
    assert angles.abs().max() <= 20.5 and angles.abs().max() > 10
    assert (x.square() + y.square()).sqrt().sub(25).abs().max() < 0.5


@pytest.mark.parametrize("name", ["fp16", "tf32"])
def test_what_a_cpu_does_not_have(name: str) -> None:
    with pytest.raises(InputError, match=f"{name} needs a GPU"):
        choose_precision(name, CPU)


def test_labels_out_of_range() -> None:
    with pytest.raises(DataError, match="labels run from 0 to 7, but the model has classes 0 to 2"):
        ImageSet(torch.zeros(2, 1, 2, 2, dtype=torch.uint8), torch.tensor([0, 7]), 3)


def test_normalisation_is_of_the_data() -> None:
    images = torch.randint(0, 256, (50, 3, 5, 5), dtype=torch.uint8)
    normal = Normalisation.of(images)(images.float())
    assert normal.mean((0, 2, 3)).abs().max() < 1e-5
    assert (normal.std((0, 2, 3), correction=0) - 1).abs().max() < 1e-5


def test_the_ranks_test_shares_cover_the_set_once() -> None:
    data = ImageSet(torch.arange(7, dtype=torch.uint8).view(7, 1, 1, 1), torch.arange(7), 7)
    same = Normalisation(torch.ones(1, 1, 1), torch.zeros(1, 1, 1))
    seen = [
        int(label)
        for rank in range(3)
        for _, labels in TestImages(data, same, Ranks(rank, 3, CPU), 2)
        for label in labels
    ]
    assert sorted(seen) == list(range(7))


@pytest.mark.parametrize(
    ("files", "free_bytes"),
    [
        pytest.param({}, 8000 * 1024, id="no control groups"),
        pytest.param({"memory.max": "max", "memory.current": "5", "memory.stat": ""}, 8000 * 1024, id="no limit"),
        pytest.param(
            {"memory.max": "9000000", "memory.current": "7000000", "memory.stat": "anon 1\ninactive_file 3000000"},
            5_000_000,
            id="page cache is free",
        ),
        pytest.param(
            {
                "jobs/memory.max": "4000000", "jobs/memory.current": "1000000", "jobs/memory.stat": "",
                "jobs/42/memory.max": "max", "jobs/42/memory.current": "1000000", "jobs/42/memory.stat": "",
            },
            3_000_000,
            id="the limit is further up",
        ),
        pytest.param(
            {
                "memory/memory.limit_in_bytes": "2000000", "memory/memory.usage_in_bytes": "1500000",
                "memory/memory.stat": "total_inactive_file 500000",
            },
            1_000_000,
            id="version 1, in a container",
        ),
        pytest.param({"memory.max": "10", "memory.current": "20", "memory.stat": ""}, 0, id="more than allowed"),
    ],
)  # fmt: skip
def test_free_memory_is_what_the_control_groups_leave(tmp_path: Path, files: dict[str, str], free_bytes: int) -> None:
    proc = tmp_path / "proc"
    version_1 = any(name.startswith("memory/") for name in files)
    lines = "4:cpu,cpuacct:/jobs/42\n3:memory:/jobs/42\n0::/" if version_1 else "0::/jobs/42"
    for name, text in {"self/cgroup": lines, "meminfo": "MemTotal: 9000 kB\nMemAvailable: 8000 kB\n"}.items():
        (proc / name).parent.mkdir(parents=True, exist_ok=True)
        (proc / name).write_text(text)
    for name, text in files.items():
        (tmp_path / "cgroup" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "cgroup" / name).write_text(text)
    assert memory._free_on_host(proc, tmp_path / "cgroup") == free_bytes


def test_memory_fraction_needs_a_gpu() -> None:
    with pytest.raises(InputError, match="needs a GPU"):
        cap(0.5, CPU)
    with pytest.raises(InputError, match="above 0 and at most 1"):
        cap(1.5, CPU)


def test_orthogonalised_brings_singular_values_close_to_one() -> None:
    torch.manual_seed(0)
    updates = [torch.randn(8, 3, 3, 3), torch.randn(32, 2, 3, 3), torch.randn(8, 3, 3, 3)]
    for update, original in zip(orthogonalised(updates), updates, strict=True):
        assert update.shape == original.shape
        values = torch.linalg.svdvals(update.flatten(1))
        assert values.max() < 1.4 and values.median() > 0.4


def test_texts_have_like_lengths_and_every_one_once() -> None:
    lengths = torch.randint(3, 60, (101,), generator=torch.Generator().manual_seed(0)).tolist()
    data = TextSet.of([[number + 1] * length for number, length in enumerate(lengths)], torch.zeros(101).long())
    source = Texts(data, 16, ALONE, seed=3)
    shapes = sorted(span.shape for span in source.spans)
    orders = []
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
    assert orders[0] != orders[1]
    assert source.padding < 0.25


def test_a_text_that_is_too_long() -> None:
    with pytest.raises(DataError, match="a text has 513 tokens"):
        TextSet.of([[1] * 513], torch.tensor([0]))


def test_trackers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SEATRIAL_EVENTS", raising=False)
    with pytest.raises(InputError, match="no tracker 'abacus'"):
        open_trackers(["abacus"], tmp_path)
    monkeypatch.setitem(__import__("sys").modules, "mlflow", None)
    with pytest.raises(InputError, match="the tracker mlflow cannot start") as refused:
        open_trackers(["mlflow"], tmp_path)
    assert refused.value.fix == "pip install mlflow-skinny sqlalchemy alembic"


def test_images_get_the_packages_that_trackers_need() -> None:
    assert {name: tuple(packages.split()) for name, (_, packages) in TRACKERS.items()} == TRACKER_REQUIREMENTS
    target = Target(kind="recipe", value="mnist", args=("--track", "mlflow", "--track=tensorboard"))
    assert {"mlflow-skinny", "sqlalchemy", "alembic", "tensorboard"} <= set(recipe_requirements(target))
    assert "tensorboard" not in recipe_requirements(target.model_copy(update={"args": ("--epochs", "1")}))


def test_peaks() -> None:
    assert peak_tflops("NVIDIA H200", "bf16") == 989.4
    assert peak_tflops("NVIDIA H100 PCIe", "bf16") == 756
    assert peak_tflops("NVIDIA A100-SXM4-80GB", "bf16") == 312
    assert peak_tflops("Tesla V100-PCIE-16GB", "fp16") == 112


@pytest.mark.parametrize(
    "product",
    [
        "Riva 128",
        "NVIDIA RTX A1000",
        "NVIDIA RTX A4000",
        "NVIDIA T400",
        "NVIDIA A100-SXM4-40GB MIG 1g.5gb",
        "NVIDIA A2",
    ],
)
def test_no_peak_of_a_product_with_a_similar_name(product: str) -> None:
    assert peak_tflops(product, "bf16") is None and peak_tflops(product, "fp16") is None


def test_an_a10g_is_no_a10() -> None:
    assert peak_tflops("NVIDIA A10G", "bf16") != peak_tflops("NVIDIA A10", "bf16")


@pytest.mark.parametrize(("config", "taken"), [("cuda:nccl", True), ("cpu:gloo,cuda:nccl", True), ("cpu:gloo", False)])
def test_a_process_group_of_the_scripts_own(monkeypatch: pytest.MonkeyPatch, config: str, taken: bool) -> None:
    """Without a backend's name torch calls it "undefined" (2.13, init_process_group)."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    for place, value in {
        "cuda.device_count": 1,
        "cuda.set_device": None,
        "distributed.is_initialized": True,
        "distributed.get_backend": "undefined",
        "distributed.get_backend_config": config,
        "distributed.get_rank": 1,
        "distributed.get_world_size": 2,
        "distributed.new_group": None,
    }.items():
        monkeypatch.setattr(f"torch.{place}", lambda *_, value=value, **__: value)
    with nullcontext() if taken else pytest.raises(InputError, match="not of nccl"), ranks() as found:
        assert (found.rank, found.world) == (1, 2)
