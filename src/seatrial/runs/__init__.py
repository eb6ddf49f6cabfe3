"""The lifecycle: plan, launch, watch, finalise. Every run is a folder; any process can pick it up again."""

import sys

from seatrial.room import CallableRoom

sys.modules[__name__].__class__ = CallableRoom
