"""What Horovod has and its stand-in has not: one sentence, and what to do instead."""

from typing import NoReturn


class NotInStandIn(ModuleNotFoundError, NotImplementedError):
    """A part of Horovod that is not here; ``except ModuleNotFoundError`` is how some scripts do without."""


def refuse(what: str, instead: str) -> NoReturn:
    """Raises NotInStandIn."""
    raise NotInStandIn(
        "%s is not here: Horovod is not installed, and seatrial's stand-in has horovod.torch alone. Instead: %s"
        % (what, instead)
    )


def refuse_tensorflow(what: str) -> NoReturn:
    """Raises NotInStandIn."""
    refuse(what, "build the model under tf.distribute.MirroredStrategy().scope(), then: seatrial run --gpus 2 train.py")


def refuse_elastic() -> NoReturn:
    """Raises NotInStandIn."""
    refuse(
        "horovod.torch.elastic", "save checkpoints, and let lost ranks start again: seatrial run --restarts 3 train.py"
    )
