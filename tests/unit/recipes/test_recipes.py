"""The recipes on small data: they learn by steps that a CUDA graph repeats, save, resume, stop and refuse."""

import io
import json
import lzma
import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from seatrial import events  # noqa: E402
from seatrial.recipes import bench, cifar10, matmul, mnist, mnist_deep, spam  # noqa: E402
from seatrial.serve import predict  # noqa: E402
from seatrial.train import loop  # noqa: E402
from seatrial.train.data.cifar10 import MD5, read_records  # noqa: E402
from seatrial.train.data.images import ImageSet  # noqa: E402
from seatrial.train.distributed import Ranks  # noqa: E402
from seatrial.train.engine import choose_engine, epochs_of, longest_runs, watched_steps  # noqa: E402
from seatrial.train.errors import DataError, InputError, TrainError  # noqa: E402
from seatrial.train.kernels import multi_tensor  # noqa: E402
from seatrial.train.saving.checkpoint import load_newest  # noqa: E402
from seatrial.train.saving.examples import Normalisation  # noqa: E402
from seatrial.train.step import Step  # noqa: E402

pytestmark = pytest.mark.torch


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Any]:
    """Choose engines behind some watched steps, as on a GPU; return the shapes that were looked at."""
    seen: list[Any] = []

    def choose(name: str, step: Any, note: Any, epochs: int) -> Any:
        fresh = not step.optimizer.state
        for shape in {span.shape for span in step.source.spans}:
            watched_steps(step, shape, fresh=fresh)
            seen.append(shape)
        return choose_engine(name, step, note, epochs)

    monkeypatch.setattr(loop, "choose_engine", choose)
    monkeypatch.setenv("SEATRIAL_EVENTS", str(tmp_path / "events.jsonl"))
    return seen


def blobs(count: int) -> ImageSet:
    """Return images of three classes: a square in one of the colours, in noise."""
    generator = torch.Generator().manual_seed(count)
    labels_N = torch.randint(0, 3, (count,), generator=generator)
    images_NCHW = torch.randint(0, 120, (count, 3, 32, 32), generator=generator)
    images_NCHW[torch.arange(count), labels_N, 8:24, 8:24] += 100
    return ImageSet(images_NCHW.to(torch.uint8), labels_N, 10)


def evaluations(folder: Path) -> list[dict[str, Any]]:
    lines, skipped = events.read(str(folder / "events.jsonl"))
    assert skipped == 0
    return [line for line in lines if line["phase"] == "test"]


def run(data: Path, models: Path, *more: str) -> int:
    return mnist.main(["--data", str(data), "--models", str(models), "--batch", "32", *more])


