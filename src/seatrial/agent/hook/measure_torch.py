"""Steps of an unmodified torch script: optimizers, loaders, backward passes, collectives, checkpoints, graphs.

What is patched costs some hundred nanoseconds a call and changes no number: it looks at the clock, and at shapes.
Copies and synchronisations, which are many small calls, and the GPU's own time are measured in windows (windows.py).
"""

import functools
import os
import pickle
import sys
import weakref
from collections.abc import Mapping
from threading import get_ident
from time import perf_counter
from typing import Any, Callable, Dict, Iterator, List

from .communication import Communication
from .hand_steps import HandSteps
from .optimizer_steps import OptimizerSteps, compiling_check
from .recorder import Recorder, age_s, shared
from .windows import Windows

_BEGUN: Dict[str, "Measuring"] = {}


def begin(torch: Any) -> None:
    """Place all of it. An error in here leaves torch as it was, or as far as it was changed, and is told."""
    recorder = shared()
    try:
        measuring = Measuring(torch, recorder)
        measuring.place()
        _BEGUN["torch"] = measuring
        if os.environ.get("SEATRIAL_TRIAL"):
            from . import trial

            trial.begin(torch, recorder, measuring.loader_now, os.environ["SEATRIAL_TRIAL"])
    except Exception as error:  # noqa: BLE001  never the script's trouble
        recorder.stop(error)


def dynamo_is_here(eval_frame: Any) -> None:
    """torch.compile shall not compile code of ours. ``skip_code`` is there since torch 2.0."""
    measuring = _BEGUN.get("torch")
    if measuring is None:
        return
    try:
        skip = getattr(eval_frame, "skip_code", None)
        if skip is not None:
            for code in own_code():
                skip(code)
        measuring.compiled = True
        measuring.window(opens=True)
        measuring.steps.dynamo_is_here(eval_frame)
    except Exception as error:  # noqa: BLE001
        measuring.recorder.stop(error)


def compiling_is_here(callback: Any) -> None:
    """torch.compile says when it begins. Source: torch/_dynamo/callback.py, since torch 2.4."""
    measuring = _BEGUN.get("torch")
    register = getattr(getattr(callback, "callback_handler", None), "register_start_callback", None)
    if measuring is not None and register is not None:
        register(measuring.compile_begins)


def saving_is_here(safetensors: Any) -> None:
    measuring = _BEGUN.get("torch")
    if measuring is None:
        return
    try:
        measuring.wrap_saving(safetensors)
    except Exception as error:  # noqa: BLE001
        measuring.recorder.stop(error)


def fsdp_is_here(module: Any) -> None:
    measuring = _BEGUN.get("torch")
    if measuring is None:
        return
    try:
        measuring.communication.fsdp_is_here(module)
    except Exception as error:  # noqa: BLE001
        measuring.recorder.stop(error)


