"""python -m seatrial.serve --model SPEC [--name NAME] [--host H] [--port N] …

Exit codes: 0 after SIGTERM, with every request that had come answered; 1 for a model that cannot be served, or one that
is lost while it is served.
"""

from __future__ import annotations

import io
import os
import sys
from typing import NoReturn

from seatrial.serve.options import HOSTS_VARIABLE, TOKEN_VARIABLE, parse
from seatrial.serve.supervisor import Open, Supervisor, open_on_device
from seatrial.train.early_start import process_start_s
from seatrial.train.errors import TrainError


def main(open_model: Open = open_on_device) -> int:
    """Serve; return the exit code."""
    options = parse(sys.argv[1:], os.environ.pop(TOKEN_VARIABLE, None), os.environ.get(HOSTS_VARIABLE, ""))
    if isinstance(sys.stdout, io.TextIOWrapper):  # shows what a model's code prints at once
        sys.stdout.reconfigure(line_buffering=True)
    try:
        return Supervisor(options, process_start_s(), open_model).run()
    except TrainError as error:
        print(f"seatrial serve: {error.message}", file=sys.stderr)
        if error.fix:
            print(f"  fix: {error.fix}", file=sys.stderr)
        return 1


def end(code: int) -> NoReturn:
    """Exit without taking torch down, which would cost half a second of CPU: every answer and report is written."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    end(main())
