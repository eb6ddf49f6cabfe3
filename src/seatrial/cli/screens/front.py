"""The person in front of ``seatrial up`` and ``down``, as the rooms below the command line see them."""

from __future__ import annotations

import os

from seatrial.cli.screens.run import Screen
from seatrial.compose.request import Console
from seatrial.job.model import Job


def front(*, trust: bool = False, as_json: bool = False, whole: bool = False, quiet: bool = False) -> Console:
    """This terminal.

    Args:
        trust: ``--trust``: what the project asks for is allowed without a question.
        whole: builds are shown line by line. quiet: as for Screen.
        as_json: the answer on stdout is JSON; outputs of targets go to stderr.
    """
    screen = Screen(json=as_json, whole=whole, quiet=quiet)

    def allow(job: Job) -> None:
        from seatrial.cli.screens.consent import require_consent  # most have nothing to be asked

        require_consent(job, os.environ, screen, trust=trust)

    return Console(
        say=screen.say,
        building=screen.building,
        write=screen.write,
        show=lambda text: print(text, end="" if text.endswith("\n") else "\n"),
        allow=allow,
    )
