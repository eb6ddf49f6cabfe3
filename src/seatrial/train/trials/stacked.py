"""placeholder"""

from seatrial.train.trials.losses import GROUPED

KERNELS = GROUPED


def unfit(networks, shape, precision):
    return "not yet"
