"""Change DataLoaders that are iterated for training: workers, prefetching, pinned memory, batch size.

A loader is changed when it is first iterated with gradients on and no model in evaluation: its constructor does not
show its purpose. The draws from torch's generators stay as they are, so that a seed gives the same order of examples.
"""

import io
import multiprocessing
import os
import pickle
import sys
import weakref
from functools import partial
from itertools import islice
from time import perf_counter
from typing import Any, Callable, Dict, Iterator, Optional, Tuple

from .observe import accompanied, wrap
from .report import in_short

#: A dataset larger than this would be sent to each started worker; that takes longer than it helps.
_MOST_SENT_BYTES = 64 << 20


def no_other_workers(torch: Any, loader: Any) -> Optional[str]:
    """Return why this loader's number of workers should stay; None if another number is safe."""
    if loader._dataset_kind != 0:
        return "the dataset is an IterableDataset: how many workers it has decides what they read"
    if loader.multiprocessing_context is not None:
        return "the script chose how its workers start (multiprocessing_context)"
    if multiprocessing.current_process().daemon:
        return "the script trains in a daemonic process, which may start no workers"
    default = "forkserver" if sys.version_info >= (3, 14) else "fork"
    if (multiprocessing.get_start_method(allow_none=True) or default) == "fork":
        return None
    # Started workers import the script anew and are sent the dataset.
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    try:
        with open(main or os.devnull, encoding="utf-8", errors="replace") as file:
            if "__name__" not in file.read():
                return 'workers are started anew here, and the script has no `if __name__ == "__main__":`'
    except OSError:
        return "workers are started anew here, and the script's file cannot be read"
    try:
        pickle.Pickler(_Limited()).dump((loader.dataset, loader.collate_fn, loader.worker_init_fn))
    except Exception as error:  # noqa: BLE001  anything may be in a dataset
        return "workers are started anew here, and the dataset cannot be sent to them: %s" % str(error)[:120]
    return None


class _Limited(io.RawIOBase):
    """Counts the bytes written, keeps none, and fails above the limit."""

    def __init__(self) -> None:
        super().__init__()
        self._left = _MOST_SENT_BYTES

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._left -= memoryview(data).nbytes
        if self._left < 0:
            raise ValueError("it is larger than %d MB" % (_MOST_SENT_BYTES >> 20))
        return int(memoryview(data).nbytes)


def generators(torch: Any, loader: Any) -> Callable[[], None]:
    """Return a function that restores the generators, from which order and seeds are drawn, to their state now."""
    owners = [loader, loader.sampler, getattr(loader.batch_sampler, "sampler", None)]
    own: Any = [getattr(owner, "generator", None) for owner in owners]
    found = {id(generator): generator for generator in own if hasattr(generator, "get_state")}
    states = [(generator, generator.get_state()) for generator in found.values()]
    default = torch.get_rng_state()

    def restore() -> None:
        torch.set_rng_state(default)
        for generator, state in states:
            generator.set_state(state)

    return restore


def watch_first_batch(iterator: Any, failed: Callable[[BaseException], None]) -> None:
    """Call ``failed`` with the error if ``iterator`` fails at its first batch."""
    if not hasattr(iterator, "_next_data"):
        return
    reference = weakref.ref(iterator)  # no circle: workers end with the last reference to their iterator
    kind = type(iterator)

    def first() -> Any:
        current: Any = reference()
        del current._next_data
        try:
            return kind._next_data(current)
        except StopIteration:
            raise
        except Exception as error:
            failed(error)
            raise

    iterator._next_data = first


def fingerprint(value: Any, depth: int = 2) -> Any:
    """Return a dataset's attributes, and those of their values: a script could change them between two passes."""
    known: Optional[Dict[str, Any]] = getattr(value, "__dict__", None)
    if not isinstance(known, dict) or depth == 0:
        return None
    plain = (int, float, str, bool, type(None))
    items = sorted(known.items(), key=lambda pair: str(pair[0]))
    values = [item if isinstance(item, plain) else id(item) for _, item in items]
    return tuple((name, value, fingerprint(item, depth - 1)) for value, (name, item) in zip(values, items))


#: Most batches, examples and seconds of reading ahead: a data set may be slow to read.
_BATCHES, _MOST_EXAMPLES, _MOST_S = 16, 1024, 3.0


