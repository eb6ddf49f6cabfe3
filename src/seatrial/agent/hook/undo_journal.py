"""Let a trial of `seatrial tune` write no checkpoint, and note which files the script changes, to be restored.

Python calls an audit hook before it opens, removes or renames a file. What is there is copied aside first and noted in
a journal, from which the driver (agent/tune/trial.py) puts it back when the trial's processes are gone.
"""

import os
import shutil
import sys
import threading
from typing import Any, Callable, Dict, Optional, Set

from .observe import wrap
from .report import append_line

#: Files above this size are not copied: a script that changes such a file in place works on data, hardly on a result.
_MOST_BYTES = 64 << 20

#: Files noted, and files of a folder that is removed whole.
_MOST_FILES = 2000

#: Folders that hold no files of the user.
_NOT_KEPT = ("/dev/", "/proc/", "/sys/")

#: Parts of a path in which torch.compile, Triton and CUDA cache compiled code: no trial need compile it again.
_CACHES = ("/torchinductor_", "/.triton/", "/.nv/ComputeCache/", "/__pycache__/")
_CACHE_VARIABLES = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "CUDA_CACHE_PATH")

_state: Dict[str, Any] = {
    "pid": None,
    "folder": "",
    "seen": set(),
    "skipped": 0,
    "left": [],
    "files": 0,
    "empty": set(),
}
_busy = threading.local()


def begin(torch: Any) -> None:
    """Keep files from now on; nothing without a place for them next to the reports."""
    events = os.environ.get("SEATRIAL_EVENTS")
    _state.update(pid=os.getpid(), folder=events + ".files" if events else "")
    _skip_saving(torch, "save")
    if events and hasattr(sys, "addaudithook"):
        sys.addaudithook(_on_audit_event)


def skip_safetensors(safetensors: Any) -> None:
    """Skip the saving of safetensors.torch as it is imported, before others take its functions by name."""
    _skip_saving(safetensors, "save_file")


def counts() -> Dict[str, Any]:
    """Return the checkpoints not written and the changed files not put back, for the trial's report."""
    return {"skipped": _state["skipped"], "left": _state["left"][:8]}


def _skip_saving(owner: Any, name: str) -> None:
    """Make ``owner.name(what, path)`` write an empty file, and none over a file; into a buffer it writes as ever.

    The empty file is there because a script may rename or link it (timm does).
    """

    def around(original: Any) -> Any:
        def save(*args: Any, **kwargs: Any) -> Any:
            path = args[1] if len(args) > 1 else kwargs.get("f", kwargs.get("filename"))
            if isinstance(path, (str, os.PathLike)):
                _state["skipped"] += 1
                _stand_in(path)
                return None
            return original(*args, **kwargs)

        return save

    wrap(owner, name, around)


def _stand_in(path: Any) -> None:
    """Write an empty file. agent/tune/trial.py removes it in the end, under every name that it was given."""
    try:
        whole = os.path.abspath(os.fsdecode(path))
        if _state["folder"] and _state["pid"] == os.getpid() and not os.path.lexists(whole):
            _state["seen"].add(whole)
            _note_new(whole, whole)
            with open(whole, "ab"):
                pass
    except (OSError, ValueError):  # where it could not be saved either
        pass


def _note_new(path: str, source: str) -> None:
    """Note a new file at ``path``; ``source``: its path before it had this name."""
    if source == path or source in _state["empty"]:
        _state["empty"].add(path)
        _note({"new": path, "empty": True})
    else:
        _note({"new": path})


def _on_audit_event(event: str, args: Any) -> None:
    if event not in _HANDLERS or _state["pid"] != os.getpid() or getattr(_busy, "now", False):
        return
    _busy.now = True
    try:
        _HANDLERS[event](*args)
    except Exception:  # noqa: BLE001  an exception in here would stop what the script does
        pass
    finally:
        _busy.now = False


def _opened(path: Any, mode: Any, flags: Any = 0) -> None:
    if isinstance(path, int) or not isinstance(flags, int) or not flags & (os.O_WRONLY | os.O_RDWR):
        return
    whole = _user_path(path)
    if whole is None:
        return
    if not os.path.lexists(whole):
        if flags & os.O_CREAT:
            _note({"new": whole})
    elif os.path.isfile(whole):
        if flags & os.O_APPEND and not flags & os.O_TRUNC:
            _note({"path": whole, "bytes": os.path.getsize(whole)})
        else:
            _keep(whole, changes_in_place=True)


def _removed(path: Any, dir_fd: Any = -1) -> None:
    whole = _user_path(path) if dir_fd in (-1, None) else None
    if whole is not None and os.path.isfile(whole):
        _keep(whole)


def _renamed(source: Any, to: Any, source_fd: Any = -1, to_fd: Any = -1) -> None:
    _removed(source, source_fd)
    _removed(to, to_fd)
    _linked(source, to, source_fd, to_fd)


def _linked(source: Any, to: Any, source_fd: Any = -1, to_fd: Any = -1) -> None:
    whole = _user_path(to, again=True) if to_fd in (-1, None) else None
    if whole is not None and not os.path.lexists(whole):
        _note_new(whole, os.path.abspath(os.fsdecode(source)))


def _tree_removed(path: Any, dir_fd: Any = None) -> None:
    for parent, _, names in os.walk(os.fsdecode(path)):
        for name in names:
            _removed(os.path.join(parent, name))


_HANDLERS: Dict[str, Callable[..., None]] = {
    "open": _opened,
    "os.remove": _removed,
    "os.rename": _renamed,
    "os.link": _linked,
    "shutil.rmtree": _tree_removed,
}


def _user_path(path: Any, again: bool = False) -> Optional[str]:
    """Return the whole path of a user's file that is seen for the first time; None for one to leave out."""
    whole = os.path.abspath(os.fsdecode(path))
    seen: Set[str] = _state["seen"]
    ours = os.path.dirname(os.environ["SEATRIAL_EVENTS"]) + os.sep
    if (whole in seen and not again) or whole.startswith((*_NOT_KEPT, ours)):
        return None
    caches = [os.path.abspath(folder) + os.sep for folder in map(os.environ.get, _CACHE_VARIABLES) if folder]
    if len(seen) >= _MOST_FILES or any(part in whole for part in _CACHES) or whole.startswith(tuple(caches)):
        return None
    seen.add(whole)
    return whole


def _keep(path: str, changes_in_place: bool = False) -> None:
    """Keep a copy of a file, or a second name for it if it will only lose this one."""
    folder = _state["folder"]
    os.makedirs(folder, exist_ok=True)
    _state["files"] += 1
    copy = os.path.join(folder, "%d-%d" % (os.getpid(), _state["files"]))
    if not changes_in_place:
        try:
            os.link(path, copy)
            _note({"path": path, "copy": copy})
            return
        except OSError:  # another file system
            pass
    if os.path.getsize(path) > _MOST_BYTES:
        _state["left"].append(path)
        return
    shutil.copy2(path, copy)
    _note({"path": path, "copy": copy})


def _note(line: Dict[str, Any]) -> None:
    append_line(os.environ["SEATRIAL_EVENTS"] + ".journal", line)
