"""Some of the ranks, which then speak among themselves."""

from typing import Any, Dict, List, Optional, Sequence, Union

import torch
import torch.distributed as dist

from .world import group_of_some, world


class ProcessSet:
    """Ranks of the world, by their numbers there. Made known with ``add_process_set``, by all ranks at once.

    Attributes:
        ranks: sorted; of the global set they are known after ``init``.
        process_set_id: None until it is known; 0 is the global set.
    """

    def __init__(self, ranks: Sequence[int]) -> None:
        self.ranks: Optional[List[int]] = sorted(ranks)
        self.process_set_id: Optional[int] = None
        self._groups: Dict[str, Any] = {}

    def size(self) -> Optional[int]:
        return len(self._members()) if self.process_set_id is not None else None

    def rank(self) -> Optional[int]:
        """This process's number in the set, or None where it is in none."""
        members = self._members()
        return members.index(world().rank) if self.included() else None

    def included(self) -> bool:
        return world().rank in self._members()

    def group(self, tensor: torch.Tensor) -> Any:
        """The process group for such a tensor. Raises ValueError for a set that nobody added, or without this rank."""
        if self.process_set_id is None:
            raise ValueError("%s is not known yet: hvd.add_process_set makes it so, on all ranks" % self)
        if not self.included():
            raise ValueError("rank %d is not in %s" % (world().rank, self))
        kind = "cuda" if tensor.is_cuda else "cpu"
        return self._groups[kind] if self.process_set_id else world().group(kind)

    def begin(self, number: int) -> None:
        """Make its groups; a part of all ranks."""
        self.process_set_id = number
        if number and world().size > 1:
            self._groups["cpu"] = group_of_some("cpu", self._members())
            if dist.is_nccl_available() and torch.cuda.is_available():
                self._groups["cuda"] = group_of_some("cuda", self._members())

    def _members(self) -> List[int]:
        if self.ranks is None:
            return list(range(world().size))
        return self.ranks

    def __str__(self) -> str:
        return "ProcessSet(process_set_id=%s, ranks=%s)" % (self.process_set_id, self.ranks)


class _GlobalSet(ProcessSet):
    def __init__(self) -> None:
        super().__init__([])
        self.ranks = None
        self.process_set_id = 0


global_process_set = _GlobalSet()
_known: List[ProcessSet] = [global_process_set]


def add_process_set(process_set: Union[ProcessSet, Sequence[int]]) -> ProcessSet:
    """Make a set known; every rank calls it, with the same ranks. Raises ValueError for ranks that are not there."""
    made = process_set if isinstance(process_set, ProcessSet) else ProcessSet(process_set)
    members = made.ranks or []
    if not members or members[0] < 0 or members[-1] >= world().size or len(set(members)) < len(members):
        raise ValueError("%s names ranks that are not among the %d there are" % (made, world().size))
    if any(each.ranks == members for each in _known):
        raise ValueError("there is a process set of ranks %s already" % members)
    made.begin(max(each.process_set_id or 0 for each in _known) + 1)
    _known.append(made)
    return made


def remove_process_set(process_set: ProcessSet) -> bool:
    """Whether it was there to be removed. The global set stays."""
    if process_set is global_process_set or process_set not in _known:
        return False
    _known.remove(process_set)
    process_set.process_set_id = None
    return True


def forget_process_sets() -> None:
    """After ``shutdown``."""
    for each in _known[1:]:
        remove_process_set(each)
