"""cifar10: the files' checks, and the method on a small set of colour blobs."""

import lzma
from functools import partial
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from seatrial.recipes import cifar10  # noqa: E402
from seatrial.train.data.cifar10 import MD5, read_records  # noqa: E402
from seatrial.train.data.images import ImageSet  # noqa: E402
from seatrial.train.distributed import Ranks  # noqa: E402
from seatrial.train.engine import choose_engine, epochs_of, longest_runs  # noqa: E402
from seatrial.train.errors import DataError  # noqa: E402
from seatrial.train.kernels import multi_tensor  # noqa: E402
from seatrial.train.saving.examples import Normalisation  # noqa: E402
from seatrial.train.step import Step  # noqa: E402

pytestmark = pytest.mark.torch


def blobs(count: int) -> ImageSet:
    generator = torch.Generator().manual_seed(count)
    labels_N = torch.randint(0, 3, (count,), generator=generator)
    images_NCHW = torch.randint(0, 120, (count, 3, 32, 32), generator=generator)
    images_NCHW[torch.arange(count), labels_N, 8:24, 8:24] += 100
    return ImageSet(images_NCHW.to(torch.uint8), labels_N, 10)


@pytest.mark.slow
def test_learns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(cifar10, "read_records", lambda folder: None)
    monkeypatch.setattr(cifar10, "image_sets", lambda records: (blobs(400), blobs(50)))
    options = ["--batch", "50", "--epochs", "3", "--widths", "8", "8", "8", "--models", str(tmp_path)]
    assert cifar10.main(options) == 0
    text = capsys.readouterr().out
    assert float(text.split("run 1: ")[1].split("%")[0]) > 90
    assert "s after the process began" in text
    assert (tmp_path / "cifar10.safetensors").is_file()


def test_flips_alternate_between_epochs() -> None:
    data, alone = blobs(40), Ranks(0, 1, torch.device("cpu"))
    data.images_NCHW[:] = torch.arange(32, dtype=torch.uint8)  # a ramp: flipped when it falls
    source = cifar10.AlternatingCrops(data, Normalisation.of(data.images_NCHW), 10, alone, 0)
    rising = []
    for epoch in (1, 2, 3):
        source.start(epoch, 0)
        seen_NCHW = source.images(torch.arange(40), 32)
        rising.append(seen_NCHW[:, 0, 16, 20] > seen_NCHW[:, 0, 16, 10])
    assert torch.equal(rising[0], ~rising[1]) and torch.equal(rising[0], rising[2])
    assert 5 < rising[0].sum() < 35


def test_first_epochs_show_smaller_squares_of_the_whole_image() -> None:
    data, alone = blobs(400), Ranks(0, 1, torch.device("cpu"))
    data.images_NCHW[:] = torch.arange(32, dtype=torch.uint8)[:, None]  # each row has its number
    normalise = Normalisation(torch.ones(3, 1, 1), torch.zeros(3, 1, 1))
    source = cifar10.AlternatingCrops(data, normalise, 100, alone, 0, sides=(26, 28))
    seen = {}
    for epoch in (1, 2, 3):
        source.start(epoch, 0)
        seen[epoch] = source.load(torch.tensor([0]), source.spans[0].shape, 0, 100)[0]
        assert len(source.spans) == 4 and source.spans == source.spans_in(epoch)
    assert [tuple(images.shape[2:]) for images in seen.values()] == [(26, 26), (28, 28), (32, 32)]
    tops_B = seen[1][:, 0, 13, 0] - 13  # of the squares: from two pixels above the image to two below it
    assert {round(float(top)) for top in tops_B} == set(range(-2, 9))


