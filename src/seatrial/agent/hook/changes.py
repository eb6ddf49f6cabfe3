"""Apply the changes that SEATRIAL_TUNE lists to a script from outside.

Each file ``change_*.py`` applies some keys. The report ``tuned`` has what was done, what was not and why, and at which
lines, after the first optimizer step, and again when it has changed. An error in here refuses a key and is not the
script's.
"""

import importlib
import json
import os
import sys
import sysconfig
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Set

from . import report
from .change_loader import LoaderChanges
from .change_model import Models
from .change_torch import BackendChanges, Copies, Optimizers, Parallel
from .report import in_short

_HERE = os.path.dirname(os.path.abspath(__file__))

#: Most frames searched, outwards. Trainers are about thirty deep.
_DEEPEST = 80


class ScriptLine(NamedTuple):
    """One line of the script.

    Attributes:
        name: ``train.py:31``, from the folder that the script was started in.
        package: the installed one that the script called there and that made the call in the end; None: the script did.
    """

    name: str
    package: Optional[str]


class CallSites:
    """Distinguishes the script's own files from those of Python and of installed packages."""

    def __init__(self) -> None:
        self._folder = os.getcwd()
        paths = sysconfig.get_paths()
        library = [paths[key] for key in ("stdlib", "platstdlib") if paths.get(key)]
        self._foreign: List[str] = [folder + os.sep for folder in [*library, _HERE]]
        self._own: Dict[str, bool] = {}

    def here(self) -> Optional[ScriptLine]:
        """Return the script's own line that this call came from; None in a thread that no such line has begun."""
        frame: Any = sys._getframe(1)
        library: Optional[str] = None
        for _ in range(_DEEPEST):
            if frame is None:
                return None
            path = frame.f_code.co_filename
            if self.own(path):
                return ScriptLine("%s:%d" % (self.named(path), frame.f_lineno), library)
            library = package_of(path) or library
            frame = frame.f_back
        return None

    def own(self, path: str) -> bool:
        """Return whether a file belongs to the script: neither Python's nor installed nor ours."""
        known = self._own.get(path)
        if known is None:
            whole = os.path.abspath(path)
            installed = "site-packages" in whole or "dist-packages" in whole
            foreign = installed or path.startswith("<") or any(whole.startswith(folder) for folder in self._foreign)
            known = self._own[path] = not foreign
        return known

    def named(self, path: str) -> str:
        """Return the file's path relative to the folder that the script was started in, whole if it is elsewhere."""
        whole = os.path.realpath(path)
        name = os.path.relpath(whole, os.path.realpath(self._folder))
        return whole if name.startswith("..") else name


def package_of(path: str) -> Optional[str]:
    """Return the installed package of a file; None for torch's own, which everything goes through."""
    for folder in ("site-packages", "dist-packages"):
        _, found, rest = path.rpartition(folder + os.sep)
        if found:
            name = rest.split(os.sep)[0]
            return None if name in ("torch", "torch.py") else name
    return None


#: Lines reported for one key, at most.
_MOST_PLACES = 8

#: The one list of changes, which install.py copies into this folder (seatrial.common.tunables).
_TUNABLES = __package__ + ".tunables"


def begin(torch: Any) -> None:
    """Place the changes that $SEATRIAL_TUNE, a JSON object, requests. Raises nothing."""
    try:
        wanted = json.loads(os.environ.get("SEATRIAL_TUNE") or "{}")
        if not isinstance(wanted, dict):
            raise ValueError("not an object")
    except ValueError as error:
        report.write("tuned", {"applied": {}, "refused": {"changes": "cannot be read: %s" % error}, "places": {}})
        return
    changes = Changes(torch, wanted)
    _BEGUN[:] = [changes]
    if not hasattr(sys.modules["torch.optim.optimizer"], "register_optimizer_step_pre_hook"):
        for key in changes.wanted:
            changes.refuse(key, "torch %s is older than 2.0" % torch.__version__)
        changes.report()
        return
    for part in (LoaderChanges, Copies, BackendChanges, Optimizers, Parallel, Models):
        changes.place(part)


def refused(key: str) -> bool:
    """Return whether this change was requested and not made."""
    return any(key in each.refused and key not in each.pending for each in _BEGUN)


_BEGUN: List["Changes"] = []


