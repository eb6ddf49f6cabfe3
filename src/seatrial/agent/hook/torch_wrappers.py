"""Wrap the calls that a window observes: copies, waits for the GPU, the model. Mark the phases on the GPU."""

import os
import sys
from time import perf_counter
from typing import Any, Dict, List, Optional, Tuple

from .observe import Placed
from .steps import Recorder

#: Phase that a mark begins → its name in the evidence. ``end`` begins the time until the next batch is there.
PHASES = {"forward": "forward", "backward": "backward", "optimizer": "optimizer", "communication": "communication",
          "end": "data"}  # fmt: skip

#: Marks kept; a step with thousands of backward passes is measured by its first ones.
_MOST_MARKS = 1024


class GpuSpans:
    """Marks of some steps, and the time between them on the stream of the thread that trains.

    Attributes:
        spans: phase → seconds of the stream. An idle GPU waits in the phase in which it idles.
        caught_up: at so many marks the GPU had already done all before the mark ahead: it waits for the host.
        marks: so many were looked at. last: the phase that the last one began.
    """

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._open: List[Tuple[str, Any]] = []
        self._closed: List[List[Tuple[str, Any]]] = []
        self.spans: Dict[str, float] = {}
        self.caught_up = self.marks = 0
        self.last = ""

    def mark(self, phase: str) -> None:
        """Mark where the host is and the stream will be. CUDA runs, and no graph is being captured."""
        if len(self._open) >= _MOST_MARKS:
            return
        if self._open:
            self.marks += 1
            self.caught_up += bool(self._open[-1][1].query())
        event = self._torch.cuda.Event(enable_timing=True)
        event.record()
        self._open.append((phase, event))
        self.last = phase

    def close(self) -> None:
        """Keep this window's marks and accept no more."""
        if len(self._open) > 1:
            self._closed.append(self._open)
        self._open = []
        self.last = ""

    def drop(self) -> None:
        """Discard this window's marks and accept no more."""
        self._open = []
        self.last = ""

    def collect(self) -> None:
        """Add up the spans of windows whose last event the GPU has passed."""
        while self._closed and self._closed[0][-1][1].query():
            marks = self._closed.pop(0)
            for (phase, event), (_, following) in zip(marks, marks[1:]):  # noqa: RUF007  pairwise is newer than Python 3.8
                name = PHASES[phase]
                self.spans[name] = self.spans.get(name, 0.0) + event.elapsed_time(following) / 1000


#: Methods of a tensor that wait for the GPU where the tensor is on it, and those that may copy.
_SYNCS = ("item", "tolist", "numpy", "cpu", "__bool__", "__float__", "__int__", "__index__", "__repr__", "__format__")
_COPIES = ("to", "cuda", "copy_")
#: Methods whose result has a size that only the GPU knows, and indexing by such a mask. Functions of torch stay as they
#: are: scripts and torch itself compare them, and keep tables of them (decision 0133).
_SIZED = (
    *("nonzero", "masked_select", "unique", "unique_consecutive", "argwhere", "equal", "allclose"),
    *("repeat_interleave", "bincount", "histc"),
)
#: torch's functions with lru_cache that list its functions and methods.
_TABLES = (
    ("torch.overrides", ("get_ignored_functions", "get_testing_overrides", "_get_overridable_functions",
                         "get_default_nowrap_functions", "get_tensor_methods")),
    ("torch.utils._device", ("_device_constructors",)),
)  # fmt: skip
_INDEXED = ("__getitem__", "__setitem__")


