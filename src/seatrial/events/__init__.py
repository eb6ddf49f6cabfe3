"""The evidence of a run, made and read here alone; the agent carries it: standard library only, Python >= 3.8."""

from seatrial.events.read import *  # noqa: F403
from seatrial.events.schema import *  # noqa: F403
from seatrial.events.write import *  # noqa: F403
