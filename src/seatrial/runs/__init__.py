"""The lifecycle: plan, launch, watch, finalise. Every run is a folder; any process can pick it up again."""

import sys

from seatrial import CallableModule

sys.modules[__name__].__class__ = CallableModule