class WindowWrappers:
    """Wrappers that are in place while a window is open, and their observations. Call ``mark`` only while ``open``."""

    def __init__(self, torch: Any, recorder: Recorder) -> None:
        self._torch, self._recorder = torch, recorder
        self._gpu = GpuSpans(torch)
        self._passed_by = tuple(os.path.dirname(os.path.abspath(path)) + os.sep for path in (torch.__file__, __file__))
        self._placed = Placed()
        self._caches: List[Any] = []
        self._stream: Any = None
        self.given: Any = None  # batches, by LoaderWatch
        self._tensor_methods = True
        self.open = False
        self._sites_now: Dict[str, List[float]] = {}
        self._copied_now: Dict[str, float] = {}
        self._calls_now: Dict[int, int] = {}  # by the module's id
        self._plain: Dict[Any, bool] = {}
        self._inside = False
        self._depth = 0

    def mark(self, phase: str) -> None:
        """Mark the beginning of a phase of the step."""
        cuda = self._torch.cuda
        if cuda.is_initialized() and not cuda.is_current_stream_capturing():
            self._gpu.mark(phase)

    def communication_begins(self) -> str:
        """Mark communication and return the phase to go back to; empty on another stream or if none is marked."""
        phase = self._gpu.last
        if not phase or phase == "communication" or self._torch.cuda.current_stream() != self._stream:
            return ""
        self.mark("communication")
        return phase

    def _between_s(self) -> Optional[float]:
        """Return the seconds outside of every part of a step so far; None within a model."""
        timeline = self._recorder.timeline
        now_s = perf_counter() - timeline.since_s if timeline.current == "other" else 0.0
        return None if self._depth else timeline.spent["other"] + now_s

    def _is_looked_through(self) -> bool:
        """Return whether a mode of the script is active, which is given torch's functions and may compare them."""
        depth = getattr(self._torch._C, "_len_torch_function_stack", None)
        return depth is not None and depth() > 0

    def _is_plain(self, tensor: Any) -> bool:
        """Return whether the tensor's class leaves its methods alone. One that does not may look a method up by what it
        is: torch.Tensor is as it was from then on."""
        kind = type(tensor)
        known = self._plain.get(kind)
        if known is None:
            own = getattr(kind, "__torch_function__", None)
            disabled = getattr(self._torch._C, "_disabled_torch_function_impl", None)
            ordinary = getattr(self._torch.Tensor, "__torch_function__", None)
            known = own is disabled or getattr(own, "__func__", 0) is getattr(ordinary, "__func__", 1)
            self._plain[kind] = known
        known = known and not self._is_looked_through()
        if not known and self._tensor_methods:
            self._tensor_methods = False
            self._placed.restore()
        return known

    def _place(self) -> None:
        torch = self._torch
        if self._tensor_methods and torch.cuda.is_initialized() and not self._is_looked_through():
            self._place_on_tensors()
        if not self._recorder.compiles():  # torch.compile looks at how modules are called
            self._depth = 0
            self._placed(torch.nn.Module, "__call__", self._forward)
        for owner, name, around in (
            (torch.cuda, "synchronize", self._waits_for_all),
            (torch.cuda, "empty_cache", self._waits_for_all),
            (torch.autocast, "__enter__", self._autocast),
        ):
            self._placed(owner, name, around)

    def _place_on_tensors(self) -> None:
        tensor = self._torch.Tensor
        sized = [(tensor, name, self._waits) for name in _SIZED if hasattr(tensor, name)]
        for owner, name, around in (
            *((tensor, name, self._waits) for name in _SYNCS),
            *((tensor, name, self._copies) for name in _COPIES),
            *sized,
            *((tensor, name, self._indexes) for name in _INDEXED),
        ):
            self._placed(owner, name, around)

    def _waits(self, name: str, original: Any) -> Any:
        def waits(*args: Any, **kwargs: Any) -> Any:
            usual = self._inside or not self.open or not self._is_plain(args[0] if args else None)
            if usual or not getattr(args[0] if args else None, "is_cuda", False) or not self._recorder.mine():
                return original(*args, **kwargs)
            began_s, self._inside = perf_counter(), True
            try:
                return original(*args, **kwargs)
            finally:
                self._inside = False
                self._waited(name, perf_counter() - began_s)

        return waits

    def _indexes(self, name: str, original: Any) -> Any:
        boolean = self._torch.bool

        def index(tensor: Any, key: Any, *value: Any) -> Any:
            parts = key if type(key) is tuple else (key,)
            if self._inside or not self.open or not self._is_plain(tensor) or not self._recorder.mine():
                return original(tensor, key, *value)
            if not tensor.is_cuda or not any(getattr(part, "dtype", None) is boolean for part in parts):
                return original(tensor, key, *value)
            began_s, self._inside = perf_counter(), True
            try:
                return original(tensor, key, *value)
            finally:
                self._inside = False
                self._waited("[mask]", perf_counter() - began_s)

        return index

    def _forward(self, name: str, original: Any) -> Any:
        """Measure the outermost module's call: what no other region takes of it is the script's Python."""

        def __call__(module: Any, *args: Any, **kwargs: Any) -> Any:
            timeline, mine = self._recorder.timeline, self._recorder.mine()
            batches = {} if (self._depth and mine) or not self.open else self.given.of((args, kwargs))
            if self._depth or not self.open or timeline.current != "other" or not mine:
                result = original(module, *args, **kwargs)
                return self.given.follow(batches, result) if batches else result
            self._depth = 1
            if self._torch.is_grad_enabled():
                self._calls_now[id(module)] = self._calls_now.get(id(module), 0) + 1
            if self._gpu.last == "end":
                self.mark("forward")
            timeline.become("other")
            before_s = timeline.spent["other"]
            try:
                return self.given.follow(batches, original(module, *args, **kwargs))
            finally:
                self._depth = 0
                timeline.become(timeline.current)
                if timeline.current == "other":
                    timeline.shift("forward", max(0.0, timeline.spent["other"] - before_s))

        return __call__

    def _waits_for_all(self, name: str, original: Any) -> Any:
        def synchronize(*args: Any, **kwargs: Any) -> Any:
            began_s = perf_counter()
            try:
                return original(*args, **kwargs)
            finally:
                if self.open and self._recorder.mine():
                    self._waited("torch.cuda." + name, perf_counter() - began_s)

        return synchronize

    def _copies(self, name: str, original: Any) -> Any:
        def copies(tensor: Any, *args: Any, **kwargs: Any) -> Any:
            if self._inside or not self.open or not self._is_plain(tensor) or not self._recorder.mine():
                return original(tensor, *args, **kwargs)
            began_s, self._inside = perf_counter(), True
            try:
                result = original(tensor, *args, **kwargs)
            finally:
                self._inside = False
            seconds = perf_counter() - began_s
            source = args[0] if name == "copy_" and args else tensor
            try:
                self.given.copied(source, result)
                if result.is_cuda and getattr(source, "is_cuda", True) is False:
                    blocking = not (kwargs.get("non_blocking") or True in args)
                    self._has_copied(source, seconds, not source.is_pinned(), blocking)
                elif name != "copy_" and tensor.is_cuda and not result.is_cuda:
                    self._waited(name, seconds)
            except Exception as error:  # noqa: BLE001
                self._recorder.stop(error)
            return result

        return copies

    def _has_copied(self, source: Any, seconds: float, pageable: bool, blocking: bool) -> None:
        self._recorder.timeline.shift("copy", seconds)
        size = source.numel() * source.element_size()
        for key, value in (("count", 1), ("bytes", size), ("pageable", pageable), ("blocking", blocking)):
            self._copied_now[key] = self._copied_now.get(key, 0) + value

    def _waited(self, name: str, seconds: float) -> None:
        self._recorder.timeline.shift("sync", seconds)
        frame: Any = sys._getframe(2)
        for _ in range(12):
            if frame is None or not frame.f_code.co_filename.startswith(self._passed_by):
                break
            frame = frame.f_back
        site = "?" if frame is None else "%s:%d" % (os.path.basename(frame.f_code.co_filename), frame.f_lineno)
        seen = self._sites_now.setdefault("%s %s" % (site, name), [0, 0.0])
        seen[0] += 1
        seen[1] += seconds

    def _autocast(self, name: str, original: Any) -> Any:
        def __enter__(entered: Any) -> Any:
            kind = getattr(entered, "fast_dtype", None)
            if kind is not None and getattr(entered, "_enabled", True):
                self._recorder.facts["autocast"] = str(kind)[6:]
            return original(entered)

        return __enter__


def tables_of_functions() -> List[Any]:
    """Return torch's own tables of its functions, where their modules are imported: torch 1.7 to 2.13."""
    found = (getattr(sys.modules.get(module), name, None) for module, names in _TABLES for name in names)
    return [each for each in found if hasattr(each, "cache_clear")]