@pytest.mark.parametrize("epochs", [1, 2, 3, 5, 8, 9, 20])
def test_every_kind_of_epoch_is_prepared(epochs: int) -> None:
    model, data, alone = cifar10.Network(widths=(8, 8, 8)), blobs(40), Ranks(0, 1, torch.device("cpu"))
    sides = cifar10.METHOD.sides(epochs)
    source = cifar10.AlternatingCrops(data, Normalisation.of(data.images_NCHW), 10, alone, 0, sides=sides)
    step = Step(
        model,
        partial(cifar10.loss, 10, 0.1),
        cifar10.optimizer_of(model, 10, 0.1),
        source,
        ranks=alone,
        precision="fp32",
        epochs=epochs,
        frozen_after=cifar10.METHOD.frozen_after(model, epochs),
    )
    prepared = {
        (phase, shape) for phase in range(step.phases + 1) for shape in longest_runs(epochs_of(step, phase, epochs))
    }
    met = set()
    for epoch in range(1, epochs + 1):
        source.start(epoch, 0)
        step.start_epoch((epoch - 1) * len(source.spans), 0)
        met |= {(step.phase, span.shape) for span in source.spans}
    assert prepared == met
    assert len(sides) < epochs and source.spans[0].shape.length == 32  # the last epoch sees whole images
    learning = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert any(name.startswith("blocks.1") for name in learning)
    assert any(name.startswith("blocks.0") for name in learning) == (epochs < 5)


def small_step(epochs: int, sides: tuple[int, ...]) -> Step:
    model, data, alone = cifar10.Network(widths=(8, 8, 8)), blobs(40), Ranks(0, 1, torch.device("cpu"))
    source = cifar10.AlternatingCrops(data, Normalisation.of(data.images_NCHW), 10, alone, 0, sides=sides)
    optimizer = cifar10.optimizer_of(model, 10, 0.1)
    return Step(model, partial(cifar10.loss, 10, 0.1), optimizer, source, ranks=alone, precision="fp32", epochs=epochs)


def test_a_training_longer_or_shorter_than_the_step_reports_has_its_own_shapes() -> None:
    step = small_step(1, (26, 28))
    sides = [{shape.length for shape in longest_runs(epochs_of(step, 0, epochs))} for epochs in (1, 2, 3)]
    assert sides == [{26}, {26, 28}, {26, 28, 32}]
    assert set(longest_runs(epochs_of(step, 0, 9)).values()) == {4}  # no run goes beyond its epoch
    step._frozen_after, step._ends = [], [2, 20]
    assert [list(step.epochs_of(phase, 5)) for phase in range(3)] == [[1, 2], [3, 4, 5], []]


def test_whole_images_are_tried_out_before_their_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    step, text = small_step(2, (26,)), list[str]()
    monkeypatch.setattr(step, "compile", lambda: None)  # as it is: a compiled step reads the same rows
    step.source.start(1, 0)
    choose_engine("compile", step, text.append)
    assert not [line for line in text if "does not work" in line], text


@pytest.mark.parametrize("sides", [(2,), (33,), (26, 40)])
def test_sides_that_no_crop_can_have(sides: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="sides are 3 to 32 pixels long"):
        small_step(2, sides)


def test_kernels_of_the_last_epochs_are_compiled_beforehand() -> None:
    model = cifar10.Network()
    modules = cifar10.modules(cifar10.WIDTHS, 10, torch.float16)
    for parameter, _ in cifar10.METHOD.frozen_after(model, 9):
        parameter.requires_grad = False
    learning = [each for each in model.blocks.parameters() if each.requires_grad and each.ndim == 4]
    assert len(learning) == 4 and multi_tensor.muon_module(tuple(map(multi_tensor.size_of, learning))) in modules


def test_whitening_gives_uncorrelated_channels() -> None:
    images = Normalisation.of(blobs(50).images_NCHW)(blobs(50).images_NCHW.float())
    model = cifar10.Network(widths=(8, 8, 8))
    model.whiten(images)
    channels = model.whitening(images).permute(1, 0, 2, 3).flatten(1)[:12]
    covariance = channels @ channels.T / channels.shape[1]
    assert torch.allclose(covariance, torch.eye(12), atol=0.02)


def test_files_are_checked(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"lacks data_batch_1\.bin"):
        read_records(tmp_path)
    for name in MD5:
        (tmp_path / name).write_bytes(bytes(3073 * 10_000))
    with pytest.raises(DataError, match="differs from the published data_batch_1"):
        read_records(tmp_path)
    (tmp_path / "data_batch_1.bin").write_bytes(bytes(100))
    with pytest.raises(DataError, match="expected 30730000 bytes, got 100"):
        read_records(tmp_path)
    (tmp_path / "data_batch_1.bin").unlink()
    (tmp_path / "data_batch_1.bin.xz").write_bytes(lzma.compress(bytes(100))[:-20])
    with pytest.raises(DataError, match=r"data_batch_1\.bin\.xz"):
        read_records(tmp_path)
