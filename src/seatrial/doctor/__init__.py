"""The GPU-container chain, looked at link by link: what is broken first, why, and the command that fixes it."""

import sys

from seatrial.room import CallableRoom

sys.modules[__name__].__class__ = CallableRoom
