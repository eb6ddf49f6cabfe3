"""Consent: what a project's file asks for beyond its folder and a container is shown, asked once, and remembered."""

from __future__ import annotations

import sys
from collections.abc import Mapping

import click

from seatrial.cli.screens.problems import WITH_TRUST
from seatrial.cli.screens.run import Screen
from seatrial.errors import DiskError, TrustError
from seatrial.job.model import Job
from seatrial.system.trust import TrustStore


def require_consent(
    job: Job, environ: Mapping[str, str], screen: Screen, *, trust: bool, building: bool = False
) -> None:
    """Return when the user has allowed what the project asks for, now or before. An ordinary project asks nothing.

    Args:
        trust: ``--trust``: allowed without a question.
        building: only an image is built; wishes that no build acts on are not asked about.

    Raises TrustError: refused, or nobody is there to be asked.
    """
    if not job.asks or (building and not any(ask.builds for ask in job.asks)):
        return
    store = TrustStore(environ)
    lines = [ask.remembered for ask in job.asks]
    if store.allows(job.project, lines):
        return
    if store.problem:
        screen.say(f"warning: {store.problem}")
    if not trust:
        _ask(job, screen)
    try:
        store.allow(job.project, lines)
    except DiskError as error:  # allowed all the same; the next run asks again
        screen.say(f"warning: your answer was not saved: {error.message}")


def _ask(job: Job, screen: Screen) -> None:
    wishes = [ask.words for ask in job.asks]
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise TrustError(
            "This project needs permissions that were not granted yet, and there is no terminal to ask on",
            cause="\n    ".join(["it requests:", *wishes]),
            run=WITH_TRUST,
        )
    screen.asks(wishes)
    if not click.confirm("Allow this? You will be asked again if any line changes", default=False, err=True):
        raise TrustError("Not started: the requested permissions were denied", run="seatrial plan …   # lists it")
