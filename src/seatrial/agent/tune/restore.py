"""Putting back what a trial changed: the hook's journal (hook/undo_journal.py), from its end to its beginning."""

import os
import shutil
from typing import Any, Dict, List

from seatrial.agent.tune.lines import read

#: New files that nobody wants of a trial. Others, such as a data set that was loaded, are left and told.
_UNWANTED = (".pt", ".pth", ".pth.tar", ".ckpt", ".safetensors")
_UNWANTED_PARTS = ("tfevents",)


def restore(events: str) -> Dict[str, Any]:
    """``{"restored": number of files, "removed": number, "new": [paths left]}``."""
    restored, removed = 0, 0
    new: List[str] = []
    for line in reversed(read(events + ".journal")):
        try:
            if "new" in line:
                path = line["new"]
                stands_in = "empty" in line and os.path.isfile(path) and not os.path.getsize(path)
                if os.path.isfile(path) and (_unwanted(path) or stands_in):
                    os.remove(path)
                    removed += "empty" not in line
                elif os.path.isfile(path):
                    new.append(path)
            elif "copy" in line:
                if os.path.lexists(line["path"]) and _same(line["path"], line["copy"]):
                    os.remove(line["copy"])
                else:
                    os.makedirs(os.path.dirname(line["path"]), exist_ok=True)
                    _put_back(line["copy"], line["path"])
                    restored += 1
            elif os.path.getsize(line["path"]) > line["bytes"]:
                os.truncate(line["path"], line["bytes"])
                restored += 1
        except (OSError, KeyError, TypeError):  # what cannot be put back lies in the trial's folder
            continue
    shutil.rmtree(events + ".files", ignore_errors=True)
    return {"restored": restored, "removed": removed, "new": new[:20]}


def _put_back(copy: str, path: str) -> None:
    """In place: the file may be mounted, or have other names."""
    if os.path.isfile(path):
        shutil.copyfile(copy, path)
        shutil.copystat(copy, path)
    else:
        shutil.move(copy, path)


def _same(path: str, copy: str) -> bool:
    """One file under two names, or the same bytes."""
    if os.path.samefile(path, copy):
        return True
    if os.path.getsize(path) != os.path.getsize(copy):
        return False
    with open(path, "rb") as one, open(copy, "rb") as other:
        while True:
            first = one.read(1 << 20)
            if first != other.read(1 << 20):
                return False
            if not first:
                return True


def _unwanted(path: str) -> bool:
    name = os.path.basename(path)
    return name.endswith(_UNWANTED) or any(part in name for part in _UNWANTED_PARTS)
