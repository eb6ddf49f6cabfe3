"""How steps are run: eagerly, compiled, or captured in a CUDA graph and replayed several at a time.

All engines run the same ``Step``; a captured one gives the numbers of an eager one.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

from seatrial.train.checkpoint import snapshot
from seatrial.train.errors import InputError
from seatrial.train.rng import rng_state, set_rng_state
from seatrial.train.shards import Shape
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

    def prepare(self, shapes: set[Shape]) -> None:
        """Nothing to prepare."""


class Graphed:
    """Captures each shape's step once, with the state as it was before, and replays it."""

    name = "graph"

    def __init__(self, step: Step, steps_per_replay: int = STEPS_PER_REPLAY) -> None:
        self.step = step
        self.steps_per_replay = steps_per_replay if step.source.resident else 1
        self._graphs: dict[tuple[Shape, int], torch.cuda.CUDAGraph] = {}
        self._pool: Any = None

    def prepare(self, shapes: set[Shape]) -> None:
        """Warm up and capture every shape; parameters, optimizer, random numbers and position stay as they are."""
        for shape in sorted(shapes, key=lambda shape: (-shape.rows * max(1, shape.length), shape)):
            self._warm_up(shape)
            for steps in {1, self.steps_per_replay}:
                self._capture(shape, steps)

    def run(self, shape: Shape, steps: int) -> None:
        """Queue ``steps`` steps of one shape."""
        while steps:
            together = self.steps_per_replay if steps >= self.steps_per_replay else 1
            self.step.source.before_step()
            self._graphs[shape, together].replay()
            steps -= together

    def _warm_up(self, shape: Shape) -> None:
        before, generators = snapshot(self.step.state()), rng_state()
        fresh = not self.step.optimizer.state
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(WARMUP_STEPS):
                self.step.position.zero_()  # an epoch may have fewer steps than this
                self.step.run_recovering(shape)
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()
        self.step.restore(before, forget_optimizer=fresh)
        set_rng_state(generators)

    def _capture(self, shape: Shape, steps: int) -> None:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            for _ in range(steps):
                self.step.run_fixed(shape)
        self._pool = self._pool or graph.pool()
        self._graphs[shape, steps] = graph


Engine = Eager | Graphed


def choose_engine(name: str, step: Step, shapes: set[Shape], note: Callable[[str], object]) -> Engine:
    """The engine asked for, prepared; ``auto`` is a graph on a GPU and eager on a CPU.

    An engine that this machine cannot run is replaced by the next simpler one; ``note`` is told why.

    Raises:
        InputError: no engine of this name.
    """
    if name not in NAMES:
        raise InputError(f"engine {name!r} is not one of {', '.join(NAMES)}")
    on_gpu = step.device.type == "cuda"
    if name == "auto":
        name = "graph" if on_gpu else "eager"
    if "graph" in name and not on_gpu:
        note("engine: no CUDA graph on a CPU; steps run eagerly")
        name = name.replace("graph", "eager")
    began = time.perf_counter()
    if "compile" in name and (reason := _compile(step, shapes)):
        note(f"engine: torch.compile does not work here ({reason}); going on without it")
    engine: Engine = Eager(step)
    if "graph" in name:
        try:
            engine = Graphed(step)
            engine.prepare(shapes)
        except RuntimeError as error:
            if isinstance(error, torch.OutOfMemoryError):
                raise
            note(f"engine: the step cannot be captured ({_first_line(error)}); steps run eagerly")
            engine = Eager(step)
    note(f"engine: {name}, prepared in {time.perf_counter() - began:.1f} s")
    return engine


def _compile(step: Step, shapes: set[Shape]) -> str | None:
    """Compile the step's forward and backward pass and run each shape once; why that failed, or None."""
    before, generators = snapshot(step.state()), rng_state()
    fresh = not step.optimizer.state
    step.compile()
    try:
        for shape in shapes:
            step.position.zero_()
            step.run_recovering(shape)
    except Exception as error:
        if isinstance(error, torch.OutOfMemoryError):
            raise
        step.uncompile()
        return _first_line(error)
    finally:
        step.restore(before, forget_optimizer=fresh)
        set_rng_state(generators)
    return None


def _first_line(error: BaseException) -> str:
    text = str(error).strip()
    return f"{type(error).__name__}: {text.splitlines()[0]}" if text else type(error).__name__
