"""Measure torch's DataLoaders: each batch's wait, its examples, and which loaders are used for training."""

import math
import weakref
from collections import deque
from collections.abc import Mapping
from threading import get_ident
from time import perf_counter
from typing import Any, Callable, Dict, List

from .observe import wrap
from .steps import Recorder
from .torch_windows import Windows


class LoaderWatch:
    """Iterators of torch's DataLoaders: each batch's wait, and whether steps follow.

    Attributes:
        settings: of the loader in use, as it is. passed: batches of its pass so far, and in all; [] where unknown.
    """

    def __init__(self, torch: Any, recorder: Recorder, windows: Windows) -> None:
        self.torch, self.recorder, self.windows = torch, recorder, windows
        self.latest: Callable[[], Any] = lambda: None  # the iterator of the last batch, while it lives
        self.pending: Dict[int, List[Any]] = {}  # iterators in doubt, and how many batches they gave
        self.settings: Dict[str, Any] = {}
        self.passed: List[int] = []
        recorder.stepped_elsewhere = self.trained_on

    def place(self, dataloader: Any) -> None:
        """``dataloader`` is the module torch.utils.data.dataloader."""
        base = dataloader._BaseDataLoaderIter
        base._seatrial_trains = False  # True on those that steps follow
        wrap(base, "__init__", self._begins)
        base._seatrial_sizes = ()  # how many examples were requested for each batch that has not come yet
        base._seatrial_passes = -1  # backward passes when the last batch was taken
        wrap(base, "__next__", self._next)
        wrap(base, "_next_index", self._indices)

    def _begins(self, original: Any) -> Any:
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

    def _indices(self, original: Any) -> Any:
        def _next_index(iterator: Any) -> Any:
            indices = original(iterator)
            if type(iterator._seatrial_sizes) is tuple:
                iterator._seatrial_sizes = deque()
            iterator._seatrial_sizes.append(len(indices) if hasattr(indices, "__len__") else 0)
            return indices

        return _next_index

    def _next(self, original: Any) -> Any:
        recorder, windows, loaders = self.recorder, self.windows, self
        timeline, spent = recorder.timeline, recorder.timeline.spent

        def __next__(iterator: Any) -> Any:
            if get_ident() != recorder.thread:
                return original(iterator)
            if not iterator._seatrial_trains:
                recorder.doubt()
                loaders.asks(iterator)
            elif recorder.doubtful is not None:
                recorder.doubt_ends()
            if windows.open:
                recorder.optimizer_failed()  # or none is at work
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
                    loaders.pass_ended(iterator)
            try:
                recorder.batches += 1
                recorder.unused += recorder.passes > 0 and iterator._seatrial_passes == recorder.passes
                iterator._seatrial_passes = recorder.passes
                recorder.examples += examples_in(batch, iterator)
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
                self.pending.clear()
        except Exception as error:  # noqa: BLE001
            self.recorder.stop(error)

    def asks(self, iterator: Any) -> None:
        """Record a batch from a loader not yet known to be used for training."""
        known = self.pending.pop(id(iterator), None)
        if known is not None and known[0]() is not iterator:  # another one lives where one that is gone lived
            self.pending[-1 - len(self.pending)], known = known, None
        if known is None:
            known = [weakref.ref(iterator), 0, self.recorder.timeline.totals(), self.recorder.examples]
        known[1] += 1
        self.pending[id(iterator)] = known  # the last one iterated is the last one in it

    def trained_on(self) -> None:
        """A step has followed loaders in doubt: the last one is trained on, and those that were iterated as often."""
        pending = list(self.pending.values())
        trained = [known for known in pending if abs(known[1] - pending[-1][1]) <= 1]
        for known in trained:
            iterator = known[0]()
            if iterator is not None:
                iterator._seatrial_trains = True
                self.latest = known[0]
        if len(trained) < len(pending):
            self.recorder.doubt_ended_at(trained[0][2], trained[0][3])
        self.pending.clear()

    def look_at(self, iterator: Any) -> None:
        """A loader as it is, and how far; its length only if none of the script's own code is called for it."""
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
            self.settings = settings
        except Exception as error:  # noqa: BLE001
            self.recorder.stop(error)

    def now(self) -> Dict[str, Any]:
        """Settings of the loader that the last batch came from; empty where there is none."""
        iterator = self.latest()
        if iterator is not None:
            self.look_at(iterator)
        return self.settings


def examples_in(batch: Any, iterator: Any) -> float:
    """Return how many examples the loader put into a batch; NaN where only the script knows.

    A batch of a data set with indices has as many as its sampler drew, however they are collated. The last one of a
    stream may have fewer than were requested, and shows it by its tensors; so does one that a stream made whole.
    """
    sizes = iterator._seatrial_sizes
    if iterator._num_yielded == 1:  # a pass that was left early may have left some
        waiting = 1 + getattr(iterator, "_send_idx", 0) - getattr(iterator, "_rcvd_idx", 0)
        while len(sizes) > max(1, waiting):
            sizes.popleft()
    size: int = sizes.popleft() if sizes else 0
    if size and iterator._dataset_kind == 0:  # torch.utils.data.dataloader._DatasetKind.Map
        return size
    first = first_dimensions(batch)
    if size:
        return max(first) if first and max(first) < size else size
    return first[0] if len(first) > 1 and len(set(first)) == 1 else math.nan


def first_dimensions(batch: Any, depth: int = 3) -> List[int]:
    """Return the first dimension of each tensor in a batch, 0 for a number."""
    listed = isinstance(batch, (list, tuple))
    shape = None if listed else getattr(batch, "shape", None)
    if shape is not None:
        return [int(shape[0]) if len(shape) else 0]
    items = (batch if listed else batch.values() if isinstance(batch, Mapping) else ()) if depth else ()
    return [size for item in items for size in first_dimensions(item, depth - 1)]
