"""What a script finds as ``horovod`` where Horovod itself is not installed: its torch API, on torch.distributed.

It is not Horovod, and says so when it starts. ``horovod.torch`` is all of it; the rest is refused by name.
"""

from typing import Any

from .refused import refuse

#: The release of Horovod whose API ``horovod.torch`` has here. Source: horovod/__init__.py on GitHub, 2023.
__version__ = "0.28.1"

#: Tells this package from Horovod itself.
STAND_IN = "seatrial"


def run(*args: Any, **kwargs: Any) -> None:
    """Refused: seatrial starts the ranks."""
    refuse("horovod.run", "seatrial starts the ranks; call the function itself, then: seatrial run --gpus 2 train.py")
