"""TensorBoard over folders of event files: ``python -m served.tensorboard NAME=FOLDER…``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from .mirror import Mirror
from .settings import serve

#: A tmpfs: made anew at each start.
LOGS = Path("/tmp/logs")

#: Seconds between looks for new files, and for new numbers in them; 5 is TensorBoard's default.
_EVERY_S = 2


def main(folders: list[str]) -> int:
    """``NAME=FOLDER`` each; a folder that is not there yet is shown as soon as a run makes it."""
    from tensorboard import default, program
    from tensorboard.util import tb_logging

    LOGS.mkdir(exist_ok=True)
    mirror = Mirror(LOGS, {name: Path(path) for name, _, path in (each.partition("=") for each in folders)})
    mirror.look()
    mirror.keep(_EVERY_S)
    tb_logging.get_logger().setLevel("ERROR")
    board = program.TensorBoard(plugins=default.get_plugins(), server_class=_Server)
    options = {"logdir": LOGS, "reload_interval": _EVERY_S, "window_title": "TensorBoard of seatrial", "port": 8000}
    board.configure(
        argv=["tensorboard", *(word for key, value in options.items() for word in (f"--{key}", str(value)))]
    )
    return int(board.main())


class _Server:
    """TensorBoardServer (tensorboard/program.py) on uvicorn, behind the token."""

    def __init__(self, wsgi_app: Any, flags: Any) -> None:
        self._app = wsgi_app

    def serve_forever(self) -> None:
        from a2wsgi import WSGIMiddleware

        serve(WSGIMiddleware(self._app, workers=16), "tensorboard")

    def get_url(self) -> str:
        return "http://127.0.0.1:8000/"

    def print_serving_message(self) -> None:
        """The host says it."""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
