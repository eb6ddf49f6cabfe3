"""Changes of DataLoaders that are iterated for training: workers, what they keep ready, pinned memory, batch size.

A loader is changed when it is first iterated with gradients on and no model in evaluation: where it is made, nobody
knows what for. The draws from torch's generators stay as they are, so that a seed gives the same order of examples.
"""

import functools
import os
import sys
import weakref
from typing import Any, Dict, Optional, Tuple

from . import loader_safety
from .call_sites import CallSite
from .error_line import in_short
from .longest_first import LongestFirst, length

#: Batches that each worker keeps ready where the script says nothing. Source: torch/utils/data/dataloader.py.
_PREFETCH = 2


class Loaders:
    """Wraps DataLoader's ``__iter__``, and its constructor to know the line.

    Args:
        changes: what is wanted (changes.py).
    """

    KEYS = ("workers", "persistent_workers", "pin_memory", "prefetch_factor", "batch_size")

    def __init__(self, changes: Any) -> None:
        self._changes, self._torch = changes, changes.torch
        self._made: Any = weakref.WeakKeyDictionary()  # a loader → where it was made
        self._first_over: Dict[int, Tuple[Any, CallSite]] = {}  # id of a dataset → where a loader over it was made
        self._trained: Any = weakref.WeakKeyDictionary()  # a loader → whether it is for training
        self._kept: Any = weakref.WeakKeyDictionary()  # a loader whose workers we keep → what its dataset was
        self._pid = os.getpid()

    def place(self) -> None:
        if not any(key in self._changes.wanted for key in self.KEYS):
            return
        kind = sys.modules["torch.utils.data.dataloader"].DataLoader
        make, iterate = kind.__init__, kind.__iter__

        def __init__(loader: Any, *args: Any, **kwargs: Any) -> None:
            make(loader, *args, **kwargs)
            try:
                self._remember(loader)
            except Exception as error:  # noqa: BLE001
                self._changes.failed(self.KEYS, error)

        def __iter__(loader: Any) -> Any:
            return self._iterate(loader, iterate)

        for ours, theirs in ((__init__, make), (__iter__, iterate)):
            functools.update_wrapper(ours, theirs)
        kind.__init__, kind.__iter__ = __init__, __iter__

    def _remember(self, loader: Any) -> None:
        """A library may make a loader anew from the script's: the line is then that of the script's."""
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
                self._draw_a_seed(loader)
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
        loader_safety.watch_first_batch(iterator, self._report_failure)
        return iterator

    # what is changed

    def _for_training(self, loader: Any) -> bool:
        known: Optional[bool] = self._trained.get(loader)
        if known is None:
            known = self._trained[loader] = self._torch.is_grad_enabled() and not self._changes.evaluating()
        return known

    def _change(self, loader: Any) -> Optional[Dict[str, Any]]:
        """Change the loader. Returns what it was, if it is changed now; None when it stays, or was changed before."""
        if loader in self._trained or os.getpid() != self._pid or not self._for_training(loader):
            return None
        names = ("num_workers", "persistent_workers", "pin_memory", "prefetch_factor")
        before = {name: getattr(loader, name, None) for name in names}
        wanted, place = self._changes.wanted, self._made.get(loader)
        reasons = {
            "batch_size": self._batch_size,
            "workers": self._workers,
            "persistent_workers": self._persistent,
            "prefetch_factor": self._prefetch,
            "pin_memory": self._pin,
        }
        for key, change in reasons.items():
            if key not in wanted:
                continue
            why = change(loader, wanted[key])
            if why is None:
                self._changes.apply(key, place)
            else:
                self._changes.refuse(key, why)
                self._changes.seen(key, place)
        if wanted.get("persistent_workers") and loader.persistent_workers and not before["persistent_workers"]:
            self._kept[loader] = loader_safety.fingerprint(loader.dataset)
        changed = any(getattr(loader, name, None) != value for name, value in before.items())
        return before if changed else None

    def _workers(self, loader: Any, workers: int) -> Optional[str]:
        if loader.num_workers == workers:
            return "the script's loader has %d workers already" % workers
        why = loader_safety.no_other_workers(self._torch, loader)
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
            return "there is no GPU"
        loader.pin_memory = True
        return None

    def _batch_size(self, loader: Any, examples: int) -> Optional[str]:
        """It is the sampler's of batches, which libraries wrap into theirs."""
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
        """Another batch size is tried for its memory: examples of different length come the longest first."""
        if loader._dataset_kind == 0 and not isinstance(sampler.sampler, LongestFirst) and len(loader.dataset):
            restore = loader_safety.generators(self._torch, loader)
            if length(loader.dataset[0]) is not None:
                sampler.sampler = LongestFirst(sampler.sampler, loader.dataset, examples)
            restore()

    def _report_failure(self, error: BaseException) -> None:
        """Name the changes with which the loader failed, at its start or at its first batch."""
        for key in self.KEYS[:4]:
            self._changes.take_back(key, "the loader failed with it: %s" % in_short(error))
        self._changes.tell()

    def _apart_from_a_running_pass(self, loader: Any) -> bool:
        """Workers that stay are one iterator's. A script that has two passes at once, or changes its dataset between
        two, must not be given the old one: whether this pass needs an iterator of its own."""
        if loader not in self._kept or loader._iterator is None:
            return False
        if self._kept[loader] != loader_safety.fingerprint(loader.dataset):
            del self._kept[loader]
            object.__setattr__(loader, "persistent_workers", False)
            loader._iterator = None
            self._changes.take_back("persistent_workers", "the script changes its dataset between two passes")
            return False
        return sys.getrefcount(loader._iterator) > 2  # the loader's own, and this call's

    def _draw_a_seed(self, loader: Any) -> None:
        """An iterator that is made draws its workers' seed, one that stays does not: the order of what is drawn next
        would be another. Source: torch/utils/data/dataloader.py, _BaseDataLoaderIter."""
        self._torch.empty((), dtype=self._torch.int64).random_(generator=loader.generator)


def _weakly(value: Any) -> Any:
    try:
        return weakref.ref(value)
    except TypeError:  # a list, say
        return lambda: value