class LongestFirst:
    """A sampler of indices that gives the longest of the next examples first; in all else it is the wrapped one."""

    def __init__(self, sampler: Any, dataset: Any, batch: int) -> None:
        self._sampler, self._dataset = sampler, dataset
        self._ahead = min(_BATCHES * batch, max(_MOST_EXAMPLES, batch))

    def __iter__(self) -> Iterator[Any]:
        indices = iter(self._sampler)
        ahead = list(islice(indices, self._ahead))
        until_s = perf_counter() + _MOST_S
        lengths = {}
        for place, index in enumerate(ahead):
            if perf_counter() > until_s:
                break
            lengths[place] = length(self._dataset[index]) or 0
        for place in sorted(range(len(ahead)), key=lambda place: -lengths.get(place, 0)):
            yield ahead[place]
        for index in indices:
            yield index

    def __len__(self) -> int:
        return len(self._sampler)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sampler, name)


def length(example: Any) -> Optional[int]:
    """Return the length of an example's longest sequence; None if it has none, as a picture."""
    parts = example.values() if isinstance(example, dict) else example if isinstance(example, tuple) else [example]
    found = []
    for part in parts:
        shape = getattr(part, "shape", None)
        if shape is not None:
            found += [int(shape[0])] if len(shape) == 1 else []
        elif isinstance(part, (list, str)):
            found.append(len(part))
    return max(found) if found else None


#: Batches that each worker keeps ready if the script gives no number. Source: torch/utils/data/dataloader.py.
_PREFETCH = 2


