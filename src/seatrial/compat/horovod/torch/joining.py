"""``hvd.join``: ranks without data left take part in what the others still reduce, with zeros.

The operations of all ranks come in one order, so they have numbers. In a script that joins, each rank leaves in the
store what its n-th operation is; one that has joined reads there what comes next, and takes part. The last to join
leaves the end behind the operations of the rank that is furthest: NCCL does not keep a rank waiting until the others
have come to an operation, so that one may have joined with more of them behind it than the last has.
"""

import json
import os
import re
import sys
import time
from typing import Any, Callable, Dict, Iterator, Optional

import torch
import torch.distributed as dist

from .world import world

#: Set to 1 where a script joins and its source does not show it.
VARIABLE = "SEATRIAL_HOROVOD_JOIN"

#: A call of something named join that is not given a list, as text's and paths' own always are.
_JOINS = re.compile(r"\bjoin\s*\(\s*(\)|device|-?\d|torch|hvd|args|local|rank)|import[^\n]*\bjoin\b")

#: Operations whose numbers are kept in the store: no rank is that far behind.
_KEPT = 10_000

_PAUSE_S = 0.001

_TYPES = {str(each): each for each in vars(torch).values() if isinstance(each, torch.dtype)}


class Joining:
    """The numbered operations of one rank."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self._count = 0
        self._joins = 0

    def tell(self, kind: str, tensor: torch.Tensor) -> None:
        """This rank's next operation, before it begins."""
        told = [kind, list(tensor.shape), str(tensor.dtype), tensor.device.type]
        self._store.set("%d" % self._count, json.dumps(told))
        if self._count >= _KEPT and world().rank == 0:
            self._store.delete_key("%d" % (self._count - _KEPT))
        self._count += 1

    def join(self, take_part: Callable[[str, torch.Tensor], None]) -> int:
        """Take part in all that comes until every rank has joined; the number of the last to do so."""
        self._joins += 1
        reached = "reached-%d-" % self._joins + "%d"
        self._store.set(reached % world().rank, "%d" % self._count)
        if self._store.add("joined-%d" % self._joins, 1) == world().size:
            furthest = max(int(self._store.get(reached % rank)) for rank in range(world().size))
            self._store.set("%d" % furthest, json.dumps(["end", world().rank]))
        while True:
            key = "%d" % self._count
            while not self._store.check([key]):
                time.sleep(_PAUSE_S)
            kind, *rest = json.loads(self._store.get(key))
            self._count += 1
            if kind == "end":
                self._leave()
                return int(rest[0])
            shape, dtype, device = rest
            take_part(kind, torch.zeros(shape, dtype=_TYPES[dtype], device=device))

    def _leave(self) -> None:
        """Rank 0 leaves last: the store is gone with its process, and the others may not have read the end."""
        left = "left-%d" % self._joins
        self._store.add(left, 1)
        while world().rank == 0 and self._store.add(left, 0) < world().size:
            time.sleep(_PAUSE_S)


_joining: Optional[Joining] = None


def begin() -> None:
    """After ``init``: number the operations where the script joins."""
    global _joining
    _joining = None
    if world().size > 1 and (os.environ.get(VARIABLE) == "1" or _script_joins()):
        store = dist.distributed_c10d._get_default_store()
        _joining = Joining(dist.PrefixStore("horovod-operations", store))  # type: ignore[attr-defined]


def tell(kind: str, tensor: torch.Tensor) -> None:
    """Of each operation of all ranks, before it begins."""
    if _joining is not None:
        _joining.tell(kind, tensor)


def join(take_part: Callable[[str, torch.Tensor], None]) -> int:
    """See ``Joining.join``. Raises RuntimeError in a script in which nobody saw that it joins."""
    if world().size == 1:
        return 0
    if _joining is None:
        raise RuntimeError(
            "hvd.join is called where hvd.init could not see it, and the ranks kept no list of their operations. "
            "Instead: seatrial run --env %s=1 …" % VARIABLE
        )
    return _joining.join(take_part)


def _script_joins() -> bool:
    return any(_JOINS.search(text) for text in _sources())


def _sources() -> Iterator[str]:
    """Of the script, and of modules that lie beside or under it."""
    modules: Dict[str, Any] = dict(sys.modules)
    script = getattr(modules.get("__main__"), "__file__", None)
    folder = os.path.dirname(os.path.abspath(script)) if script else os.getcwd()
    for module in modules.values():
        path = getattr(module, "__file__", None)
        if not isinstance(path, str) or not path.endswith(".py") or "-packages" in path:
            continue
        if os.path.abspath(path).startswith(folder + os.sep):
            try:
                with open(path, encoding="utf-8", errors="replace") as file:
                    yield file.read()
            except OSError:
                pass
