"""Steps of an unmodified torch script: optimizers, loaders, backward passes, collectives, checkpoints, graphs.

What is patched costs some hundred nanoseconds a call and changes no number: it looks at the clock, and at shapes.
Copies and synchronisations, which are many small calls, and the GPU's own time are measured in windows (windows.py).
"""

import functools
import os
import sys
import weakref
from collections.abc import Mapping
from threading import get_ident
from typing import Any, Callable, Dict, List, Optional

from .recorder import Recorder
from .windows import Windows

#: Code of ours that the script's calls pass through; torch.compile is told to leave it alone.
CODES: List[Any] = []

_COLLECTIVES = ("barrier", "all_reduce", "broadcast", "all_gather", "all_gather_object", "broadcast_object_list")


def begin(torch: Any) -> None:
    """Place all of it. An error in here leaves torch as it was, or as far as it was changed, and is told."""
    recorder = Recorder()
    try:
        measuring = Measuring(torch, recorder)
        measuring.place()
        if os.environ.get("SEATRIAL_TRIAL"):
            from . import trial

            trial.begin(torch, recorder, lambda: measuring.loader, os.environ["SEATRIAL_TRIAL"])
    except Exception as error:  # noqa: BLE001  never the script's trouble
        recorder.stop(error)


def let_dynamo_pass(eval_frame: Any) -> None:
    """torch.compile shall not look into wrappers of ours. ``skip_code`` is there since torch 2.0."""
    skip = getattr(eval_frame, "skip_code", None)
    if skip is not None:
        for code in CODES:
            skip(code)