class Changes:
    """The requested changes, and the outcome of each.

    Attributes:
        wanted: key → value.
        refused: key → why not, in a sentence without its stop.
        pending: keys that are done later than at the first step.
        at_training: called with the first module that is called for training.
        before_ddp: called with a module that DDP is about to spread.
        after_step: called behind each optimizer step.
        evaluating: whether the models are in evaluation now.
    """

    #: Keys whose parts need to know of the model.
    NEED_A_MODULE = (*BackendChanges.KEYS, *LoaderChanges.KEYS)

    def __init__(self, torch: Any, wanted: Dict[str, Any]) -> None:
        self.torch = torch
        self.wanted = {key: value for key, value in wanted.items() if value not in (None, False)}
        self._not_seen = {each.key: each.not_seen for each in importlib.import_module(_TUNABLES).TUNABLES}
        self.where = CallSites()
        self.refused: Dict[str, str] = {}
        self._applied: Dict[str, Any] = {}
        self._places: Dict[str, List[str]] = {}
        self._libraries: Dict[str, str] = {}
        self._changed = True
        self._stepped = False
        self.pending: Set[str] = set()
        self.at_training: Callable[[Any], None] = lambda module: None
        self.before_ddp: Callable[[Any], None] = lambda module: None
        self.after_step: Callable[[], None] = lambda: None
        self.evaluating: Callable[[], bool] = lambda: False
        main = getattr(sys.modules.get("__main__"), "__file__", None)
        if main and self.where.own(main):
            self.hint("main", "%s:1" % self.where.named(main))
        for key in self.wanted:
            if key not in self._not_seen:
                self.refuse(key, "no such change")

    def place(self, part: Any) -> None:
        """Let a part place its patches; refuse its keys if it cannot."""
        try:
            part(self).place()
        except Exception as error:  # noqa: BLE001  never the script's trouble
            self.failed(part.KEYS, error)

    def failed(self, keys: Any, error: BaseException) -> None:
        """Refuse the changes that an error of ours interrupted."""
        for key in keys:
            if key in self.wanted:
                self.refuse(key, in_short(error))

    def apply(self, key: str, place: Optional[ScriptLine] = None) -> None:
        """Record that this change is made, at ``place``."""
        if key not in self._applied:
            self._applied[key] = self.wanted[key]
            self._changed = True
        self.refused.pop(key, None)
        self.seen(key, place)
        self._report_if_late()

    def refuse(self, key: str, why: str) -> None:
        """Record why this change is not made, unless it was made elsewhere in the script."""
        if key in self.wanted and key not in self._applied and self.refused.get(key) != why:
            self.refused[key] = why
            self._changed = True
            self._report_if_late()

    def conclude(self, key: str, why: Optional[str], place: Optional[ScriptLine] = None) -> None:
        """Record that a change was made here, or ``why`` it was not."""
        if why is None:
            self.apply(key, place)
        else:
            self.refuse(key, why)
            self.seen(key, place)

    def take_back(self, key: str, why: str) -> None:
        """Record that a change has been undone."""
        self._applied.pop(key, None)
        self.refuse(key, why)

    def seen(self, key: str, place: Optional[ScriptLine]) -> None:
        """Record a line that concerns ``key``: one of the table, or ``model`` (its call), ``model_to`` (its move)."""
        if place is None:
            return
        if place.package is not None:
            self._libraries.setdefault(key, place.package)
        self.hint(key, place.name)

    def hint(self, key: str, word: str) -> None:
        """Record a word that helps to write a change into the script, such as the kind of the model's ``outputs``."""
        words = self._places.setdefault(key, [])
        if word not in words and len(words) < _MOST_PLACES:
            words.append(word)
            self._changed = True

    def stepped(self) -> None:
        """Record an optimizer's step: after the first, refuse the changes whose place was not seen."""
        self.after_step()
        if not self._stepped:
            for key in self.wanted:
                if key not in self.refused and key not in self.pending:
                    self.refuse(key, self._not_seen[key])
            self._stepped = True
        if self._changed:
            self.report()

    def _report_if_late(self) -> None:
        """Report after the first step at once: torch.compile, up to torch 2.2 at least, removes the step hooks."""
        if self._stepped and self._changed:
            self.report()

    def report(self) -> None:
        self._changed = False
        cuda = self.torch.cuda
        if "batch_size" in self.wanted and "gpu_bytes" not in self._places and cuda.is_initialized():
            # The allocator could have of this GPU: the free part and its own, and no more than --gpu-memory.
            able = int(cuda.mem_get_info()[0]) + int(cuda.memory_reserved())
            limit = int(os.environ.get("SEATRIAL_GPU_MEMORY_BYTES") or 0)
            self.hint("gpu_bytes", str(min(able, limit) if limit else able))
            self._changed = False
        line: Dict[str, Any] = {"applied": self._applied, "refused": self.refused, "places": self._places}
        if self._libraries:
            line["libraries"] = self._libraries
        report.write("tuned", line)
