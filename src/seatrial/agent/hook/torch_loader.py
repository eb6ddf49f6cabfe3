"""Measure torch's DataLoaders: each batch's wait, its examples, and which loaders are used for training."""

import math
import weakref
from collections import deque
from collections.abc import Mapping
from threading import get_ident
from time import perf_counter
from typing import Any, Callable, Dict, List

from .observe import safely, wrap
from .steps import Recorder
from .torch_windows import Windows

#: torch.utils.data.dataloader._DatasetKind.Map
_MAP = 0


class LoaderWatch:
    """Iterators of torch's DataLoaders: each batch's wait, and whether steps follow.

    Attributes:
        settings: of the loader in use, as it is. passed: batches of its pass so far, and in all; [] where unknown.
        starts_s: seconds spent since the first step on starting workers that live for one pass.
    """

    def __init__(self, torch: Any, recorder: Recorder, windows: Windows) -> None:
        self.torch, self.recorder, self.windows = torch, recorder, windows
        self.latest: Callable[[], Any] = lambda: None  # the iterator of the last batch, while it lives
        self.pending: Dict[int, List[Any]] = {}  # iterators in doubt, and how many batches they gave
        self.given = windows.given = GivenBatches(torch, recorder, windows)
        self.settings: Dict[str, Any] = {}
        self.passed: List[int] = []
        self._plain: Any = (deque(), [0, 0.0])  # of the iterator of plain steps: sizes, and totals of its pass
        recorder.stepped_elsewhere, recorder.drawn = self.trained_on, self.drawn
        self.starts_s = 0.0

    def place(self, dataloader: Any) -> None:
        """Patch ``dataloader``, the module torch.utils.data.dataloader, so that its iterators report here."""
        base = dataloader._BaseDataLoaderIter
        base._seatrial_trains = False  # True on those that steps follow
        wrap(dataloader._SingleProcessDataLoaderIter, "__init__", self._begins)
        wrap(dataloader._MultiProcessingDataLoaderIter, "__init__", self._begins)
        base._seatrial_sizes = ()  # how many examples were requested for each batch that has not come yet
        base._seatrial_passes = -1  # backward passes when the last batch was taken
        base._seatrial_pass = None  # how many batches and examples it gave
        base._seatrial_waits = None  # where waits for batches of plain steps are noted
        wrap(base, "__next__", self._next)
        wrap(base, "_next_index", self._indices)

    def _begins(self, original: Any) -> Any:
        def __init__(iterator: Any, loader: Any, *args: Any, **kwargs: Any) -> None:
            if self.recorder.mine():
                self.recorder.doubt()  # workers start here, perhaps for an evaluation
                self.recorder.timeline.enter("data")
                began_s = perf_counter()
                try:
                    original(iterator, loader, *args, **kwargs)
                finally:
                    self.recorder.timeline.leave()
                if self.recorder.steps and not iterator._persistent_workers:
                    self.starts_s += perf_counter() - began_s
            else:
                original(iterator, loader, *args, **kwargs)

        return __init__

    def _indices(self, original: Any) -> Any:
        def _next_index(iterator: Any) -> Any:
            indices = original(iterator)
            try:
                iterator._seatrial_sizes.append(len(indices))
            except (AttributeError, TypeError):  # the first one, or one without a length
                iterator._seatrial_sizes = deque(iterator._seatrial_sizes)
                iterator._seatrial_sizes.append(len(indices) if hasattr(indices, "__len__") else 0)
            return indices

        return _next_index

    def _next(self, original: Any) -> Any:
        recorder, windows, loaders, given = self.recorder, self.windows, self, self.given
        timeline, spent = recorder.timeline, recorder.timeline.spent

        def __next__(iterator: Any) -> Any:
            waits = iterator._seatrial_waits
            if waits is None:
                return look_closely(iterator)
            began_s = perf_counter()
            try:
                batch = original(iterator)
            except BaseException:
                timeline.shift("data", perf_counter() - began_s)
                safely(recorder.stop, recorder.look_closely)
                safely(recorder.stop, loaders.pass_ended, iterator)
                raise
            waits.append(perf_counter() - began_s)
            return batch

        def look_closely(iterator: Any) -> Any:
            if get_ident() != recorder.thread:
                batch = original(iterator)
                if recorder.on:
                    gave(iterator, batch)
                    given.add(batch, iterator)
                return batch
            recorder.look_closely()
            if not iterator._seatrial_trains:
                recorder.doubt()
                loaders.asks(iterator)
            elif recorder.doubtful is not None:
                recorder.doubt_ends()
            if windows.open:
                recorder.timeline.optimizer_failed()  # or none is at work
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
                    safely(recorder.stop, loaders.pass_ended, iterator)
            try:
                recorder.batches += 1
                recorder.unused += recorder.passes > 0 and iterator._seatrial_passes == recorder.passes
                iterator._seatrial_passes = recorder.passes
                recorder.examples += gave(iterator, batch)
                if windows.open or not iterator._seatrial_trains:
                    given.add(batch, iterator)
                if windows.open:
                    windows.mark("forward")
            except Exception as error:  # noqa: BLE001
                recorder.stop(error)
            return batch

        return __next__

    def becomes_plain(self, batches: int) -> bool:
        """Note batches of the loader in use without observing them, if the sampler alone decides their sizes."""
        iterator = self.latest()
        if batches and (iterator is None or iterator._dataset_kind != _MAP):
            return False
        if batches:
            iterator._seatrial_waits = self.recorder.timeline.waits
            self._plain = iterator._seatrial_sizes, iterator._seatrial_pass
        return True

    def looks_closely(self) -> None:
        iterator = self.latest()
        if iterator is not None:
            iterator._seatrial_waits = None

    def drawn(self, batches: int) -> float:
        """Count batches of plain steps; return their examples."""
        sizes, of_pass = self._plain
        examples = sum(sizes.popleft() or math.nan for _ in range(batches))
        of_pass[0] += batches
        of_pass[1] += examples
        return examples

    def pass_ended(self, iterator: Any) -> None:
        """Record that a loader is at its end or failed. A pass that no step followed was for evaluation."""
        if iterator._seatrial_trains:
            self.look_at(iterator)
        else:
            self.recorder.doubt_ends()
            self.pending.clear()

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
        """Resolve the loaders in doubt at a step: the last one is trained on, and those that were iterated as often."""
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
        """Read a loader's settings and progress; its length only if that calls none of the script's own code."""
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
        """Return the settings of the loader that the last batch came from; empty if there is none."""
        iterator = self.latest()
        if iterator is not None:
            self.look_at(iterator)
        return self.settings