class Measuring:
    """Patches of one torch, and the recorder that they call."""

    def __init__(self, torch: Any, recorder: Recorder) -> None:
        self.torch, self.recorder = torch, recorder
        self.windows = Windows(torch, recorder)
        self.loader: Optional[Dict[str, Any]] = None
        self.models: Any = weakref.WeakSet()
        self.graphs: Any = weakref.WeakKeyDictionary()  # a captured graph → optimizer steps in it
        self.capturing = False
        self.captured_steps = 0
        compiler = getattr(torch, "compiler", None)
        self.compiling: Callable[[], bool] = getattr(compiler, "is_compiling", lambda: False)
        recorder.at_step = self.at_step
        recorder.extra = self.extra
        recorder.facts.update(framework="torch", version=str(torch.__version__))

    def place(self) -> None:
        torch = self.torch
        self._optimizers(sys.modules["torch.optim.optimizer"])
        self._loaders(sys.modules["torch.utils.data.dataloader"])
        self._wrap(torch.autograd, "backward", self._backward)
        self._wrap(torch, "save", self._region("checkpoint"))
        self._graphs(getattr(torch.cuda, "CUDAGraph", None))
        self._distributed(torch)

    def _wrap(self, owner: Any, name: str, around: Callable[[Any], Any]) -> None:
        original = getattr(owner, name, None)
        if original is None:
            return
        wrapper = around(original)
        try:
            functools.update_wrapper(wrapper, original)
        except (AttributeError, TypeError):
            pass
        CODES.append(wrapper.__code__)
        setattr(owner, name, wrapper)

    def counts(self) -> bool:
        return self.recorder.mine() and not self.compiling()

    # optimizers

    def _optimizers(self, optimizer: Any) -> None:
        before, after = self._before_step(), self._after_step()
        CODES.extend([before.__code__, after.__code__])
        optimizer.register_optimizer_step_pre_hook(before)
        optimizer.register_optimizer_step_post_hook(after)

    def _before_step(self) -> Any:
        def before_step(optimizer: Any, args: Any, kwargs: Any) -> None:
            if not self.counts():
                return
            try:
                closure = args[1] if len(args) > 1 else kwargs.get("closure")
                if self.windows.open:
                    self.windows.mark("optimizer")
                self.recorder.optimizer_began(closure is not None)
            except Exception as error:  # noqa: BLE001
                self.recorder.stop(error)

        return before_step

    def _after_step(self) -> Any:
        def after_step(optimizer: Any, args: Any, kwargs: Any) -> None:
            if self.compiling() or not self.recorder.on:
                return
            try:
                if self.recorder.steps == 0:
                    self._first_step_on_this_thread(optimizer)
                if not self.recorder.mine():
                    return
                self.recorder.optimizer_ended()
                if self.capturing:
                    self.captured_steps += 1
                    return
                self.recorder.stepped(optimizer)
            except Exception as error:  # noqa: BLE001
                self.recorder.stop(error)

        return after_step

    def _first_step_on_this_thread(self, optimizer: Any) -> None:
        """Training may be done in another thread than the one that imported torch."""
        if get_ident() != self.recorder.thread:
            self.recorder.thread = get_ident()
            self.recorder.timeline.enter("other")
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        if parameters:
            self.recorder.facts.update(
                device=parameters[0].device.type,
                parameters=sum(p.numel() for p in parameters),
                parameter_dtype=str(parameters[0].dtype)[6:],
                optimizer=type(optimizer).__name__,
            )

    # loaders

    def _loaders(self, dataloader: Any) -> None:
        base = dataloader._BaseDataLoaderIter
        self._wrap(base, "__init__", self._loader_begins)
        self._wrap(base, "__next__", self._next)

    def _loader_begins(self, original: Any) -> Any:
        def __init__(iterator: Any, loader: Any, *args: Any, **kwargs: Any) -> None:
            if self.recorder.mine():
                self.recorder.timeline.enter("data")  # workers start in here
                try:
                    original(iterator, loader, *args, **kwargs)
                finally:
                    self.recorder.timeline.leave()
            else:
                original(iterator, loader, *args, **kwargs)

        return __init__

    def _next(self, original: Any) -> Any:
        def __next__(iterator: Any) -> Any:
            if not self.recorder.mine():
                return original(iterator)
            recorder, batch = self.recorder, None
            recorder.batch_asked()
            try:
                batch = original(iterator)
                return batch
            finally:
                try:
                    recorder.batch_came(None if batch is None else first_dimension(batch))
                    self.loader = self._settings(iterator) if batch is not None else self.loader
                    if self.windows.open:
                        self.windows.mark("forward")
                except Exception as error:  # noqa: BLE001
                    recorder.stop(error)

        return __next__

    def _settings(self, iterator: Any) -> Dict[str, Any]:
        """The loader as it is; its length only where nothing of the script's own is asked for it."""
        known: Optional[Dict[str, Any]] = getattr(iterator, "_seatrial_settings", None)
        if known is None:
            known = {"workers": iterator._num_workers, "pin_memory": bool(iterator._pin_memory)}
            known["persistent_workers"] = bool(getattr(iterator, "_persistent_workers", False))
            if iterator._num_workers:
                known["prefetch_factor"] = getattr(iterator, "_prefetch_factor", 2)
            sampler = iterator._index_sampler
            batches = self.torch.utils.data.BatchSampler
            if type(sampler) is batches:
                known["batch_size"] = sampler.batch_size
                own = type(sampler.sampler)
                if own.__module__.startswith("torch.") and hasattr(own, "__len__"):  # an iterable dataset's has none
                    known["length"] = len(sampler)
            iterator._seatrial_settings = known
        known["done"] = iterator._num_yielded
        return known

    # backward, collectives, checkpoints

    def _backward(self, original: Any) -> Any:
        def backward(*args: Any, **kwargs: Any) -> Any:
            if not self.recorder.mine():
                return original(*args, **kwargs)
            recorder = self.recorder
            if self.windows.open:
                self.windows.mark("backward")
            recorder.backward_began()
            try:
                return original(*args, **kwargs)
            finally:
                recorder.backward_ended()

        return backward

    def _region(self, region: str) -> Callable[[Any], Any]:
        def around(original: Any) -> Any:
            def timed(*args: Any, **kwargs: Any) -> Any:
                if not self.counts():
                    return original(*args, **kwargs)
                self.recorder.timeline.enter(region)
                try:
                    return original(*args, **kwargs)
                finally:
                    self.recorder.timeline.leave()

            return timed

        return around

    def _distributed(self, torch: Any) -> None:
        if not torch.distributed.is_available():
            return
        for name in _COLLECTIVES:
            self._wrap(torch.distributed, name, self._region("communication"))
        parallel = torch.nn.parallel.DistributedDataParallel
        models, facts = self.models, self.recorder.facts

        def around(original: Any) -> Any:
            def __init__(model: Any, *args: Any, **kwargs: Any) -> None:
                original(model, *args, **kwargs)
                models.add(model)
                facts.update(parallel="DDP", world=torch.distributed.get_world_size())

            return __init__

        self._wrap(parallel, "__init__", around)

    # CUDA graphs

    def _graphs(self, graph: Any) -> None:
        if graph is None:
            return

        def around_begin(original: Any) -> Any:
            def capture_begin(captured: Any, *args: Any, **kwargs: Any) -> Any:
                self.capturing, self.captured_steps = True, 0
                return original(captured, *args, **kwargs)

            return capture_begin

        def around_end(original: Any) -> Any:
            def capture_end(captured: Any) -> Any:
                steps, self.captured_steps, self.capturing = self.captured_steps, 0, False
                result = original(captured)
                if steps:
                    self.graphs[captured] = steps
                    self.recorder.facts["cuda_graph"] = True
                return result

            return capture_end

        def around_replay(original: Any) -> Any:
            def replay(captured: Any) -> Any:
                result = original(captured)
                steps = self.graphs.get(captured) if self.graphs else None
                if steps and self.counts():
                    try:
                        self.recorder.bounded_by(graph)
                        self.recorder.stepped(graph, steps)
                    except Exception as error:  # noqa: BLE001
                        self.recorder.stop(error)
                return result

            return replay

        self._wrap(graph, "capture_begin", around_begin)
        self._wrap(graph, "capture_end", around_end)
        self._wrap(graph, "replay", around_replay)

    # lines

    def at_step(self, step: int) -> None:
        self.windows.at_step(step)
        if self.loader is not None and step in (1, 64):
            told = {key: value for key, value in self.loader.items() if key != "done"}
            self.recorder.facts["loader"] = told

    def extra(self) -> Dict[str, Any]:
        torch, more = self.torch, dict(self.windows.totals())
        if self.loader is not None and "length" in self.loader:
            more["pass"] = [self.loader["done"], self.loader["length"]]
        if torch.cuda.is_initialized():
            stats = torch.cuda.memory_stats()
            more["peak_bytes"] = stats.get("reserved_bytes.all.peak", 0)
            more["alloc_retries"] = stats.get("num_alloc_retries", 0)
        compiled_s = _compile_seconds()
        if compiled_s:
            more["compile_s"] = round(compiled_s, 3)
        for model in self.models:
            more["ddp"] = _ddp_times(model)
        return more


