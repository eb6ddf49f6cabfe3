from types import ModuleType

from seatrial.api import Receipt as Receipt
from seatrial.api import Run as Run
from seatrial.api import doctor as doctor
from seatrial.api import plan as plan
from seatrial.api import run as run
from seatrial.api import runs as runs
from seatrial.api import start as start

__version__: str

class CallableModule(ModuleType): ...
