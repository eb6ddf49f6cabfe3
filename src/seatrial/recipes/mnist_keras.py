"""mnist with ``--framework tensorflow`` or ``jax``: the same network, data, batches and optimizer as a Keras 3 model.

    python -m seatrial.recipes.mnist_keras --framework jax --data DIR --models DIR --epochs 5

One process on all GPUs that it sees, with a batch of --batch on each. First weights are drawn as Keras does. Imports no
torch, and Keras only when it trains, so that KERAS_BACKEND is set before. Shapes: N images, H and W pixels.
"""

from __future__ import annotations

import argparse
import importlib
import math
import os
import time
from collections.abc import Sequence
from contextlib import closing
from typing import Any

import numpy as np

from seatrial.recipe_names import KERAS_FRAMEWORKS
from seatrial.recipes.keras_devices import devices, tested
from seatrial.recipes.mnist_files import FILES, MIRRORS
from seatrial.train import command_line, epoch_progress
from seatrial.train.command_line import positive, positive_float
from seatrial.train.data.download import fetch
from seatrial.train.data.idx import Bytes, IdxFolder, read_folder
from seatrial.train.errors import EXIT_TERMINATED, DivergedError, InputError
from seatrial.train.saving import keras_files
from seatrial.train.saving.atomic import write_text
from seatrial.train.stopping import StopRequest
from seatrial.train.trackers import TRACKERS, Trackers, open_trackers

#: Options of the recipe that belong to torch's loop, and how many values each takes.
TORCH_ONLY = {
    "--engine": 1, "--precision": 1, "--accumulation": 1, "--memory-fraction": 1, "--data-parallel": 0,
    "--every-steps": 1, "--patience": 1, "--hang": 1, "--weight-decay": 1,
}  # fmt: skip
SCHEDULES = ("constant", "cosine")
WARMUP, LOGGED_STEPS, TEST_BATCH = 0.1, 100, 1000


def main(argv: Sequence[str]) -> int:
    """The command line; returns the exit code."""
    arguments = parse(argv)
    if arguments.download:
        fetch(FILES, MIRRORS, arguments.data)
    data = read_folder(arguments.data)
    if arguments.batch > len(data.train_labels):
        raise InputError(
            f"a batch of {arguments.batch} is larger than the {len(data.train_labels)} training images",
            fix=f"--batch {len(data.train_labels)} or less",
        )
    with closing(open_trackers(arguments.track, arguments.models)) as trackers, StopRequest() as stop:
        return train(_keras(arguments.framework), data, arguments, trackers, stop)


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """The options that mean the same as with torch. Raises InputError for those that are torch's alone."""
    _refuse_torch_options(argv)
    parser = argparse.ArgumentParser(prog="seatrial.recipes.mnist", description="Train the classic CNN with Keras 3.")
    command_line.add_folder_options(parser)
    parser.add_argument("--framework", choices=KERAS_FRAMEWORKS, required=True)
    parser.add_argument("--epochs", type=positive, default=5)
    parser.add_argument("--batch", type=positive, default=64)
    parser.add_argument("--learning-rate", type=positive_float, default=1e-3)
    parser.add_argument("--schedule", choices=(*SCHEDULES, "triangle"), default="constant")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=positive, default=3, help="checkpoints to keep")
    parser.add_argument("--track", action="append", default=[], choices=tuple(TRACKERS), help="can be given again")
    parser.add_argument("--download", action="store_true", help="fetch the files into --data first")
    arguments = parser.parse_args(argv)
    if arguments.schedule not in SCHEDULES:
        raise InputError(
            f"--schedule {arguments.schedule} works only with torch: Keras has no such schedule",
            fix=f"--schedule {' or '.join(SCHEDULES)}",
        )
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise InputError(
            "mnist with Keras trains in one process; torchrun has started several",
            fix="seatrial run mnist --launcher none …",
        )
    return command_line.settle_places(arguments, keras_files.checkpoints)


def _refuse_torch_options(argv: Sequence[str]) -> None:
    for word in argv:
        option = word.partition("=")[0]
        if option in TORCH_ONLY:
            omitted = f"{option} {'…' * TORCH_ONLY[option]}".strip()
            raise InputError(
                f"{option} works only with torch: Keras has its own training loop",
                fix=f"omit {omitted}, or use --framework torch",
            )


def _keras(framework: str) -> Any:
    """Keras on this framework. Raises InputError: it is not installed."""
    os.environ["KERAS_BACKEND"] = framework
    try:
        import keras
    except ImportError as error:
        raise InputError(
            f"Keras cannot start on {framework}: {error}", fix=f"pip install keras {framework}, or omit --framework"
        ) from error
    if keras.backend.backend() != framework:  # imported before, by somebody else
        raise InputError(
            f"Keras already computes with {keras.backend.backend()} in this process",
            fix="python -m seatrial.recipes.mnist_keras",
        )
    return keras


