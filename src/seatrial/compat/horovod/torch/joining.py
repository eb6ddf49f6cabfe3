"""``hvd.join``: ranks without data left take part in what the others still reduce, with zeros.

The operations of all ranks come in one order, so they have numbers. In a script that joins, each rank writes to the
store what its n-th operation is; one that has joined reads there what comes next, and takes part. The last to join
writes the end behind the operations of the rank that is furthest: NCCL does not keep a rank waiting until the others
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

#: Set to 1 where a script joins and its source does not show it.
VARIABLE = "SEATRIAL_HOROVOD_JOIN"

#: A call of something named join that is not given a list, as those of text and paths are.
_JOINS = re.compile(r"\bjoin\s*\(\s*(\)|device|-?\d|torch|hvd|args|local|rank)|import[^\n]*\bjoin\b")

#: Operations whose numbers stay in the store: no rank is that far behind.
_KEPT = 10_000

_PAUSE_S = 0.001

_TYPES = {str(each): each for each in vars(torch).values() if isinstance(each, torch.dtype)}


class Joining:
    """The numbered operations of one rank of ``size``."""

    def __init__(self, store: Any, rank: int, size: int) -> None:
        self._store, self._rank, self._size = store, rank, size
        self._count = 0
        self._joins = 0

    def announce(self, kind: str, tensor: torch.Tensor) -> None:
        """Write this rank's next operation to the store, before it begins."""
        self._store.set("%d" % self._count, json.dumps([kind, [*tensor.shape], str(tensor.dtype), tensor.device.type]))
        if self._count >= _KEPT and self._rank == 0:
            self._store.delete_key("%d" % (self._count - _KEPT))
        self._count += 1

    def join(self, take_part: Callable[[str, torch.Tensor], None]) -> int:
        """Take part in every operation until all ranks have joined; return the number of the last to do so."""
        self._joins += 1
        reached = "reached-%d-" % self._joins + "%d"
        self._store.set(reached % self._rank, "%d" % self._count)
        if self._store.add("joined-%d" % self._joins, 1) == self._size:
            furthest = max(int(self._store.get(reached % rank)) for rank in range(self._size))
            self._store.set("%d" % furthest, json.dumps(["end", self._rank]))
        while True:
            key = "%d" % self._count
            while not self._store.check([key]):
                time.sleep(_PAUSE_S)
            kind, *rest = json.loads(self._store.get(key))
            self._count += 1
            if kind == "end":
                break
            shape, dtype, device = rest
            take_part(kind, torch.zeros(shape, dtype=_TYPES[dtype], device=device))
        left = "left-%d" % self._joins
        self._store.add(left, 1)
        # Rank 0 leaves last: the store is gone with its process, and the others may not have read the end.
        while self._rank == 0 and self._store.add(left, 0) < self._size:
            time.sleep(_PAUSE_S)
        return int(rest[0])


_joining: Optional[Joining] = None


def begin(world: Any) -> None:
    """Number the operations from now on if the script joins."""
    global _joining
    _joining = None
    if world.size > 1 and (os.environ.get(VARIABLE) == "1" or any(_JOINS.search(text) for text in _sources())):
        store = dist.distributed_c10d._get_default_store()
        store = dist.PrefixStore("horovod-operations", store)  # type: ignore[attr-defined]
        _joining = Joining(store, world.rank, world.size)


def announce(kind: str, tensor: torch.Tensor) -> None:
    """Announce an operation of all ranks before it begins."""
    if _joining is not None:
        _joining.announce(kind, tensor)


def join(take_part: Callable[[str, torch.Tensor], None]) -> int:
    """Call ``Joining.join``. Raises RuntimeError if ``init`` did not see that the script joins."""
    if _joining is None:
        raise RuntimeError(
            "hvd.join is called where hvd.init could not see it, and the ranks kept no list of their operations. "
            "Instead: seatrial run --env %s=1 …" % VARIABLE
        )
    return _joining.join(take_part)


def _sources() -> Iterator[str]:
    """Yield the text of the script and of the modules in or below its folder."""
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