class Measuring:
    """Patches of one torch, and the recorder that they call."""

    def __init__(self, torch: Any, recorder: Recorder) -> None:
        self.torch, self.recorder = torch, recorder
        self.windows = Windows(torch, recorder)
        self.compiling = compiling_check(torch)
        self.steps = OptimizerSteps(torch, recorder, self.windows)
        self.by_hand = HandSteps(torch, recorder, self.compiling)
        self.steps.seen = self.by_hand.optimizer_stepped
        self.communication = Communication(torch, recorder, self.windows, self.compiling)
        self.latest: Callable[[], Any] = lambda: None  # the iterator of the last batch, while it lives
        self.asked: Dict[int, List[Any]] = {}  # loaders' iterators in doubt, and how many batches were asked of them
        self.loader: Dict[str, Any] = {}
        self.passed: List[int] = []  # batches of the pass so far, and in all
        self.unwrapped: Any = None  # torch.autograd.backward as it was, while it is wrapped
        self.compiled = False
        self.graphs: Any = weakref.WeakKeyDictionary()  # a captured graph → optimizer steps in it
        recorder.look = self.look
        recorder.extras.append(self.extra)
        recorder.at_ends.append(self.at_end)
        recorder.compiles = _compiles
        recorder.stepped_elsewhere = self.trained_on
        recorder.facts.setdefault("framework", "torch")
        recorder.facts.update(version=str(torch.__version__), imported_after_s=round(age_s(), 3))
        self.visible = os.environ.get("CUDA_VISIBLE_DEVICES")

    def place(self) -> None:
        torch = self.torch
        self.steps.place(sys.modules["torch.optim.optimizer"])
        self.by_hand.place()
        self._loaders(sys.modules["torch.utils.data.dataloader"])
        self._wrap(torch, "save", self._saves)
        self._wrap(pickle, "dump", self._saves)
        self._without_gradients(torch.no_grad)
        self._without_gradients(torch.inference_mode)
        self._wrap(torch.nn.Module, "train", self._mode)
        self._graphs(getattr(torch.cuda, "CUDAGraph", None))
        self.communication.place()
        self.windows.also += [self.steps.window, self.window]

    def window(self, opens: bool) -> None:
        """Backward passes are looked at in windows; for good where torch.compile may have looked at them."""
        autograd = self.torch.autograd
        if opens and self.unwrapped is None:
            self.unwrapped = autograd.backward
            self._wrap(autograd, "backward", self._backward)
        elif not opens and self.unwrapped is not None and not self.compiled:
            autograd.backward, self.unwrapped = self.unwrapped, None

    def _wrap(self, owner: Any, name: str, around: Callable[[Any], Any]) -> None:
        original = getattr(owner, name, None)
        if original is None:
            return
        wrapper = around(original)
        try:
            functools.update_wrapper(wrapper, original)
        except (AttributeError, TypeError):
            pass
        setattr(owner, name, wrapper)

    # loaders

    def _loaders(self, dataloader: Any) -> None:
        base = dataloader._BaseDataLoaderIter
        base._seatrial_trains = False  # True on those that steps follow
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
        recorder, windows, measuring, tensor = self.recorder, self.windows, self, self.torch.Tensor
        timeline, spent = recorder.timeline, recorder.timeline.spent

        def __next__(iterator: Any) -> Any:
            if get_ident() != recorder.thread:
                return original(iterator)
            if not iterator._seatrial_trains:
                recorder.doubt()
                measuring.asks(iterator)
            elif recorder.doubtful is not None:
                recorder.doubt_ends()
            outer, now_s = timeline.current, perf_counter()
            spent[outer] += now_s - timeline.since_s
            timeline.current, timeline.since_s = "data", now_s
            batch = None
            try:
                batch = original(iterator)
            finally:
                now_s = perf_counter()
                spent["data"] += now_s - timeline.since_s
                timeline.current, timeline.since_s = outer, now_s
                if batch is None:
                    measuring.pass_ended(iterator)
            try:
                first = batch[0] if type(batch) is list else batch
                recorder.examples += first.size(0) if type(first) is tensor and first.dim() else first_dimension(batch)
                if windows.open:
                    windows.mark("forward")
            except Exception as error:  # noqa: BLE001
                recorder.stop(error)
            return batch

        return __next__

    def pass_ended(self, iterator: Any) -> None:
        """A loader is at its end, or it failed. One that no step followed was for evaluation."""
        try:
            if iterator._seatrial_trains:
                self.look_at(iterator)
            else:
                self.recorder.doubt_ends()
                self.asked.clear()
        except Exception as error:  # noqa: BLE001
            self.recorder.stop(error)

    def asks(self, iterator: Any) -> None:
        """Of one in doubt, a batch."""
        known = self.asked.pop(id(iterator), None)
        if known is not None and known[0]() is not iterator:  # another one lives where one that is gone lived
            self.asked[-1 - len(self.asked)], known = known, None
        if known is None:
            known = [weakref.ref(iterator), 0, self.recorder.timeline.totals(), self.recorder.examples]
        known[1] += 1
        self.asked[id(iterator)] = known  # the last one asked is the last one in it

    def trained_on(self) -> None:
        """A step has followed loaders in doubt: the last one is trained on, and those that were asked as often."""
        asked = list(self.asked.values())
        trained = [known for known in asked if abs(known[1] - asked[-1][1]) <= 1]
        for known in trained:
            iterator = known[0]()
            if iterator is not None:
                iterator._seatrial_trains = True
                self.latest = known[0]
        if len(trained) < len(asked):
            self.recorder.doubt_ended_at(trained[0][2], trained[0][3])
        self.asked.clear()

    def look_at(self, iterator: Any) -> None:
        """A loader as it is, and how far; its length only where nothing of the script's own is asked for it."""
        try:
            settings: Dict[str, Any] = {"workers": iterator._num_workers, "pin_memory": bool(iterator._pin_memory)}
            settings["persistent_workers"] = bool(getattr(iterator, "_persistent_workers", False))
            if iterator._num_workers:
                settings["prefetch_factor"] = getattr(iterator, "_prefetch_factor", 2)
            sampler = iterator._index_sampler
            self.passed = []
            if type(sampler) is self.torch.utils.data.BatchSampler:
                settings["batch_size"] = sampler.batch_size
                if type(sampler.sampler).__module__.startswith("torch.") and hasattr(sampler.sampler, "__len__"):
                    settings["length"] = len(sampler)
                    self.passed = [iterator._num_yielded, settings["length"]]
            self.loader = settings
        except Exception as error:  # noqa: BLE001
            self.recorder.stop(error)

    def loader_now(self) -> Dict[str, Any]:
        """Settings of the loader that the last batch came from; empty where there is none."""
        iterator = self.latest()
        if iterator is not None:
            self.look_at(iterator)
        return self.loader

    # backward, checkpoints

    def _backward(self, original: Any) -> Any:
        recorder, windows, compiling = self.recorder, self.windows, self.compiling

        def backward(*args: Any, **kwargs: Any) -> Any:
            if compiling() or not windows.open or get_ident() != recorder.thread:
                return original(*args, **kwargs)
            windows.mark("backward")
            recorder.backward_began()
            try:
                return original(*args, **kwargs)
            finally:
                recorder.backward_ended()

        return backward

    def _saves(self, original: Any) -> Any:
        recorder, compiling = self.recorder, self.compiling

        def save(*args: Any, **kwargs: Any) -> Any:
            if compiling() or not recorder.mine():
                return original(*args, **kwargs)
            recorder.timeline.enter("checkpoint")
            try:
                return original(*args, **kwargs)
            finally:
                recorder.timeline.leave()

        return save

    def _mode(self, original: Any) -> Any:
        recorder, compiling = self.recorder, self.compiling

        def train(module: Any, mode: bool = True) -> Any:
            if not compiling() and recorder.mine():
                recorder.mode_set(bool(mode))
            return original(module, mode)

        return train

    def wrap_saving(self, safetensors: Any) -> None:
        """Of ``safetensors.torch``: another way in which models are saved, by transformers and its kin."""
        for name in ("save_file", "save_model"):
            self._wrap(safetensors, name, self._saves)

    def _without_gradients(self, context: Any) -> None:
        """Evaluation that neither asks a loader nor tells its model: long, and without gradients."""
        recorder, compiling = self.recorder, self.compiling

        def around_enter(original: Any) -> Any:
            def __enter__(entered: Any) -> Any:
                if not compiling() and recorder.mine():
                    recorder.gradients_off(entered)
                return original(entered)

            return __enter__

        def around_exit(original: Any) -> Any:
            def __exit__(entered: Any, *args: Any) -> Any:
                if not compiling() and recorder.mine():
                    recorder.gradients_on(entered)
                return original(entered, *args)

            return __exit__

        self._wrap(context, "__enter__", around_enter)
        self._wrap(context, "__exit__", around_exit)

    # CUDA graphs

    def _graphs(self, graph: Any) -> None:
        if graph is None:
            return

        def around_begin(original: Any) -> Any:
            def capture_begin(captured: Any, *args: Any, **kwargs: Any) -> Any:
                self.steps.capturing, self.steps.captured_steps = True, 0
                return original(captured, *args, **kwargs)

            return capture_begin

        def around_end(original: Any) -> Any:
            def capture_end(captured: Any) -> Any:
                steps, self.steps.captured_steps, self.steps.capturing = self.steps.captured_steps, 0, False
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
                if steps and self.recorder.mine():
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

    def compile_begins(self, *_: Any) -> None:
        """Told at once: a run that is ended before its first step tells nothing more."""
        recorder = self.recorder
        if recorder.steps or not recorder.on or "compiles_since_s" in recorder.facts:
            return
        try:
            recorder.facts["compiles_since_s"] = round(age_s(), 3)
            recorder.tell_facts()
        except Exception as error:  # noqa: BLE001
            recorder.stop(error)

    def look(self, step: int) -> None:
        self.recorder.facts.pop("compiles_since_s", None)
        self.windows.at_step(step)
        if "loader" not in self.recorder.facts:
            iterator = self.latest()
            if iterator is not None:
                self.look_at(iterator)
                self.recorder.facts["loader"] = self.loader

    def at_end(self) -> None:
        """Why a script stayed on the CPU, as far as it shows: none of it is asked of the driver."""
        facts, cuda = self.recorder.facts, self.torch.cuda
        facts["cuda_build"] = self.torch.version.cuda
        facts["cuda_used"] = bool(cuda.is_initialized())
        if self.recorder.steps == 0 and _compiles():
            facts["compile_s"] = round(_compile_seconds(), 3)
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        if visible != self.visible:
            facts["visible_changed"] = visible

    def extra(self) -> Dict[str, Any]:
        torch, more = self.torch, dict(self.windows.totals())
        iterator = self.latest()
        if iterator is not None:
            self.look_at(iterator)
        if self.loader != self.recorder.facts.get("loader") and self.loader:
            self.recorder.facts["loader"] = self.loader
        if self.passed:
            more["pass"] = self.passed
        if torch.cuda.is_initialized():
            stats = torch.cuda.memory_stats_as_nested_dict()  # memory_stats itself flattens and sorts 100 names
            more["peak_bytes"] = stats["reserved_bytes"]["all"]["peak"] if stats else 0
            more["alloc_retries"] = stats.get("num_alloc_retries", 0)
        compiled_s = _compile_seconds()
        if compiled_s:
            more["compile_s"] = round(compiled_s, 3)
        ddp = self.communication.ddp_times()
        if ddp:
            more["ddp"] = ddp
        return more


