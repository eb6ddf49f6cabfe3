"""Measure steps of an unmodified torch script: a table of the functions that are looked at, and their wrappers.

A wrapper costs some hundred nanoseconds a call and changes no number: it looks at the clock, and at shapes. Copies and
synchronisations, which are many small calls, and the GPU's own time are measured in windows (torch_windows.py).
"""

import importlib.util
import os
import sys
import weakref
from threading import get_ident
from time import perf_counter
from typing import Any, Callable, Dict, Iterator, List

from .observe import accompanied, compiling_check, safely, wrap
from .steps import NEVER, SHORTEST_EVALUATION_S, Recorder, shared
from .timeline import age_s
from .torch_distributed import Communication
from .torch_loader import LoaderWatch
from .torch_steps import HandSteps, OptimizerSteps
from .torch_windows import Windows

_BEGUN: Dict[str, "Measuring"] = {}


def begin(torch: Any) -> None:
    """Place all patches. An error leaves torch as far as it was changed, and is reported."""
    recorder = shared()
    if not hasattr(sys.modules["torch.optim.optimizer"], "register_optimizer_step_post_hook"):
        recorder.stop(RuntimeError("steps are measured from torch 2.0 on, and this is torch %s" % torch.__version__))
        if os.environ.get("SEATRIAL_TRIAL"):
            os._exit(0)  # a trial that measures nothing
        return
    try:
        measuring = Measuring(torch, recorder)
        measuring.place()
        _BEGUN["torch"] = measuring
        if os.environ.get("SEATRIAL_TRIAL"):
            from . import trial

            trial.begin(torch, recorder, measuring.loaders.now, os.environ["SEATRIAL_TRIAL"])
    except Exception as error:  # noqa: BLE001  never the script's trouble
        recorder.stop(error)


def dynamo_is_here(eval_frame: Any) -> None:
    """Keep torch.compile from compiling code of ours. ``skip_code`` is there since torch 2.0."""

    def look(measuring: "Measuring") -> None:
        skip = getattr(eval_frame, "skip_code", None)
        if skip is not None:
            for code in own_code():
                skip(code)
        measuring.steps.dynamo_is_here(eval_frame)
        if not has_callbacks():
            measuring.compiling_begins()

    _if_begun(look)


def has_callbacks() -> bool:
    """Return True if torch has torch._dynamo.callback. Importing torch._dynamo proves little: optimizers do it."""
    try:
        return importlib.util.find_spec("torch._dynamo.callback") is not None
    except (ImportError, ValueError):
        return False


def compiling_is_here(callback: Any) -> None:
    """Register for a compilation's start, before any look at the code (torch/_dynamo/callback.py, since 2.4)."""
    measuring = _BEGUN.get("torch")
    register = getattr(getattr(callback, "callback_handler", None), "register_start_callback", None)
    if measuring is not None and register is not None:
        register(measuring.compile_begins)


def saving_is_here(safetensors: Any) -> None:
    _if_begun(lambda measuring: measuring.wrap_saving(safetensors))


def fsdp_is_here(module: Any) -> None:
    _if_begun(lambda measuring: measuring.communication.fsdp_is_here(module))


def _if_begun(act: Callable[["Measuring"], None]) -> None:
    measuring = _BEGUN.get("torch")
    if measuring is not None:
        safely(measuring.recorder.stop, act, measuring)


