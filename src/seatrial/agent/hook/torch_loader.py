"""Measure torch's DataLoaders: each batch's wait, its examples, and which loaders are used for training."""

import weakref
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
        wrap(base, "__next__", self._next)

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

    def _next(self, original: Any) -> Any:
        recorder, windows, loaders, tensor = self.recorder, self.windows, self, self.torch.Tensor
        timeline, spent = recorder.timeline, recorder.timeline.spent

        def __next__(iterator: Any) -> Any:
            if get_ident() != recorder.thread:
                return original(iterator)
            if not iterator._seatrial_trains:
                recorder.doubt()
                loaders.asks(iterator)
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
                    loaders.pass_ended(iterator)
            try:
                first = batch[0] if type(batch) is list else batch
                recorder.examples += first.size(0) if type(first) is tensor else first_dimension(batch)
                if windows.open:
                    windows.mark("forward")
            except IndexError:  # a number has no first dimension
                recorder.examples += first_dimension(batch)
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
