"""Events: the evidence of a run, made and read here alone (schema: schema.py).

Standard library only, Python >= 3.8: the agent carries this package into containers.
"""

from seatrial.events.read import *  # noqa: F403
from seatrial.events.schema import *  # noqa: F403
from seatrial.events.write import *  # noqa: F403
