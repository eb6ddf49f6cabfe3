"""What keeps a changed DataLoader from failing, or from changing training."""

import io
import multiprocessing
import os
import pickle
import sys
import weakref
from typing import Any, Callable, Dict, Optional

#: A dataset larger than this would be sent to each started worker; that takes longer than it helps.
_MOST_SENT_BYTES = 64 << 20


def no_other_workers(torch: Any, loader: Any) -> Optional[str]:
    """Why this loader's workers should be left as they are; None where another number is safe."""
    if loader._dataset_kind != 0:
        return "the dataset is an IterableDataset: how many workers it has decides what they read"
    if loader.multiprocessing_context is not None:
        return "the script chose how its workers start (multiprocessing_context)"
    if multiprocessing.current_process().daemon:
        return "the script trains in a daemonic process, which may start no workers"
    if (multiprocessing.get_start_method(allow_none=True) or _default_start()) != "fork":
        return _not_startable(loader)
    return None


def _default_start() -> str:
    return "forkserver" if sys.version_info >= (3, 14) else "fork"


def _not_startable(loader: Any) -> Optional[str]:
    """Started workers import the script anew and are sent the dataset."""
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
    """Counts what is written, and keeps nothing."""

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
    """What puts the generators, from which order and seeds are drawn, back to where they are now."""
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
    """What a script could change in its dataset between two passes: attributes, and those of what they hold."""
    known: Optional[Dict[str, Any]] = getattr(value, "__dict__", None)
    if not isinstance(known, dict) or depth == 0:
        return None
    return tuple(
        (
            name,
            item if isinstance(item, (int, float, str, bool, type(None))) else id(item),
            fingerprint(item, depth - 1),
        )
        for name, item in sorted(known.items(), key=lambda pair: str(pair[0]))
    )
