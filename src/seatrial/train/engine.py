"""Run steps eagerly, compiled, or captured in a CUDA graph and replayed several at a time.

All engines run the same ``Step``; a captured one gives the numbers of an eager one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import groupby
from typing import Any

import torch

from seatrial.train import capture
from seatrial.train.autocast_weights import EarlyError
from seatrial.train.capture import NotCapturable
from seatrial.train.data.order import Shape, Span
from seatrial.train.errors import InputError, type_and_line
from seatrial.train.saving.checkpoint import snapshot
from seatrial.train.saving.rng import rng_state, set_rng_state
from seatrial.train.step import Step

NAMES = ("auto", "eager", "compile", "graph", "compile+graph")
#: Steps run before a capture: cuDNN and cuBLAS choose their kernels, optimizers make their state (torch's notes on
#: CUDA graphs ask for at least 3 with a whole step captured: https://pytorch.org/docs/stable/notes/cuda.html).
WARMUP_STEPS = 3
#: Steps in one graph. On an H200 launching a graph costs 5 to 10 µs of host time, a small step's kernels 100 to 200 µs.
STEPS_PER_REPLAY = 16


class Eager:
    """Runs each step kernel by kernel, and survives out-of-memory errors by smaller micro-batches."""

    name = "eager"

    def __init__(self, step: Step) -> None:
        self.step = step

    def run(self, shape: Shape, steps: int) -> None:
        """Queue ``steps`` steps of one shape."""
        for _ in range(steps):
            self.step.source.before_step()
            self.step.run_recovering(shape)


class Graphed:
    """Captures each shape's step once, with the state as before, and replays it. ``epochs``: None: the step's."""

    name = "graph"

    def __init__(self, step: Step, steps_per_replay: int = STEPS_PER_REPLAY, epochs: int | None = None) -> None:
        self.step, self._epochs = step, step.epochs if epochs is None else epochs
        several = getattr(step.source, "steps_per_replay", steps_per_replay)
        self.steps_per_replay = several if step.source.resident else 1
        self._graphs: dict[tuple[int, Shape, int], torch.cuda.CUDAGraph] = {}
        self._pool: Any = None
        # None: torch's own stream, whose kernels have no priority over those of other streams.
        self._stream = torch.cuda.Stream(priority=-1) if step.reducer.second_stream else None  # type: ignore[no-untyped-call]

    def prepare(self) -> None:
        """Warm up and capture every shape; parameters, optimizer, random numbers and position stay as they are.

        A graph keeps its memory, so it may not fit where eager steps do: then all ranks start over with half the
        micro-batch. Raises TrainError when one row is too much, NotCapturable for a step that a graph would not repeat.
        """
        capture.refuse_beforehand(self.step)
        while not self._prepared():
            self._graphs, self._pool = {}, None
            self.step.reducer.clear()
            self.step.micro_batch.halve(self.step.device, self.step.ranks.first)

    def _prepared(self) -> bool:
        """Return True if every shape fits into memory on every rank.

        After each shape the ranks agree: none waits for one that cannot, nor runs eagerly while others replay graphs.
        """
        for phase in range(self.step.phases + 1):
            self.step.enter_phase(phase)
            for shape, longest in longest_runs(epochs_of(self.step, phase, self._epochs)).items():
                too_large = False
                error: Exception | None = None
                try:
                    self._warm_up(shape)
                    for steps in sorted({1, self.steps_per_replay if longest >= self.steps_per_replay else 1}):
                        self._capture(shape, steps)
                except torch.OutOfMemoryError:
                    too_large = True
                except Exception as failure:  # noqa: BLE001  raised again when the other ranks know
                    error = failure
                any_too_large, any_error = self.step.ranks.any_of([too_large, error is not None])
                if any_error:
                    raise error or NotCapturable("the step of another rank cannot")
                if any_too_large:
                    return False
        return True

    def run(self, shape: Shape, steps: int) -> None:
        """Queue ``steps`` steps of one shape."""
        phase = self.step.phase
        while steps:
            several = steps >= self.steps_per_replay and (phase, shape, self.steps_per_replay) in self._graphs
            together = self.steps_per_replay if several else 1
            self.step.source.before_step()
            self._graphs[phase, shape, together].replay()
            steps -= together

    def _warm_up(self, shape: Shape) -> None:
        with left_as_before(self.step) as fresh:
            side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            side.wait_stream(torch.cuda.current_stream())
            try:
                with torch.cuda.stream(side):
                    watched_steps(self.step, shape, fresh=fresh)
            finally:
                self.step.rehearsing = False
                torch.cuda.current_stream().wait_stream(side)
                torch.cuda.synchronize()

    def _capture(self, shape: Shape, steps: int) -> None:
        graph, before = torch.cuda.CUDAGraph(), torch.cuda.current_stream()
        try:
            # thread_local: NCCL's watchdog asks after earlier events meanwhile, which would end a global capture.
            with torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"):
                try:
                    for _ in range(steps):
                        self.step.run_fixed(shape)
                except RuntimeError:
                    with suppress(RuntimeError):  # of a capture that is broken already
                        self.step.reducer.clear()  # a capture cannot end before its second stream is waited for
                    raise
        finally:  # a capture that fails stays on its stream (torch 2.13, cuda/graphs.py: __exit__)
            torch.cuda.set_stream(before)
        self._pool = self._pool or graph.pool()
        self._graphs[self.step.phase, shape, steps] = graph


Engine = Eager | Graphed


@contextmanager
def left_as_before(step: Step) -> Iterator[bool]:
    """Put state and generators back at the end of the block, in place; True if the optimizer has no state yet."""
    before, generators, fresh = snapshot(step.state()), rng_state(), not step.optimizer.state
    try:
        yield fresh
    finally:
        step.restore(before, forget_optimizer=fresh)
        set_rng_state(generators)


def watched_steps(step: Step, shape: Shape, *, fresh: bool) -> None:
    """Run steps before a capture and watch the last, since the first may fill caches. Raises NotCapturable.

    ``fresh``: the optimizer had no state before them.
    """
    seen, draws = capture.host_state(step), capture.host_draws(step.device)
    for _ in range(WARMUP_STEPS):
        step.point_at(shape)
        step.rehearsing = step.device.type == "cuda"
        seen, draws = capture.host_state(step), capture.host_draws(step.device)
        try:
            step.run_recovering(shape)
        except EarlyError:  # the next ones leave out the weights for which it does not go
            step.reducer.clear()
    capture.refuse(step, seen, draws)
    if fresh:
        capture.refuse_optimizer(step)


def epochs_of(step: Step, phase: int, epochs: int) -> list[list[Span]]:
    """Return the steps of each epoch of a phase; of one epoch if all have the same shapes."""
    spans_in = getattr(step.source, "spans_in", None)
    return [spans_in(epoch) for epoch in step.epochs_of(phase, epochs)] if spans_in else [step.source.spans]


def longest_runs(epochs: list[list[Span]]) -> dict[Shape, int]:
    """Return each shape and its longest run of steps; the largest shapes first, for their memory."""
    longest: dict[Shape, int] = {}
    for spans in epochs:
        for shape, members in groupby(span.shape for span in spans):
            longest[shape] = max(longest.get(shape, 0), len(list(members)))
    return dict(sorted(longest.items(), key=lambda item: -item[0].rows * max(1, item[0].length)))


def choose_engine(name: str, step: Step, note: Callable[[str], object], epochs: int | None = None) -> Engine:
    """Return the chosen engine, prepared for ``epochs`` (None: the step's); ``auto``: a graph on a GPU, else eager.

    One that this machine cannot run is replaced by a simpler one; ``note`` gets why. Raises InputError: unknown name.
    """
    if name not in NAMES:
        raise InputError(f"engine {name!r} is not one of {', '.join(NAMES)}")
    on_gpu = step.device.type == "cuda"
    if name == "auto":
        name = "graph" if on_gpu else "eager"
    if "graph" in name and not on_gpu:
        note("engine: no CUDA graph on a CPU; steps run eagerly")
        name = name.replace("graph", "eager")
    began, epochs = time.perf_counter(), step.epochs if epochs is None else epochs
    if "compile" in name and (reason := _compile(step, epochs)):
        note(f"engine: torch.compile does not work here ({reason}); continuing without it")
    engine: Engine = Eager(step)
    if "graph" in name:
        generators, fresh = rng_state(), not step.optimizer.state
        try:
            engine = Graphed(step, epochs=epochs)
            engine.prepare()
        except RuntimeError as error:
            try:
                capture.forget_failed_capture(step.device)
            except RuntimeError:  # after an illegal access the GPU refuses everything: the first error is the cause
                raise error from None
            set_rng_state(generators)
            note(f"engine: the step cannot be captured ({_why(error, step)}); steps run eagerly")
            if fresh:  # no graph goes on using its memory: all that it keeps starts anew
                step.optimizer.state.clear()
            engine = Eager(step)
            name = name.replace("graph", "eager")
    note(f"engine: {name}, prepared in {time.perf_counter() - began:.1f} s")
    return engine


def _why(error: RuntimeError, step: Step) -> str:
    """Raise the reason that a step cannot be captured; it, its generators and its gradients are as before."""
    if isinstance(error, NotCapturable):
        return str(error)
    if step.ranks.world > 1:  # one more step would need every rank
        return type_and_line(error)
    shape = step.source.spans[0].shape
    with left_as_before(step):
        step.point_at(shape)
        line = capture.waiting_line(step, shape)
    return f"{line} waits for the GPU" if line else type_and_line(error)


def _compile(step: Step, epochs: int) -> str | None:
    """Compile the step's forward and backward pass and run each shape once a phase; why that failed, or None."""
    fresh, reason = not step.optimizer.state, None
    step.compile()
    try:
        with left_as_before(step):
            for phase in range(step.phases + 1):
                step.enter_phase(phase)
                for shape in longest_runs(epochs_of(step, phase, epochs)):
                    step.point_at(shape)
                    step.run_recovering(shape)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # noqa: BLE001  torch.compile raises what a model leads it to
        step.uncompile()
        reason = type_and_line(error)
    if fresh:
        step.optimizer.state.clear()
    return reason