def own_code() -> Iterator[Any]:
    """Every code object of this package, inner functions' too."""
    modules = [module for name, module in sys.modules.items() if name.startswith(__package__ + ".")]
    waiting: List[Any] = [each for module in modules for each in vars(module).values()]
    waiting += [each for one in waiting if isinstance(one, type) for each in vars(one).values()]
    for each in waiting:
        each = getattr(each, "fget", None) or getattr(each, "__func__", each)
        code = getattr(each, "__code__", None)
        if code is not None and str(getattr(each, "__module__", "")).startswith(__package__):
            codes = [code]
            while codes:
                code = codes.pop()
                yield code
                codes += [inner for inner in code.co_consts if isinstance(inner, type(code))]


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


def _compiles() -> bool:
    """Whether torch.compile has compiled anything. Source: torch/_dynamo/utils.py (2.0 and later)."""
    return bool(getattr(sys.modules.get("torch._dynamo.utils"), "compilation_time_metrics", None))


def _compile_seconds() -> float:
    """What torch.compile has taken so far. Source: torch/_dynamo/utils.py, compilation_time_metrics."""
    metrics = getattr(sys.modules.get("torch._dynamo.utils"), "compilation_time_metrics", None) or {}
    # The backward pass is compiled when it first runs. Each part has had other names, of which a torch knows one.
    parts = (
        ("_compile.compile_inner", "_compile.<locals>.compile_inner", "_compile"),
        ("backward._backward_impl", "compile_fx.<locals>.bw_compiler"),
    )
    return sum(sum(next((metrics[name] for name in names if name in metrics), ())) for names in parts)