def test_mnist_learns_saves_and_reports(
    watched: list[Any], data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from safetensors.torch import load_file

    assert run(data, tmp_path, "--epochs", "3") == 0 and watched
    tests = evaluations(tmp_path)
    assert [line["epoch"] for line in tests] == [1, 2, 3] and tests[-1]["accuracy"] > 0.95
    assert "epoch 3: loss" in capsys.readouterr().out
    weights, same = torch.load(tmp_path / "mnist.pth", weights_only=True), load_file(tmp_path / "mnist.safetensors")
    assert weights.keys() == same.keys() and all(torch.equal(weights[name], same[name]) for name in same)
    assert not list(tmp_path.rglob("*.part"))


def test_mnist_deep_learns_and_writes_metadata(
    watched: list[Any], wide_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folders = ["--data", str(wide_data), "--models", str(tmp_path)]
    assert mnist_deep.main([*folders, "--epochs", "4", "--batch", "16"]) == 0 and watched
    text = capsys.readouterr().out
    assert "test accuracy" in text and "GPU memory: none" in text
    lines = (tmp_path / "training_metadata.txt").read_text().splitlines()
    facts = dict(line.split(": ", 1) for line in lines)
    assert (facts["dataset"], facts["classes"], facts["world size"]) == ("mnist", "3", "1")
    assert float(facts["test accuracy"]) > 0.9
    model = mnist_deep.network(1, 3)
    model.load_state_dict(torch.load(tmp_path / "trained-model.pth", weights_only=True))
    assert int(facts["parameters"]) == sum(parameter.numel() for parameter in model.parameters())


def test_cifar10_trains_and_saves(
    watched: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cifar10, "read_records", lambda folder: None)
    monkeypatch.setattr(cifar10, "image_sets", lambda records: (blobs(400), blobs(50)))
    options = ["--batch", "50", "--epochs", "1", "--widths", "8", "8", "8", "--models", str(tmp_path)]
    assert cifar10.main(options) == 0 and watched
    assert "s after the process began" in capsys.readouterr().out and (tmp_path / "cifar10.safetensors").is_file()


def same_model(*folders: Path) -> bool:
    first, second = (load_newest(folder / "checkpoints", print) for folder in folders)
    assert first["epoch"] == second["epoch"]
    return all(torch.equal(tensor, second["model"][name]) for name, tensor in first["model"].items())


MNIST = [sys.executable, "-u", "-m", "seatrial.recipes.mnist"]


def test_sigterm_saves_exits_143_and_goes_on_bit_identically(data: Path, tmp_path: Path) -> None:
    words = ["--data", str(data), "--batch", "32", "--models", str(tmp_path), "--schedule", "constant"]
    stopped = subprocess.Popen([*MNIST, *words, "--epochs", "100000"], stdout=subprocess.PIPE, text=True)
    assert stopped.stdout is not None
    next(line for line in stopped.stdout if line.startswith("epoch 2:"))
    stopped.send_signal(signal.SIGTERM)
    assert stopped.wait(120) == 143
    epochs = str(load_newest(tmp_path / "checkpoints", print)["epoch"] + 1)
    shown = ["--schedule", "constant", "--epochs", epochs]  # another number of epochs would fall at another pace
    run(data, tmp_path, *shown, "--resume")
    run(data, tmp_path / "whole", *shown)
    assert same_model(tmp_path, tmp_path / "whole")


@pytest.mark.parametrize(
    ("options", "sentence"), [(["--batch", "301"], "larger than the 300"), (["--resume", "/none"], "no checkpoint in")]
)
def test_options_that_do_not_fit_are_refused(data: Path, tmp_path: Path, options: list[str], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        run(data, tmp_path, *options)


@pytest.mark.parametrize("options", [["--epochs", "0"], ["--batch", "-1"], ["--learning-rate", "0"]])
def test_numbers_that_cannot_be_exit_with_2(options: list[str]) -> None:
    with pytest.raises(SystemExit) as exit:
        mnist.main(options)
    assert exit.value.code == 2


def test_missing_data_and_a_full_disk_are_one_sentence(data: Path, tmp_path: Path) -> None:
    done = subprocess.run([*MNIST, "--data", str(tmp_path / "no")], capture_output=True, text=True)
    assert done.returncode == 2 and done.stderr.startswith("error: the data folder")
    (tmp_path / "mnist.pth").write_text("old")
    argv = [*MNIST, "--data", str(data), "--models", str(tmp_path), "--epochs", "1"]
    script = f"ulimit -f 100; exec {' '.join(argv)}"  # 100 KiB a file: the model has 160
    full = subprocess.run(["bash", "-c", script], capture_output=True, text=True)
    assert full.returncode == 1 and "error: cannot write" in full.stderr
    assert "Traceback" not in done.stderr + full.stderr
    assert (tmp_path / "mnist.pth").read_text() == "old" and not list(tmp_path.rglob("*.part"))


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_real_mnist_reaches_98_5_percent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    places = [os.environ.get("SEATRIAL_DATA"), Path(__file__).parents[4] / "shared" / "data"]
    folder = next((Path(place) / "mnist" for place in places if place and (Path(place) / "mnist").is_dir()), None)
    if folder is None:
        pytest.skip("the real MNIST is not here: neither ../shared/data/mnist nor $SEATRIAL_DATA/mnist")
    monkeypatch.setenv("SEATRIAL_EVENTS", str(tmp_path / "events.jsonl"))
    assert mnist.main(["--data", str(folder), "--models", str(tmp_path), "--epochs", "3"]) == 0
    assert evaluations(tmp_path)[-1]["accuracy"] >= 0.985


# spam ----------------------------------------------------------------------------------------------------------------


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    lines = [f"ham\tsee you at {n} then, love" if n % 2 else f"spam\tWINNER claim prize {n} now" for n in range(200)]
    (tmp_path / "SMSSpamCollection").write_text("\n".join(lines) + "\n")
    return tmp_path


def test_messages_are_label_tab_text(texts: Path) -> None:
    read, labels = spam.read_messages(texts)
    assert len(read) == 200 and read[1] == "see you at 1 then, love" and labels[:2].tolist() == [1, 0]
    (texts / "SMSSpamCollection").write_text("ham\thello\nmaybe\twhat\n")
    with pytest.raises(DataError, match="line 2 is not ham or spam"):
        spam.read_messages(texts)
    (texts / "SMSSpamCollection").unlink()
    with pytest.raises(DataError, match="lacks SMSSpamCollection"):
        spam.read_messages(texts)


def test_spam_learns_from_scratch_and_predicts(
    texts: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("transformers", reason="transformers is not installed")
    monkeypatch.setitem(spam.SHAPES["small"], "num_hidden_layers", 1)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    folders = ["--data", str(texts), "--models", str(texts)]
    with pytest.raises(InputError, match="no pretrained weights at"):
        spam.main([*folders, "--weights", str(texts / "none")])
    assert spam.main([*folders, "--from-scratch", "--epochs", "4", "--batch", "16"]) == 0
    assert {"config.json", "model.safetensors"} <= {path.name for path in (texts / "spam").iterdir()}
    capsys.readouterr()
    monkeypatch.setattr("sys.stdin", io.StringIO("WINNER claim prize 77 now\n\nsee you at 5 then, love\n"))
    assert predict.main(["spam", "--models", str(texts)]) == 0
    assert [line.split("\t")[0] for line in capsys.readouterr().out.splitlines()] == ["spam", "ham"]


def test_forward_pass_of_spam_is_the_librarys() -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    torch.manual_seed(0)
    config = transformers.BertConfig(vocab_size=50, **spam.SHAPES["small"])
    model = transformers.BertForSequenceClassification(config).eval()
    tokens, real = torch.randint(1, 50, (4, 16)), torch.arange(16) < torch.tensor([[16], [3], [9], [1]])
    theirs = model(input_ids=tokens, attention_mask=real.long()).logits
    assert torch.allclose(spam.logits(model, (tokens, real)), theirs, atol=1e-5)


# matmul and bench ----------------------------------------------------------------------------------------------------


def test_matmul_measures_on_the_cpu_and_refuses_to_measure_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert matmul.main(["--sizes", "64", "128", "--kinds", "cpu-fp32", "--json", str(tmp_path / "m.json")]) == 0
    first, second = json.loads((tmp_path / "m.json").read_text())["table"]
    assert second["tflops"] == pytest.approx(2 * 128**3 / (second["milliseconds"] / 1e3) / 1e12)
    assert first["size"] == 64 and "CPU: " in capsys.readouterr().out
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(InputError, match="every kind was skipped"):
        matmul.main(["--sizes", "64", "--kinds", "bf16"])


def test_bench_plans_its_variants() -> None:
    arguments, rest = bench.parse(["train", "mnist", "--compare", "dp,ddp", "--gpus", "2", "--", "--data", "x"])
    planned = [(way.name, way.options, way.ranks, way.gpus) for way in bench.plan(arguments)]
    assert rest == ["--data", "x"] and planned == [("dp", ["--data-parallel"], 1, 2), ("ddp", [], 2, 2)]
    scaling = bench.plan(bench.parse(["scaling", "mnist", "--gpus", "1,2"])[0])
    assert [(way.name, way.ranks) for way in scaling] == [("1 rank", 1), ("2 ranks", 2)]
    with pytest.raises(InputError, match="knows no warp"):
        bench.plan(bench.parse(["train", "mnist", "--compare", "eager,warp"])[0])


def variant(name: str, *rates: float, ranks: int = 1, **more: float) -> bench.Variant:
    run = {"loop_s": 1.0, "process_s": 2.0, "accuracy": 0.99, **more}
    return bench.Variant(name, [], ranks=ranks, gpus=ranks, runs=[{**run, "images_per_s": rate} for rate in rates])


def test_bench_shows_medians_ratios_efficiency_and_memory_and_picks_the_smallest_fast_batch() -> None:
    rows = [
        line.split()
        for line in bench.table([variant("1 GPU", 90, 100, 101), variant("4 GPU", 342, 380, ranks=4)]).splitlines()
    ]
    assert rows[1] == ["1", "GPU", "1.000", "2.00", "100", "99.00%", "1.00", "100.0%"]
    assert rows[2][:8] == [
        "4",
        "GPU",
        "1.000",
        "2.00",
        "361",
        "99.00%",
        "3.80",
        "95.0%",
    ]  # in turn, so drift is in both
    low, to, high = rows[2][8:]
    assert float(low) < 3.8 < float(high) and to == "to"
    table = bench.table([variant("64", 50, **{bench.MEMORY: 1.5e9}), variant("128", 75)])
    rows = [line.split() for line in table.splitlines()]
    assert rows[1] == ["64", "1.000", "2.00", "50", "99.00%", "1,500", "MB", "1.00"]
    assert rows[2][:6] == ["128", "1.000", "2.00", "75", "99.00%", "1.50"]
    failed = bench.Variant("4096", [], failure="failed with exit code 1")
    assert bench.picked([variant("64", 50), variant("128", 97), variant("256", 100), failed]).name == "128"


def test_bench_picks_a_larger_batch_only_if_its_runs_show_that_it_is_faster() -> None:
    steady = [variant("64", 50, 50.1, 49.9), variant("128", 54, 54.1, 53.9)]
    wild = [variant("64", 50, 30, 70), variant("128", 54, 80, 35)]
    assert [bench.picked(each).name for each in (steady, wild)] == ["128", "64"]


@pytest.mark.parametrize(
    ("way", "sentence"),
    [
        ("cpu", r"no variant of mnist ran: the data folder .* does not exist"),
        ("dp", "DataParallel uses several GPUs from one process; this machine has 0"),
    ],
)
def test_bench_of_variants_that_all_fail_is_one_sentence(tmp_path: Path, way: str, sentence: str) -> None:
    gpus = ["--gpus", "2"] if way == "dp" else []
    with pytest.raises(TrainError, match=sentence):
        bench.main(["train", "mnist", "--compare", way, *gpus, "--repeats", "1", "--", "--data", str(tmp_path / "no")])


@pytest.mark.slow
def test_bench_runs_a_recipe_in_processes_of_its_own(tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    argv = ["batch", "digits", "--batches", "64", "256", "--repeats", "1", "--json", str(tmp_path / "b.json")]
    assert bench.main([*argv, "--", "--epochs", "1"]) == 0
    ways = json.loads((tmp_path / "b.json").read_text())["ways"]
    assert [way["name"] for way in ways] == ["64", "256"] and all(way["runs"][0]["images_per_s"] > 0 for way in ways)


# cifar10's method ----------------------------------------------------------------------------------------------------

ALONE = Ranks(0, 1, torch.device("cpu"))


def small_step(epochs: int, sides: tuple[int, ...], *, frozen: bool = False) -> Step:
    model, data = cifar10.Network(widths=(8, 8, 8)), blobs(40)
    source = cifar10.AlternatingCrops(data, Normalisation.of(data.images_NCHW), 10, ALONE, 0, sides=sides)
    ends = cifar10.METHOD.frozen_after(model, epochs) if frozen else None
    made, loss = cifar10.optimizer_of(model, 10, 0.1), partial(cifar10.loss, 10, 0.1)
    return Step(model, loss, made, source, ranks=ALONE, precision="fp32", epochs=epochs, frozen_after=ends)


def test_flips_alternate_between_epochs() -> None:
    data = blobs(40)
    data.images_NCHW[:] = torch.arange(32, dtype=torch.uint8)  # a ramp: flipped when it falls
    source = cifar10.AlternatingCrops(data, Normalisation.of(data.images_NCHW), 10, ALONE, 0)
    rising = []
    for epoch in (1, 2, 3):
        source.start(epoch, 0)
        seen_NCHW = source.images(torch.arange(40), 32)
        rising.append(seen_NCHW[:, 0, 16, 20] > seen_NCHW[:, 0, 16, 10])
    assert torch.equal(rising[0], ~rising[1]) and torch.equal(rising[0], rising[2])
    assert 5 < rising[0].sum() < 35


def test_first_epochs_show_smaller_squares_of_the_whole_image() -> None:
    data = blobs(400)
    data.images_NCHW[:] = torch.arange(32, dtype=torch.uint8)[:, None]  # each row has its number
    normalise = Normalisation(torch.ones(3, 1, 1), torch.zeros(3, 1, 1))
    source = cifar10.AlternatingCrops(data, normalise, 100, ALONE, 0, sides=(26, 28))
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
    sides = cifar10.METHOD.sides(epochs)
    step = small_step(epochs, sides, frozen=True)
    phases = [longest_runs(epochs_of(step, phase, epochs)) for phase in range(step.phases + 1)]
    met = set()
    for epoch in range(1, epochs + 1):
        step.source.start(epoch, 0)
        step.start_epoch((epoch - 1) * len(step.source.spans), 0)
        met |= {(step.phase, span.shape) for span in step.source.spans}
    assert {(phase, shape) for phase, shapes in enumerate(phases) for shape in shapes} == met
    assert len(sides) < epochs and step.source.spans[0].shape.length == 32  # the last epoch sees whole images
    learning = {name for name, parameter in step.model.named_parameters() if parameter.requires_grad}
    assert any(name.startswith("blocks.1") for name in learning)
    assert any(name.startswith("blocks.0") for name in learning) == (epochs < 5)


def test_training_of_another_length_than_the_steps_has_its_own_shapes() -> None:
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


def test_files_of_cifar10_are_checked(tmp_path: Path) -> None:
    first = tmp_path / "data_batch_1.bin"
    with pytest.raises(DataError, match=r"lacks data_batch_1\.bin"):
        read_records(tmp_path)
    for name in MD5:
        (tmp_path / name).write_bytes(bytes(3073 * 10_000))
    with pytest.raises(DataError, match="differs from the published data_batch_1"):
        read_records(tmp_path)
    first.write_bytes(bytes(100))
    with pytest.raises(DataError, match="expected 30730000 bytes, got 100"):
        read_records(tmp_path)
    first.rename(tmp_path / "data_batch_1.bin.xz").write_bytes(lzma.compress(bytes(100))[:-20])
    with pytest.raises(DataError, match=r"data_batch_1\.bin\.xz"):
        read_records(tmp_path)
