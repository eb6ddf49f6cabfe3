"""The Python interface: what the command line does, with the same objects.

import seatrial

receipt = seatrial.run("train.py", args=["--epochs", "5"], gpus=1, data="./data")
receipt.criteria["gpu-busy"].passed
receipt.metrics("loss").values
"""

from seatrial.api.doctor import doctor as doctor
from seatrial.api.launching import plan as plan
from seatrial.api.launching import run as run
from seatrial.api.launching import start as start
from seatrial.api.run import Run as Run
from seatrial.api.run import runs as runs
from seatrial.receipt.model import Receipt as Receipt

__all__ = ["Receipt", "Run", "doctor", "plan", "run", "runs", "start"]