def first_dimension(batch: Any, depth: int = 3) -> int:
    """Examples in a batch: the first dimension of its first tensor; 0 where there is none to be found."""
    listed = isinstance(batch, (list, tuple))
    shape = None if listed else getattr(batch, "shape", None)
    if shape is not None:
        return int(shape[0]) if len(shape) else 1
    if depth:
        for item in batch if listed else batch.values() if isinstance(batch, Mapping) else ():
            found = first_dimension(item, depth - 1)
            if found:
                return found
    return 0


def _compile_seconds() -> float:
    """What torch.compile has taken so far. Source: torch/_dynamo/utils.py, cumulative_time_spent_ns (2.5 and later)."""
    utils = sys.modules.get("torch._dynamo.utils")
    spent = getattr(utils, "cumulative_time_spent_ns", None) or {}
    return float(spent.get("_compile.compile_inner", 0.0)) / 1e9


def _ddp_times(model: Any) -> Dict[str, Any]:
    """DDP's own sampling of its steps, in seconds. Source: torch/csrc/distributed/c10d/logger.cpp (nanoseconds)."""
    data = model._get_ddp_logging_data()
    names = (
        "forward_compute_time",
        "backward_compute_time",
        "backward_comm_time",
        "backward_compute_comm_overlap_time",
    )
    return {name[:-5] + "_s": data["avg_" + name] / 1e9 for name in names if data.get("avg_" + name)}
