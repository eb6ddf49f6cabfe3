"""Stand in for ``horovod`` where it is not installed: its torch API, on torch.distributed.

It prints that it is not Horovod when it starts. Parts other than ``horovod.torch`` are refused by name.
"""

import sys
from typing import Any, NoReturn

#: The release of Horovod whose API ``horovod.torch`` follows. Source: horovod/__init__.py on GitHub, 2023.
__version__ = "0.28.1"

_TENSORFLOW = "build the model under tf.distribute.MirroredStrategy().scope(), then: seatrial run --gpus 2 train.py"
_CALL = "seatrial starts the ranks; call the training function itself, then: seatrial run --gpus 2 train.py"

#: Part of Horovod → the way without it.
_REFUSED = {
    "horovod.keras": _TENSORFLOW,
    "horovod.mxnet": "name an image that has Horovod: seatrial run --image IMAGE train.py",
    "horovod.ray": _CALL,
    "horovod.run": _CALL,
    "horovod.runner": "seatrial starts the ranks: seatrial run --gpus 2 train.py",
    "horovod.spark": "train with horovod.torch from files that Spark has written, then: seatrial run --gpus 2 train.py",
    "horovod.tensorflow": _TENSORFLOW,
    "horovod.torch.elastic": "save checkpoints, and let lost ranks start again: seatrial run --restarts 3 train.py",
}


class NotInStandIn(ModuleNotFoundError, NotImplementedError):
    """A missing part of Horovod. Scripts that can do without catch ModuleNotFoundError."""


def refuse(part: str, instead: str = "") -> NoReturn:
    """Raise NotInStandIn, with the way without this part."""
    raise NotInStandIn(
        "%s is not here: Horovod is not installed, and seatrial's stand-in has the torch API that training scripts "
        "use. Instead: %s" % (part, instead or _REFUSED[part])
    )


class _Refusals:
    """Refuse the import of the missing parts."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> None:
        if name in _REFUSED:
            refuse(name)


sys.meta_path.insert(0, _Refusals)


def run(*args: Any, **kwargs: Any) -> None:
    """Raise NotInStandIn."""
    refuse("horovod.run")
