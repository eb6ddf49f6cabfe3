"""mnist in Keras 3: its options without any framework, its training with the real ones where they are installed."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("numpy")

from seatrial.recipe_names import framework_of, frameworks_of, module_of
from seatrial.recipes import mnist_keras
from seatrial.train.errors import InputError
from seatrial.train.trackers import Trackers

FRAMEWORKS = ("tensorflow", "jax")

with_framework = [
    pytest.mark.slow,  # Keras and a framework take 5 to 10 s to start
    pytest.mark.skipif(importlib.util.find_spec("keras") is None, reason="keras is not installed here"),
    pytest.mark.parametrize(
        "framework",
        [
            pytest.param(
                name,
                marks=pytest.mark.skipif(
                    importlib.util.find_spec(name) is None, reason=f"{name} is not installed here"
                ),
            )
            for name in FRAMEWORKS
        ],
    ),
]


def real(test):  # type: ignore[no-untyped-def]
    for mark in with_framework:
        test = mark(test)
    return test


def command(framework: str, data: Path, models: Path, *more: str) -> list[str]:
    module = module_of("mnist", ["--framework", framework])
    folders = ["--data", str(data), "--models", str(models), "--batch", "32"]
    return [sys.executable, "-u", "-m", module, "--framework", framework, *folders, *more]


def run(framework: str, data: Path, models: Path, *more: str, **env: str) -> subprocess.CompletedProcess[str]:
    words = command(framework, data, models, *more)
    return subprocess.run(words, capture_output=True, text=True, env={**os.environ, **env})


@pytest.mark.parametrize(
    ("words", "framework"),
    [
        ([], "torch"),
        (["--framework", "jax"], "jax"),
        (["--framework=tensorflow", "--epochs", "2"], "tensorflow"),
        (["--framework", "torch", "--framework=jax"], "jax"),
        (["--framework=jax", "--framework", "torch"], "torch"),
        (["--framework"], "torch"),
        (["--framework="], "torch"),
    ],
)
def test_the_framework_is_what_argparse_would_take(words: list[str], framework: str) -> None:
    assert framework_of(words) == framework


def test_bench_names_several() -> None:
    words = ["train", "mnist", "--compare", "torch,jax", "--", "--epochs", "2"]
    assert frameworks_of("bench", words) == ("torch", "jax")
    assert frameworks_of("bench", ["batch", "mnist", "--", "--framework", "jax"]) == ("jax",)
    assert frameworks_of("bench", ["train", "mnist", "--compare", "eager,graph"]) == ("torch",)


def test_no_framework_is_imported_before_it_trains() -> None:
    program = (
        "import json, sys\nfrom seatrial.recipes import bench, mnist_keras\n"
        "mnist_keras.parse(['--framework', 'jax'])\n"
        "print(json.dumps(sorted({'torch', 'keras', 'jax', 'tensorflow'} & set(sys.modules))))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == []


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--engine", "graph"], "--engine works only with torch"),
        (["--precision=bf16"], "--precision works only with torch"),
        (["--data-parallel"], "--data-parallel works only with torch"),
        (["--schedule", "triangle"], "Keras has no such schedule"),
    ],
)
def test_what_is_torchs_alone_is_refused(options: list[str], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        mnist_keras.parse(["--framework", "jax", *options])


def test_ranks_of_torchrun_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(InputError, match="one process"):
        mnist_keras.parse(["--framework", "jax"])


def test_every_option_of_the_torch_recipe_is_taken_or_refused_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    from seatrial.recipes import mnist

    def options(parse: object, argv: list[str]) -> set[str]:
        with pytest.raises(SystemExit):
            parse(argv)  # type: ignore[operator]
        words = capsys.readouterr().out.replace(",", " ").replace("[", " ").split()
        return {word for word in words if word.startswith("--")} - {"--help"}

    torchs = options(lambda argv: mnist.parse(argv, "mnist"), ["--help"])
    assert torchs == options(mnist_keras.parse, ["--help"]) | set(mnist_keras.TORCH_ONLY)


def test_without_keras_it_is_one_sentence(data: Path, tmp_path: Path) -> None:
    if importlib.util.find_spec("keras") is not None:
        pytest.skip("keras is installed here")
    done = run("jax", data, tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("error: Keras cannot start on jax") and "Traceback" not in done.stderr


@real
def test_learns_saves_and_reports(framework: str, data: Path, tmp_path: Path) -> None:
    events = tmp_path / "events.jsonl"
    done = run(framework, data, tmp_path, "--epochs", "3", "--schedule", "cosine", SEATRIAL_EVENTS=str(events))
    assert done.returncode == 0, done.stderr
    assert "epoch 3: loss" in done.stdout and "accuracy" in done.stdout
    lines = [json.loads(line) for line in events.read_text().splitlines()]
    tests = [line for line in lines if line["phase"] == "test"]
    assert [line["epoch"] for line in tests] == [1, 2, 3]
    assert tests[-1]["accuracy"] > 0.95
    of_steps = [line for line in lines if line["phase"] == "train" and "images" not in line]
    assert [line["step"] for line in of_steps] == list(range(1, 31))
    of_epochs = [line for line in lines if "images" in line]
    for epoch, told in enumerate(of_epochs):  # nine batches of 32 and one of 12
        losses = [line["step_loss"] for line in of_steps[10 * epoch : 10 * epoch + 10]]
        assert told["loss"] == pytest.approx((32 * sum(losses[:9]) + 12 * losses[9]) / 300, rel=1e-4)
    assert {"loop_s", "train_s", "images_per_s", "accuracy"} <= lines[-1].keys()
    assert "Keras 3" in (tmp_path / "training_metadata.txt").read_text()
    assert sorted(path.name for path in tmp_path.glob("*.keras")) == ["trained-model.keras"]
    assert not list(tmp_path.rglob("*.part"))


#: The recipe with a line after each step.
OFTEN = """
import sys
from seatrial.train import command_line, epoch_progress
from seatrial.recipes import mnist_keras
epoch_progress.EVERY_S = 0.0
command_line.run(mnist_keras.main)
"""


@real
def test_lines_within_an_epoch_are_those_of_torch(framework: str, data: Path, tmp_path: Path) -> None:
    events, words = tmp_path / "events.jsonl", command(framework, data, tmp_path, "--epochs", "2")[4:]
    env = {**os.environ, "SEATRIAL_EVENTS": str(events)}
    done = subprocess.run([sys.executable, "-c", OFTEN, *words], capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if ": step " in line]
    assert len(lines) == 2 * 9  # ten steps an epoch, the last of which is the epoch's own line
    assert all(LINE.fullmatch(line) for line in lines), lines
    assert lines[0].startswith("epoch 1: step 1 of 10, loss ") and lines[-1].startswith("epoch 2: step 9 of 10, ")
    told = [json.loads(line) for line in events.read_text().splitlines()]
    losses = [line["step_loss"] for line in told if line["phase"] == "train" and "images" not in line]
    shown = [float(line.partition("loss ")[2].partition(",")[0]) for line in lines]
    assert shown == pytest.approx([*losses[:9], *losses[10:19]], abs=1e-4)


#: Of train/epoch_progress.py, which torch's loop prints as well.
LINE = re.compile(
    r"epoch \d+: step \d+ of \d+, loss \d+\.\d{4}, [\d,]+ examples/s, about (\d+ (h|min) )?\d+ (s|min) left"
)


def test_a_line_every_two_seconds(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The callback as Keras calls it, on a clock of the test's own: half a second a step."""
    clock = iter(number / 2 for number in range(100))
    monkeypatch.setattr(mnist_keras.time, "perf_counter", lambda: next(clock))
    keras = SimpleNamespace(callbacks=SimpleNamespace(LambdaCallback=lambda on_train_batch_end: on_train_batch_end))
    model, stop = SimpleNamespace(stop_training=False), SimpleNamespace(requested=False)
    after_step = mnist_keras._told(keras, model, (2, 3), 190, 10, Trackers([]), stop)
    for number in range(19):
        after_step(number, {"loss": 2.0 if number < 4 else (2.0 * 4 + 1.0 * (number - 3)) / (number + 1)})
    lines = capsys.readouterr().out.splitlines()
    assert lines == [
        "epoch 2: step 4 of 19, loss 2.0000, 20 examples/s, about 17 s left",
        "epoch 2: step 8 of 19, loss 1.0000, 20 examples/s, about 15 s left",
        "epoch 2: step 12 of 19, loss 1.0000, 20 examples/s, about 13 s left",
        "epoch 2: step 16 of 19, loss 1.0000, 20 examples/s, about 11 s left",
    ]
    assert all(LINE.fullmatch(line) for line in lines)


