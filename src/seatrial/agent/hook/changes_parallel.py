"""Changes of DistributedDataParallel: its buckets."""

from typing import Any

#: Their positions in its constructor, behind the module. They are given by name by everyone.
_BY_NAME = ("bucket_cap_mb", "gradient_as_bucket_view")


class Parallel:
    """Gives DDP's constructor other arguments than the script did."""

    KEYS = _BY_NAME

    def __init__(self, changes: Any) -> None:
        self._changes, self._torch = changes, changes.torch

    def place(self) -> None:
        wanted = self._changes.wanted
        if not any(key in wanted for key in (*self.KEYS, "channels_last")):
            return
        if not self._torch.distributed.is_available():
            return
        parallel = self._torch.nn.parallel.DistributedDataParallel
        original = parallel.__init__
        changes = self._changes

        def __init__(model: Any, module: Any, *args: Any, **kwargs: Any) -> None:
            try:
                self._change(module, args, kwargs)
            except Exception as error:  # noqa: BLE001
                changes.failed(self.KEYS, error)
            original(model, module, *args, **kwargs)

        __init__.__doc__ = original.__doc__
        parallel.__init__ = __init__

    def _change(self, module: Any, args: Any, kwargs: Any) -> None:
        changes = self._changes
        changes.before_ddp(module)
        for key in _BY_NAME:
            if key not in changes.wanted:
                continue
            if kwargs.get(key) == changes.wanted[key]:
                changes.refuse(key, "the script sets it so already")
            elif len(args) > 5:
                changes.refuse(key, "the script gives DistributedDataParallel's arguments by position")
            else:
                kwargs[key] = changes.wanted[key]
                changes.apply(key, changes.where.here())
