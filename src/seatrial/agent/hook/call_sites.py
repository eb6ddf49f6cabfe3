"""CallSites: which line of the script's own files a call came from, and through which library."""

import os
import sys
import sysconfig
from typing import Any, Dict, List, Optional

_HERE = os.path.dirname(os.path.abspath(__file__))

#: Frames looked at, outwards. Trainers are about thirty deep.
_DEEPEST = 80


class CallSite:
    """One line of the script.

    Attributes:
        name: ``train.py:31``, from the folder that the script was started in.
        package: the installed one that the script called there and that made the call in the end; None: the script did.
    """

    __slots__ = ("name", "package")

    def __init__(self, name: str, package: Optional[str]) -> None:
        self.name, self.package = name, package


class CallSites:
    """Tells the script's own files from those of Python and of installed packages."""

    def __init__(self) -> None:
        self._folder = os.getcwd()
        paths = sysconfig.get_paths()
        library = [paths[key] for key in ("stdlib", "platstdlib") if paths.get(key)]
        self._foreign: List[str] = [folder + os.sep for folder in [*library, _HERE]]
        self._own: Dict[str, bool] = {}

    def here(self) -> Optional[CallSite]:
        """The script's own line that this call came from; None in a thread that no line of the script has begun."""
        frame: Any = sys._getframe(1)
        library: Optional[str] = None
        for _ in range(_DEEPEST):
            if frame is None:
                return None
            path = frame.f_code.co_filename
            if self.own(path):
                return CallSite("%s:%d" % (self.named(path), frame.f_lineno), library)
            library = package_of(path) or library
            frame = frame.f_back
        return None

    def own(self, path: str) -> bool:
        """Whether a file belongs to the script: neither Python's nor installed nor ours."""
        known = self._own.get(path)
        if known is None:
            whole = os.path.abspath(path)
            installed = "site-packages" in whole or "dist-packages" in whole
            foreign = installed or path.startswith("<") or any(whole.startswith(folder) for folder in self._foreign)
            known = self._own[path] = not foreign
        return known

    def named(self, path: str) -> str:
        """A file from the folder that the script was started in; its whole path where it is elsewhere."""
        whole = os.path.realpath(path)
        name = os.path.relpath(whole, os.path.realpath(self._folder))
        return whole if name.startswith("..") else name


def package_of(path: str) -> Optional[str]:
    """The installed package a file is of; None for torch's own, which everything goes through."""
    for folder in ("site-packages", "dist-packages"):
        _, found, rest = path.rpartition(folder + os.sep)
        if found:
            name = rest.split(os.sep)[0]
            return None if name in ("torch", "torch.py") else name
    return None
