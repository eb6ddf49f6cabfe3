"""python -m seatrial.serve --model SPEC [--name NAME] [--host H] [--port N] …

Exit codes: 0 after SIGTERM, with everything answered that had come; 1 for a model that cannot be served, or one that is
lost while it is served.
"""

from __future__ import annotations

import io
import os
import sys
from typing import NoReturn

from seatrial.serve.errors import ServeError
from seatrial.serve.options import TOKEN_VARIABLE, parse
from seatrial.serve.program import Open, Program, open_on_device, started_s


def main(open_model: Open = open_on_device) -> int:
    """The exit code."""
    options = parse(sys.argv[1:], os.environ.pop(TOKEN_VARIABLE, None))
    if isinstance(sys.stdout, io.TextIOWrapper):  # what a class of the user's prints is seen when it is printed
        sys.stdout.reconfigure(line_buffering=True)
    try:
        return Program(options, started_s(), open_model).run()
    except ServeError as error:
        print(f"seatrial serve: {error.message}", file=sys.stderr)
        if error.fix:
            print(f"  fix: {error.fix}", file=sys.stderr)
        return 1


def end(code: int) -> NoReturn:
    """Everything has been answered and told; to take torch down would cost half a second of CPU more."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    end(main())