def network(keras: Any, data: IdxFolder) -> Any:
    """The layers of mnist.py, channels last. Takes bytes: scale and shift of the training images are its first layer.

    Raises InputError: the images are too small.
    """
    height, width = data.train_images.shape[1:]
    if min(height, width) < 10:
        raise InputError(
            f"images of {min(height, width)} pixels are too small for this network: at least 10 are needed"
        )
    mean, deviation = float(data.train_images.mean()), max(1e-6, float(data.train_images.std()))
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((height, width, 1), dtype="uint8"),
            layers.Rescaling(1 / deviation, -mean / deviation),
            layers.Conv2D(32, 3, activation="relu"),
            layers.MaxPooling2D(),
            layers.Conv2D(64, 3, activation="relu"),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dense(128, activation="relu"),
            layers.Dense(data.classes),
        ]
    )


def compiled(keras: Any, data: IdxFolder, arguments: argparse.Namespace, epoch_steps: int) -> Any:
    """The network with fresh weights, Adam and its schedule."""
    keras.utils.set_random_seed(arguments.seed)
    model, rate = network(keras, data), arguments.learning_rate
    if arguments.schedule == "cosine":
        steps = arguments.epochs * epoch_steps
        rising = max(1, round(WARMUP * steps))
        rate = keras.optimizers.schedules.CosineDecay(
            arguments.learning_rate / rising,
            max(1, steps - rising),
            warmup_target=arguments.learning_rate,
            warmup_steps=rising,
        )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(rate, epsilon=1e-8), loss, metrics=["accuracy"])
    return model


# Over 60 lines: the whole loop on one page, in the order in which it happens, as train/loop.py is.
def train(keras: Any, data: IdxFolder, arguments: argparse.Namespace, trackers: Trackers, stop: StopRequest) -> int:
    """Train, test and save a checkpoint after each epoch, save the model; the exit code.

    Raises:
        DivergedError: the loss is not finite. CheckpointError: the one to go on from does not fit.
    """
    images, labels = data.train_images[..., None], data.train_labels.astype(np.int32)
    tests, test_labels = data.test_images[..., None], data.test_labels.astype(np.int32)
    used = devices(arguments.framework)
    batch = arguments.batch * used.count
    count = len(labels) - len(labels) % used.shares  # an epoch leaves out a few, others each time
    steps, place = math.ceil(count / batch), _resume_place(arguments)
    done, metrics, best, train_s = 0, {"accuracy": 0.0, "test_loss": 0.0}, 0.0, 0.0
    of_each = f"{arguments.batch} on each of {used.count} devices, {batch} together" if used.count > 1 else f"{batch}"
    print(f"mnist: batch {of_each}, Keras {keras.__version__} on {_version(arguments.framework)}, {used.words}")
    with used.scope(keras):
        model = compiled(keras, data, arguments, steps)
        if place:
            done = keras_files.resume(keras, model, place)
            print(f"resumed from {place}: {done} epochs done", flush=True)
    first, began = done, time.perf_counter()
    for epoch in range(done + 1, arguments.epochs + 1):
        order = np.random.default_rng((arguments.seed % 2**32, epoch)).permutation(len(labels))[
            :count
        ]  # as before a resume
        epoch_began = time.perf_counter()
        told = _told(keras, model, (epoch, arguments.epochs), count, batch, trackers, stop)
        loss = run_epoch(model, images[order], labels[order], batch, told)
        seconds = time.perf_counter() - epoch_began
        if loss is None:
            return _terminated(arguments, epoch, done)
        if not math.isfinite(loss):
            raise DivergedError(
                f"the loss became {loss} in epoch {epoch}; the checkpoints from before it are kept",
                fix="a lower --learning-rate; --resume continues from the last checkpoint",
            )
        metrics = tested(model, tests, test_labels, TEST_BATCH, used)
        best, train_s, done = max(best, metrics["accuracy"]), train_s + seconds, epoch
        where = {"step": epoch * steps, "epoch": epoch}
        trackers.log({**where, "phase": "train", "loss": loss, "images": count, "images_per_s": count / seconds})
        trackers.log({**where, "phase": "test", **metrics})
        print(
            f"epoch {epoch}: loss {loss:.4f}, test loss {metrics['test_loss']:.4f}, accuracy {metrics['accuracy']:.2%}"
            f", {count / seconds:,.0f} examples/s, {seconds:.3f} s",
            flush=True,
        )
        keras_files.save_checkpoint(model, arguments.checkpoints, epoch, arguments.keep)
        if stop.requested:
            return _terminated(arguments, epoch, done)
    if done > first:
        loop_s, trained = time.perf_counter() - began, (done - first) * count
        rate = {"loop_s": loop_s, "train_s": train_s, "images_per_s": trained / train_s}
        trackers.log({"step": done * steps, "epoch": done, "phase": "end", **rate, **metrics})
        print(f"trained {trained:,} images in {loop_s:.3f} s", flush=True)
        save(keras, model, arguments, {**metrics, "best": best}, data.classes, used.words)
    else:
        print(f"nothing to train: {done} epochs are done and --epochs is {arguments.epochs}", flush=True)
    return 0