def gave(iterator: Any, batch: Any) -> float:
    """Count a batch of a pass. Returns its examples."""
    size = examples_in(batch, iterator)
    if iterator._seatrial_pass is None:
        iterator._seatrial_pass = [0, 0.0]
    iterator._seatrial_pass[0] += 1
    iterator._seatrial_pass[1] += size
    return size


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
    if size and iterator._dataset_kind == _MAP:
        return size
    first = first_dimensions(batch)
    if size:
        return max(first) if first and max(first) < size else size
    return first[0] if len(first) > 1 and len(set(first)) == 1 else math.nan


def first_dimensions(batch: Any) -> List[int]:
    """Return the first dimension of each tensor in a batch, 0 for a number."""
    return [int(each.shape[0]) if len(each.shape) else 0 for each in tensors_in(batch)]


def tensors_in(batch: Any, depth: int = 3) -> List[Any]:
    """Return the values in nested lists and mappings that have a shape."""
    if not isinstance(batch, (list, tuple, Mapping)):
        return [batch] if getattr(batch, "shape", None) is not None else []
    items = batch.values() if isinstance(batch, Mapping) else batch
    return [each for item in items for each in tensors_in(item, depth - 1)] if depth else []


class GivenBatches:
    """Batches whose step counting does not show: taken in another thread, before training, or left out.

    In a window a step uses a batch if its backward pass comes to a model that was called with a tensor of it. Where
    every step uses as many batches that the step before did not, that times their mean size is what a step takes.
    """

    def __init__(self, torch: Any, recorder: Recorder, windows: Windows) -> None:
        self._torch, self._recorder, self._windows = torch, recorder, windows
        self._known: Dict[int, Any] = {}  # id of a tensor → a reference to it, and its batch: a number and its pass
        self._number, self._most = 0, _MOST_KNOWN
        self._now: Dict[int, List[float]] = {}  # the batches of this step, and of the one before
        self._before: Dict[int, List[float]] = {}
        self._last: Dict[int, Any] = {}  # a thread other than the one that trains → its last batches
        self._passes: Dict[int, List[float]] = {}  # those that used batches are of: how many batches and examples
        self._used = self._steps = self._opened = self._elsewhere = 0  # in windows; steps of other threads before this
        recorder.examples_a_step = self.examples_a_step

    def add(self, batch: Any, iterator: Any) -> None:
        """Note a batch, as long as its tensors live."""
        try:
            self._number += 1
            known = self._number, iterator._seatrial_pass
            for tensor in tensors_in(batch)[:_MOST_TENSORS]:
                self._known[id(tensor)] = weakref.ref(tensor), known
            if len(self._known) > self._most:
                self._known = {key: value for key, value in self._known.items() if value[0]() is not None}
                self._most = max(_MOST_KNOWN, 2 * len(self._known))
        except Exception as error:  # noqa: BLE001  never the script's trouble
            self._recorder.stop(error)

    def copied(self, source: Any, result: Any) -> None:
        """Record that a tensor of a batch was copied to the GPU."""
        known = self._batch_of(source)
        if known is not None and result is not source:
            self._known[id(result)] = weakref.ref(result), known

    def of(self, arguments: Any) -> Dict[int, List[float]]:
        """Return the batches that a model is called with in a window: a number and its pass."""
        if not self._known or not self._torch.is_grad_enabled():
            return {}
        try:
            found = map(self._batch_of, tensors_in(arguments)[:_MOST_TENSORS])
            return dict(known for known in found if known is not None)
        except Exception as error:  # noqa: BLE001  never the script's trouble
            self._recorder.stop(error)
            return {}

    def follow(self, batches: Dict[int, List[float]], result: Any) -> Any:
        """Watch for a backward pass through the result of a model that was called with these; return the result."""
        thread = get_ident()

        def reached(gradients: Any) -> None:
            if not self._windows.open:
                return
            if thread == self._recorder.thread:
                self._now.update((number, each) for number, each in batches.items() if number not in self._before)
            elif self._last.get(thread) != batches.keys():
                self._last[thread] = batches.keys()
                self._uses(batches)

        try:
            for tensor in tensors_in(result)[:_MOST_TENSORS] if batches else ():
                register = getattr(getattr(tensor, "grad_fn", None), "register_prehook", None)
                if register is not None:
                    register(reached)
        except Exception as error:  # noqa: BLE001  never the script's trouble
            self._recorder.stop(error)
        return result

    def window_opens(self) -> None:
        self._now, self._before, self._elsewhere = {}, {}, self._recorder.elsewhere
        self._opened += 1

    def stepped(self) -> None:
        """Record the end of a window's step."""
        elsewhere = self._recorder.elsewhere
        self._steps += 1 + elsewhere - self._elsewhere
        self._uses(self._now)
        self._before, self._now, self._elsewhere = self._now or self._before, {}, elsewhere

    def _uses(self, batches: Dict[int, List[float]]) -> None:
        self._used += len(batches)
        self._passes.update((id(each), each) for each in batches.values())

    def examples_a_step(self) -> float:
        """Return the examples of a step by what windows have shown; 0 where they have not."""
        each = round(self._used / self._steps) if self._steps >= _FEWEST_STEPS else 0
        most = _WITHIN * self._steps + 2 * self._opened * bool(self._elsewhere)  # threads meet a window's ends anywhere
        if not each or abs(self._used / each - self._steps) > most:
            return 0.0
        batches, examples = map(sum, zip(*self._passes.values()))
        return 0.0 if math.isnan(examples) else each * examples / batches

    def _batch_of(self, tensor: Any) -> Any:
        """Return the batch of a tensor, or of the tensor that it is a view of, with all of the examples."""
        reference, known = self._known.get(id(tensor), (None, None))
        if reference is not None and reference() is tensor:
            return known
        base = getattr(tensor, "_base", None)
        if base is None or (tensor.shape[:1] != base.shape[:1] and tensor.numel() != base.numel()):
            return None
        return self._batch_of(base)


#: Most tensors of a batch that are examined, and that are remembered; steps of windows that show what a step uses; and
#: the tolerance.
_MOST_TENSORS, _MOST_KNOWN, _FEWEST_STEPS, _WITHIN = 8, 4096, 8, 0.05
