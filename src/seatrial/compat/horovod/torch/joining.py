"""``hvd.join``: ranks without data left take part in the others' reductions with neutral elements.

All ranks begin the same operations in the same order, so operations have numbers. In a script that joins, each rank
writes its n-th operation to the store; a joined rank reads there what comes next. The last rank to join writes the end
behind the operations of the rank that is furthest: NCCL lets a rank begin operations that the others have not reached.
"""

import json
import os
import re
import sys
import time
from typing import Any, Callable, Iterator, Optional

import torch
import torch.distributed as dist

from .. import refuse
from .world import world

#: A call of ``join`` whose first argument is not a list, as those of text and paths are.
_JOINS = re.compile(r"\bjoin\s*\(\s*(\)|device|-?\d|torch|hvd|args|local|rank)|import[^\n]*\bjoin\b")

#: Operations whose entries stay in the store; no rank lags that far.
_KEPT = 10_000

_PAUSE_S = 0.001

_TYPES = {str(each): each for each in vars(torch).values() if isinstance(each, torch.dtype)}


class Joining:
    """The numbered operations of one rank of ``size``."""

    def __init__(self, store: Any, rank: int, size: int) -> None:
        self._store, self._rank, self._size = store, rank, size
        self._count = self._joins = 0

    def announce(self, kind: str, tensor: torch.Tensor) -> None:
        """Write this rank's next operation to the store, before it begins."""
        self._store.set(str(self._count), json.dumps([kind, [*tensor.shape], str(tensor.dtype), tensor.device.type]))
        if self._count >= _KEPT and self._rank == 0:
            self._store.delete_key(str(self._count - _KEPT))
        self._count += 1

    def join(self, take_part: Callable[[str, torch.Tensor], None]) -> int:
        """Take part in every operation until all ranks have joined; return the number of the last to do so."""
        self._joins += 1
        reached = "reached-%d-" % self._joins + "%d"
        self._store.set(reached % self._rank, str(self._count))
        if self._store.add("joined-%d" % self._joins, 1) == self._size:
            furthest = max(int(self._store.get(reached % rank)) for rank in range(self._size))
            self._store.set(str(furthest), json.dumps(["end", self._rank]))
        while True:
            kind, *rest = json.loads(self._wait_for(str(self._count)))
            self._count += 1
            if kind == "end":
                break
            shape, dtype, device = rest
            take_part(kind, torch.zeros(shape, dtype=_TYPES[dtype], device=device))
        left = "left-%d" % self._joins
        self._store.add(left, 1)
        # Rank 0 leaves last: the store ends with its process, and the others may not have read the end.
        while self._rank == 0 and self._store.add(left, 0) < self._size:
            time.sleep(_PAUSE_S)
        return int(rest[0])

    def _wait_for(self, key: str) -> Any:
        while not self._store.check([key]):
            time.sleep(_PAUSE_S)
        return self._store.get(key)


def of_script() -> Optional[Joining]:
    """Return this rank's numbered operations, or None if the script calls no ``join``."""
    here = world()
    if here.numbered is None:
        here.numbered = here.size > 1 and any(_JOINS.search(text) for text in _sources())
        if here.numbered:
            store: Any = dist.distributed_c10d._get_default_store()
            store = dist.PrefixStore("horovod-operations", store)  # type: ignore[attr-defined]
            here.numbered = Joining(store, here.rank, here.size)
    return here.numbered or None


def join(take_part: Callable[[str, torch.Tensor], None]) -> int:
    """Call ``Joining.join``. Raises NotInStandIn if the call is outside the script's own files."""
    if world().size == 1:
        return 0
    joining = of_script()
    if joining is None:
        refuse("hvd.join outside the script's folder", "hvd.join() in the script: seatrial run --gpus 2 train.py")
    return joining.join(take_part)


def _sources() -> Iterator[str]:
    """Yield the text of the script and of the modules in or below its folder."""
    script = getattr(sys.modules.get("__main__"), "__file__", None)
    folder = os.path.dirname(os.path.abspath(script)) if script else os.getcwd()
    for module in list(sys.modules.values()):
        path = os.path.abspath(getattr(module, "__file__", None) or "")
        if path.endswith(".py") and path.startswith(folder + os.sep) and "-packages" not in path:
            try:
                with open(path, encoding="utf-8", errors="replace") as file:
                    yield file.read()
            except OSError:
                pass