@real
def test_resume_is_bit_identical(framework: str, data: Path, tmp_path: Path) -> None:
    for folder, *more in (
        ("whole", "--epochs", "3"),
        ("parts", "--epochs", "2"),
        ("parts", "--epochs", "3", "--resume"),
    ):
        done = run(framework, data, tmp_path / folder, *more)
        assert done.returncode == 0, done.stderr
    assert "resumed from" in done.stdout and "epoch 2:" not in done.stdout
    program = (
        "import sys, keras, numpy\n"
        "one, other = (keras.saving.load_model(path) for path in sys.argv[1:])\n"
        "state = lambda model: [numpy.asarray(each) for each in (*model.weights, *model.optimizer.variables)]\n"
        "assert len(state(one)) > 20 and all(map(numpy.array_equal, state(one), state(other)))\n"
    )
    models = [str(tmp_path / folder / "trained-model.keras") for folder in ("whole", "parts")]
    env = {**os.environ, "KERAS_BACKEND": framework}
    done = subprocess.run([sys.executable, "-c", program, *models], capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr


@real
def test_sigterm_ends_143_with_the_last_epoch_saved(framework: str, data: Path, tmp_path: Path) -> None:
    words = command(framework, data, tmp_path, "--epochs", "100000", "--keep", "2")
    stopped = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    assert stopped.stdout is not None
    for line in stopped.stdout:
        if line.startswith("epoch 3:"):
            break
    stopped.send_signal(signal.SIGTERM)
    rest = stopped.stdout.read()
    assert stopped.wait(60) == 143
    saved = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    assert len(saved) == 2 and f"epoch {int(saved[-1][6:11])} is saved" in rest


@real
def test_a_checkpoint_that_does_not_fit(framework: str, data: Path, tmp_path: Path) -> None:
    place = tmp_path / "checkpoints"
    place.mkdir()
    (place / "epoch-00009.keras").write_bytes(b"no zip file")
    done = run(framework, data, tmp_path, "--resume")
    assert done.returncode == 2
    assert "skipped" in done.stdout and "there is no checkpoint of Keras" in done.stderr
    assert "Traceback" not in done.stderr


#: Makes several devices of the CPU before the recipe runs.
PARTS = """
import os, sys
framework, count = sys.argv[1], int(sys.argv[2])
if framework == "jax":
    os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={count}"
else:
    import tensorflow as tf
    [cpu] = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * count)
from seatrial.recipes import mnist_keras
from seatrial.train import command_line
sys.argv = ["mnist", "--framework", framework, *sys.argv[3:]]
command_line.run(mnist_keras.main)
"""


def run_on(count: int, framework: str, data: Path, models: Path, *more: str) -> list[dict[str, float]]:
    """What the recipe tells of its tests, on so many devices."""
    events = models.parent / f"{models.name}.jsonl"
    words = [framework, str(count), "--data", str(data), "--models", str(models), *more]
    env = {**os.environ, "SEATRIAL_EVENTS": str(events)}
    done = subprocess.run([sys.executable, "-c", PARTS, *words], capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr
    assert (f"on each of {count} devices" in done.stdout) == (count > 1)
    told = [json.loads(line) for line in events.read_text().splitlines()]
    return [line for line in told if line["phase"] == "test"]


@real
def test_two_devices_train_as_one_with_the_batch_of_both(framework: str, data: Path, tmp_path: Path) -> None:
    one = run_on(1, framework, data, tmp_path / "one", "--batch", "32", "--epochs", "3")
    two = run_on(2, framework, data, tmp_path / "two", "--batch", "16", "--epochs", "2")
    two += run_on(2, framework, data, tmp_path / "two", "--batch", "16", "--epochs", "3", "--resume")[-1:]
    assert [line["test_loss"] for line in two] == pytest.approx([line["test_loss"] for line in one], rel=1e-3)
    assert [line["epoch"] for line in two] == [1, 2, 3] and two[-1]["accuracy"] > 0.9


@real
def test_devices_that_no_number_is_a_multiple_of(framework: str, data: Path, tmp_path: Path) -> None:
    """300 training and 90 test images on seven devices."""
    told = run_on(7, framework, data, tmp_path / "seven", "--batch", "5", "--epochs", "3")
    assert told[-1]["accuracy"] > 0.9
    assert round(told[-1]["accuracy"] * 90, 3) == round(told[-1]["accuracy"] * 90), "all 90 count"
