"""Notifications of a desktop: notify-send (freedesktop.org) or osascript (macOS), where there is one."""

from __future__ import annotations

import html
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from seatrial.errors import SeatrialError
from seatrial.system import command

_TIMEOUT_S = 20.0

#: Title and text as arguments, so that nothing in them is read as AppleScript.
_APPLESCRIPT = "on run argv\ndisplay notification (item 2 of argv) with title (item 1 of argv)\nend run"


def why_none(environ: Mapping[str, str]) -> str | None:
    """Why nothing can be shown here, in words; None where something can."""
    path = environ.get("PATH")
    if shutil.which("osascript", path=path):
        return None
    if not shutil.which("notify-send", path=path):
        return "neither notify-send nor osascript is installed"
    if environ.get("DBUS_SESSION_BUS_ADDRESS") or Path(f"/run/user/{os.getuid()}/bus").exists():
        return None
    return "there is no desktop session (DBUS_SESSION_BUS_ADDRESS is not set)"


def nothing_to_show_on(asked: bool, environ: Mapping[str, str]) -> list[str]:
    """The warning that is due before anything begins whose end a desktop is to show."""
    why = why_none(environ) if asked else None
    return [f"--notify desktop will show nothing here: {why}"] if why else []


def show(title: str, text: str, environ: Mapping[str, str]) -> str | None:
    """Show it; what went wrong, or None."""
    if (why := why_none(environ)) is not None:
        return f"nothing was shown: {why}"
    path = environ.get("PATH")
    if program := shutil.which("osascript", path=path):
        argv = [program, "-e", _APPLESCRIPT, title, text]
    else:
        # Servers may read the text as markup: https://specifications.freedesktop.org/notification-spec/1.2/markup.html
        argv = [shutil.which("notify-send", path=path) or "notify-send", "--app-name", "seatrial", "--", title]
        argv.append(html.escape(text, quote=False))
    try:
        ended = command.run(argv, timeout_s=_TIMEOUT_S, env=environ)
    except (OSError, SeatrialError) as error:
        return f"nothing was shown: {error}"
    return None if ended.exit_code == 0 else f"nothing was shown: {ended.last_line()[:200]}"