class LoaderChanges:
    """Wraps DataLoader's ``__iter__``, and its constructor to know the line. ``changes``: see changes.py."""

    KEYS = ("workers", "persistent_workers", "pin_memory", "prefetch_factor", "batch_size")

    def __init__(self, changes: Any) -> None:
        self._changes, self._torch = changes, changes.torch
        self._made: Any = weakref.WeakKeyDictionary()  # a loader → where it was made
        self._first_over: Dict[int, Tuple[Any, Any]] = {}  # id of a dataset → where a loader over it was made
        self._trained: Any = weakref.WeakKeyDictionary()  # a loader → whether it is for training
        self._kept: Any = weakref.WeakKeyDictionary()  # a loader whose workers we keep → what its dataset was
        self._pid = os.getpid()

    def place(self) -> None:
        if not any(key in self._changes.wanted for key in self.KEYS):
            return
        kind = sys.modules["torch.utils.data.dataloader"].DataLoader
        wrap(kind, "__init__", accompanied(self._remember, partial(self._changes.failed, self.KEYS)))
        wrap(kind, "__iter__", lambda iterate: lambda loader: self._iterate(loader, iterate))

    def _remember(self, loader: Any, args: Any, kwargs: Any) -> None:
        """Remember the line that made this loader, or the script's if a library makes it anew from the script's."""
        place = self._changes.where.here()
        if place is None:
            return
        dataset = loader.dataset
        if place.package is None:
            self._first_over[id(dataset)] = (_weakly(dataset), place)
        else:
            reference, first = self._first_over.get(id(dataset), (None, None))
            if reference is not None and reference() is dataset:
                place = first
        self._made[loader] = place

    def _iterate(self, loader: Any, iterate: Any) -> Any:
        try:
            before = self._change(loader)
            alone = self._apart_from_a_running_pass(loader)
            if loader in self._kept and loader._iterator is not None and not alone:
                # A new iterator draws its workers' seed, a kept one does not, and later draws would differ. Source:
                # torch/utils/data/dataloader.py, _BaseDataLoaderIter.
                self._torch.empty((), dtype=self._torch.int64).random_(generator=loader.generator)
        except Exception as error:  # noqa: BLE001
            self._changes.failed(self.KEYS, error)
            before, alone = None, False
        if alone:
            return loader._get_iterator()
        if before is None:
            return iterate(loader)
        try:
            iterator = iterate(loader)
        except Exception as error:
            self._report_failure(error)
            raise
        watch_first_batch(iterator, self._report_failure)
        return iterator

    def _change(self, loader: Any) -> Optional[Dict[str, Any]]:
        """Change the loader. Returns what it was, if it is changed now; None when it stays, or was changed before."""
        if loader in self._trained or os.getpid() != self._pid:
            return None
        self._trained[loader] = self._torch.is_grad_enabled() and not self._changes.evaluating()
        if not self._trained[loader]:
            return None
        names = ("num_workers", "persistent_workers", "pin_memory", "prefetch_factor")
        before = {name: getattr(loader, name, None) for name in names}
        wanted, place = self._changes.wanted, self._made.get(loader)
        for key, change in (
            ("batch_size", self._batch_size),
            ("workers", self._workers),
            ("persistent_workers", self._persistent),
            ("prefetch_factor", self._prefetch),
            ("pin_memory", self._pin),
        ):
            if key in wanted:
                self._changes.conclude(key, change(loader, wanted[key]), place)
        if wanted.get("persistent_workers") and loader.persistent_workers and not before["persistent_workers"]:
            self._kept[loader] = fingerprint(loader.dataset)
        changed = any(getattr(loader, name, None) != value for name, value in before.items())
        return before if changed else None

    def _workers(self, loader: Any, workers: int) -> Optional[str]:
        if loader.num_workers == workers:
            return "the script's loader has %d workers already" % workers
        why = no_other_workers(self._torch, loader)
        if why is not None:
            return why
        loader.num_workers = workers
        if workers and getattr(loader, "prefetch_factor", None) is None:
            loader.prefetch_factor = _PREFETCH
        return None

    def _persistent(self, loader: Any, value: Any) -> Optional[str]:
        if loader.persistent_workers:
            return "the script's loader keeps its workers already"
        if not loader.num_workers:
            return "the loader has no workers"
        if loader._dataset_kind != 0:
            return "the dataset is an IterableDataset: a pass may change it"
        object.__setattr__(loader, "persistent_workers", True)
        return None

    def _prefetch(self, loader: Any, batches: int) -> Optional[str]:
        if not loader.num_workers:
            return "the loader has no workers"
        if loader.prefetch_factor == batches:
            return "the script's loader keeps %d batches ready already" % batches
        loader.prefetch_factor = batches
        return None

    def _pin(self, loader: Any, value: Any) -> Optional[str]:
        if loader.pin_memory:
            return "the script's loader pins its memory already"
        if not self._torch.cuda.is_available():
            return "no GPU found"
        loader.pin_memory = True
        return None

    def _batch_size(self, loader: Any, examples: int) -> Optional[str]:
        """Set the size in the sampler of batches, which libraries wrap into theirs; return why not, or None."""
        sampler = loader.batch_sampler
        for _ in range(4):
            if sampler is None or type(sampler) is self._torch.utils.data.BatchSampler:
                break
            sampler = getattr(sampler, "batch_sampler", None)
        if sampler is None:
            return "the loader's batches are not made by torch's BatchSampler"
        self._longest_first(loader, sampler, examples)
        if sampler.batch_size == examples:
            return "the script's batches have %d examples already" % examples
        sampler.batch_size = examples
        object.__setattr__(loader, "batch_size", examples)
        return None

    def _longest_first(self, loader: Any, sampler: Any, examples: int) -> None:
        """Sort examples of different length, the longest first, since another batch size is tried for its memory."""
        if loader._dataset_kind == 0 and not isinstance(sampler.sampler, LongestFirst) and len(loader.dataset):
            restore = generators(self._torch, loader)
            if length(loader.dataset[0]) is not None:
                sampler.sampler = LongestFirst(sampler.sampler, loader.dataset, examples)
            restore()

    def _report_failure(self, error: BaseException) -> None:
        """Report that the loader failed with its changes, at its start or at its first batch."""
        for key in self.KEYS[:4]:
            self._changes.take_back(key, "the loader failed with it: %s" % in_short(error))
        self._changes.report()

    def _apart_from_a_running_pass(self, loader: Any) -> bool:
        """Return True if this pass needs an iterator of its own. Workers that stay belong to one iterator: a script
        that has two passes at once, or changes its dataset between two, must not be given the old one."""
        if loader not in self._kept or loader._iterator is None:
            return False
        if self._kept[loader] != fingerprint(loader.dataset):
            del self._kept[loader]
            object.__setattr__(loader, "persistent_workers", False)
            loader._iterator = None
            self._changes.take_back("persistent_workers", "the script changes its dataset between two passes")
            return False
        return sys.getrefcount(loader._iterator) > 2  # the loader's own, and this call's


def _weakly(value: Any) -> Any:
    try:
        return weakref.ref(value)
    except TypeError:  # a list, for example
        return lambda: value