def run_epoch(model: Any, images: Bytes, labels: Any, batch: int, told: Any) -> float | None:
    """One pass over the images in this order; their mean loss, or None where a SIGTERM ended it."""
    history = model.fit(images, labels, batch_size=batch, shuffle=False, verbose=0, callbacks=[told])
    return None if model.stop_training else float(history.history["loss"][-1])


def _told(
    keras: Any, model: Any, of: tuple[int, int], count: int, batch: int, trackers: Trackers, stop: StopRequest
) -> Any:
    """A callback: a line every two seconds, some of the epoch's losses for the trackers, and a look at SIGTERM.

    Keras tells the mean over the epoch so far; what is told is the mean of the steps since the last one.

    Args:
        of: which epoch, of how many. count: its images.
    """
    epoch, epochs = of
    steps = math.ceil(count / batch)
    stride = max(1, steps // LOGGED_STEPS)
    logged, shown = _Since(), _Since()
    began_s = told_s = time.perf_counter()

    def after_step(number: int, logs: Any) -> None:
        nonlocal told_s
        model.stop_training = stop.requested
        done, now_s = number + 1, time.perf_counter()
        examples = min(count, done * batch)
        if done % stride == 0:
            loss = logged.mean(float(logs["loss"]), examples)
            trackers.log({"step": (epoch - 1) * steps + done, "epoch": epoch, "step_loss": loss, "phase": "train"})
        if now_s - told_s < epoch_progress.EVERY_S or done >= steps or not math.isfinite(so_far := float(logs["loss"])):
            return
        taken_s, told_s = now_s - began_s, now_s
        left_s = ((epochs - epoch) * steps + steps - done) * taken_s / done
        loss = shown.mean(so_far, examples)
        print(epoch_progress.line(epoch, done, steps, loss, examples / taken_s, left_s), flush=True)

    return keras.callbacks.LambdaCallback(on_train_batch_end=after_step)


class _Since:
    """Means of what came since the last one, out of means over all so far."""

    def __init__(self) -> None:
        self._examples, self._sum = 0, 0.0

    def mean(self, so_far: float, examples: int) -> float:
        """Of the examples since the last call; ``so_far`` is that of all of them."""
        total = so_far * examples
        mean = (total - self._sum) / (examples - self._examples)
        self._examples, self._sum = examples, total
        return mean


def save(
    keras: Any, model: Any, arguments: argparse.Namespace, metrics: dict[str, float], classes: int, device: str
) -> None:
    """trained-model.keras and training_metadata.txt in the models folder."""
    facts = {
        "dataset": "mnist",
        "model": "two convolutions 32-64",
        "classes": classes,
        "channels": 1,
        "test accuracy": f"{metrics['accuracy']:.4f}",
        "test loss": f"{metrics['test_loss']:.4f}",
        "best test accuracy": f"{metrics['best']:.4f}",
        "epochs": arguments.epochs,
        "batch size": arguments.batch,
        "learning rate": arguments.learning_rate,
        "framework": f"Keras {keras.__version__} on {_version(arguments.framework)}",
        "device": device,
        "parameters": model.count_params(),
    }
    path, words = arguments.models / "trained-model.keras", arguments.models / "training_metadata.txt"
    keras_files.save_model(model, path)
    write_text(words, "".join(f"{name}: {value}\n" for name, value in facts.items()))
    print(f"saved {path}\nsaved {words}", flush=True)


def _resume_place(arguments: argparse.Namespace) -> Any:
    """What was asked for; in a pod that comes back, this run's own checkpoints."""
    if "SEATRIAL_GO_ON" in os.environ and keras_files.checkpoints(arguments.checkpoints):
        return arguments.checkpoints
    return arguments.resume


def _terminated(arguments: argparse.Namespace, epoch: int, done: int) -> int:
    kept = f"epoch {done} is saved in {arguments.checkpoints}" if done else "no epoch was done"
    print(f"terminated in epoch {epoch}: {kept}", flush=True)
    return EXIT_TERMINATED


def _version(framework: str) -> str:
    name = {"tensorflow": "TensorFlow", "jax": "JAX"}[framework]
    return f"{name} {importlib.import_module(framework).__version__}"


if __name__ == "__main__":
    command_line.run(main)