class Measuring:
    """Patches of one torch, and the recorder that they call."""

    def __init__(self, torch: Any, recorder: Recorder) -> None:
        self.torch, self.recorder = torch, recorder
        self.windows = Windows(torch, recorder)
        self.compiling = compiling_check(torch)
        self.steps = OptimizerSteps(torch, recorder, self.windows)
        self.by_hand = HandSteps(torch, recorder, self.compiling, self.windows)
        self.steps.seen = self.by_hand.optimizer_stepped
        self.communication = Communication(torch, recorder, self.windows, self.compiling)
        self.loaders = LoaderWatch(torch, recorder, self.windows)
        self.compiled = False  # or torch.compile is at work
        self.graphs: Any = weakref.WeakKeyDictionary()  # a captured graph → optimizer steps in it
        recorder.look = self.look
        recorder.becomes_plain, recorder.looks_closely = self.becomes_plain, self.looks_closely
        recorder.extras.append(self.extra)
        recorder.at_ends.append(self.at_end)
        recorder.compiles = _compiles
        recorder.facts.setdefault("framework", "torch")
        recorder.facts.update(version=str(torch.__version__), imported_after_s=round(age_s(), 3))
        self.visible = os.environ.get("CUDA_VISIBLE_DEVICES")

    def place(self) -> None:
        torch, recorder = self.torch, self.recorder
        graph, no_grad, inference = getattr(torch.cuda, "CUDAGraph", None), torch.no_grad, torch.inference_mode
        names = ("_open_zipfile_writer_file", "_open_zipfile_writer_buffer")
        writers = [getattr(sys.modules["torch.serialization"], name, None) for name in names]
        self.steps.place(sys.modules["torch.optim.optimizer"])
        self.by_hand.place()
        self.loaders.place(sys.modules["torch.utils.data.dataloader"])
        for owner, name, around in (
            # Called by torch.save alone, which itself stays as it is.
            (sys.modules["torch.serialization"], "_save", self._saves),
            (sys.modules["torch.serialization"], "_legacy_save", self._saves),
            *((writer, "__exit__", self._saves) for writer in writers),  # flushes buffers
            *((kind, "__enter__", self._gradients_end) for kind in (no_grad, inference)),
            *((kind, "__exit__", self._gradients_begin) for kind in (no_grad, inference)),
            (torch.nn.Module, "train", self._mode),
            (graph, "capture_begin", accompanied(self._capture_begins, recorder.stop, before=True)),
            (graph, "capture_end", self._capture_ends),
            (graph, "replay", accompanied(self._replayed, recorder.stop)),
        ):
            wrap(owner, name, around)
        self.communication.place()
        self.windows.also.append(self.steps.window)

    def becomes_plain(self, batches: int) -> bool:
        """Remove what plain steps do without; return False if the batches of each step must be observed."""
        if self.windows.must_look() or not self.loaders.becomes_plain(batches):
            return False
        if not self.compiled:
            self.by_hand.watch(False)
        return True

    def looks_closely(self) -> None:
        self.loaders.looks_closely()
        self.by_hand.watch(True)

    # checkpoints

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
        """Wrap ``safetensors.torch``: another way in which models are saved, by transformers and its kin."""
        for name in ("save_file", "save_model"):
            wrap(safetensors, name, self._saves)

    # evaluation that neither iterates a loader nor changes its model's mode: long, and without gradients

    def _gradients_end(self, original: Any) -> Any:
        recorder, compiling, timeline = self.recorder, self.compiling, self.recorder.timeline

        def __enter__(entered: Any) -> Any:
            # Each step of many optimizers comes here: no call of ours that can be spared.
            if recorder.without[0] is None and recorder.steps and not compiling() and get_ident() == recorder.thread:
                recorder.without = (entered, perf_counter(), timeline.totals())
            return original(entered)

        return __enter__

    def _gradients_begin(self, original: Any) -> Any:
        recorder, compiling = self.recorder, self.compiling

        def __exit__(entered: Any, *args: Any) -> Any:
            if recorder.without[0] is entered and not compiling() and get_ident() == recorder.thread:
                began_s = recorder.without[1]
                if perf_counter() - began_s > SHORTEST_EVALUATION_S:
                    recorder.gradients_on()
                recorder.without = NEVER
            return original(entered, *args)

        return __exit__

    # CUDA graphs

    def _capture_begins(self, captured: Any, args: Any, kwargs: Any) -> None:
        self.recorder.look_closely()
        self.steps.capturing, self.steps.captured_steps = True, 0

    def _capture_ends(self, original: Any) -> Any:
        def capture_end(captured: Any) -> Any:
            steps, self.steps.captured_steps, self.steps.capturing = self.steps.captured_steps, 0, False
            result = original(captured)
            if steps:
                self.graphs[captured] = steps
                self.recorder.facts["cuda_graph"] = True
            return result

        return capture_end

    def _replayed(self, captured: Any, args: Any, kwargs: Any) -> None:
        steps, graph = self.graphs.get(captured) if self.graphs else None, self.torch.cuda.CUDAGraph
        if steps and self.recorder.mine():
            self.recorder.passes += 1
            self.recorder.bounded_by(graph)
            self.recorder.stepped(graph, steps)

    # lines

    def compiling_begins(self) -> None:
        """Keep what compiled code may look at as it is from now on."""
        self.compiled = True
        self.by_hand.watch(True)
        self.steps.compiling_begins()

    def compile_begins(self, *_: Any) -> None:
        """Report at once: a run that is ended before its first step reports nothing more."""
        recorder = self.recorder
        if not self.compiled:
            safely(recorder.stop, self.compiling_begins)
        if not recorder.steps and recorder.on and "compiles_since_s" not in recorder.facts:
            recorder.facts["compiles_since_s"] = round(age_s(), 3)
            safely(recorder.stop, recorder.report_facts)

    def look(self, step: int) -> None:
        self.recorder.facts.pop("compiles_since_s", None)
        self.recorder.facts.setdefault("first_compile_s", round(_compile_seconds(), 3))
        self.windows.at_step(step)
        if "loader" not in self.recorder.facts:
            loader = self.loaders.now()
            if loader:
                self.recorder.facts["loader"] = loader

    def at_end(self) -> None:
        """Record the facts that show why a script stayed on the CPU; none of them comes from the driver."""
        self.by_hand.at_end()
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
        self.recorder.facts["cores"] = len(os.sched_getaffinity(0))
        loader = self.loaders.now()
        if loader:
            self.recorder.facts["loader"] = loader
        if self.loaders.passed:
            more["pass"] = self.loaders.passed
        if self.loaders.starts_s:
            more["starts_s"] = round(self.loaders.starts_s, 6)
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
    """Yield every code object of this package, inner functions' too."""
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


def _compiles() -> bool:
    """Return whether torch.compile has compiled anything. Source: torch/_dynamo/utils.py (2.0 and later)."""
    return bool(getattr(sys.modules.get("torch._dynamo.utils"), "compilation_time_metrics", None))


def _compile_seconds() -> float:
    """Return the seconds torch.compile has taken so far. Source: torch/_dynamo/utils.py, compilation_time_metrics."""
    metrics = getattr(sys.modules.get("torch._dynamo.utils"), "compilation_time_metrics", None) or {}
    # The backward pass is compiled when it first runs. Each part has had other names, of which a torch knows one.
    parts = (
        ("_compile.compile_inner", "_compile.<locals>.compile_inner", "_compile"),
        ("backward._backward_impl", "compile_fx.<locals>.bw_compiler"),
    )
    return sum(sum(next((metrics[name] for name in names if name in metrics), ())) for names in parts)
