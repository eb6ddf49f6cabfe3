"""Changes of copies: tensors in pinned memory go to the GPU without the script waiting for it."""

import functools
import sys
from typing import Any, Set, Tuple


class Copies:
    """``.to(device)`` and ``.cuda()`` of a pinned host tensor get non_blocking=True.

    The GPU works in order, so what follows sees the copy done. A tensor in ordinary memory is left: its copy is staged
    anyway. The other direction is left, too: there the script would read what has not come yet.
    """

    KEYS = ("non_blocking",)

    def __init__(self, changes: Any) -> None:
        self._changes, self._torch = changes, changes.torch
        self._seen: Set[Tuple[Any, int]] = set()

    def place(self) -> None:
        if "non_blocking" not in self._changes.wanted:
            return
        if not self._torch.cuda.is_available():
            self._changes.refuse("non_blocking", "there is no GPU")
            return
        tensor = self._torch.Tensor
        compiling = getattr(getattr(self._torch, "compiler", None), "is_compiling", lambda: False)
        tensor.to = self._around(tensor.to, compiling, self._to_a_gpu)
        tensor.cuda = self._around(tensor.cuda, compiling, lambda args, kwargs: True)

    def _around(self, original: Any, compiling: Any, to_a_gpu: Any) -> Any:
        @functools.wraps(original)
        def copy(tensor: Any, *args: Any, **kwargs: Any) -> Any:
            if compiling():
                return original(tensor, *args, **kwargs)
            try:
                if (
                    not tensor.is_cuda
                    and not self._goes_on_already(kwargs)
                    and not any(isinstance(arg, bool) for arg in args)
                    and to_a_gpu(args, kwargs)
                    and tensor.is_pinned()
                ):
                    kwargs["non_blocking"] = True
                    self._note(sys._getframe(1))
            except Exception as error:  # noqa: BLE001
                self._changes.failed(self.KEYS, error)
            return original(tensor, *args, **kwargs)

        return copy

    def _goes_on_already(self, kwargs: Any) -> bool:
        if not kwargs.get("non_blocking"):
            return False
        self._changes.refuse("non_blocking", "the script's copies are non_blocking already")
        return True

    def _to_a_gpu(self, args: Any, kwargs: Any) -> bool:
        where = kwargs.get("device", kwargs.get("other", args[0] if args else None))
        if isinstance(where, str):
            return where.startswith("cuda")
        if isinstance(where, int) and not isinstance(where, bool):
            return True
        device = where if isinstance(where, self._torch.device) else getattr(where, "device", None)
        return getattr(device, "type", None) == "cuda"

    def _note(self, frame: Any) -> None:
        key = (frame.f_code, frame.f_lineno)
        if key not in self._seen:
            self._seen.add(key)
            self._changes.apply("non_blocking", self._changes.where.here())
