"""Compare the container's mounts with what the host opened: engines mount by path, which may have changed by then."""

import json
import os
import signal
from typing import Dict, List, Optional, Tuple

Identities = Dict[str, Optional[List[int]]]


def stand_before(orders: str, argv: List[str], archive: str) -> str:
    """Compare the mounts of a service that becomes no run, and become its own command; return why it cannot start."""
    with open(orders, encoding="utf-8") as file:
        whole = json.load(file)
    swapped, _ = compare(whole["mounts"], archive)
    if swapped is not None:
        return "%s shows another file or folder than the one that was checked: nothing was started" % swapped
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # Python ignores it, which what is executed would inherit
    with open("/proc/self/environ", "rb") as file:  # as the engine set it: Python adds LC_CTYPE
        env = dict(each.split(b"=", 1) for each in file.read().split(b"\0") if b"=" in each)
    env.update((name.encode(), value.encode()) for name, value in whole["env"].items())
    try:
        os.execvpe(argv[0], argv, env)
    except OSError as error:
        return "%s cannot be run: %s" % (argv[0], error.strerror)


def compare(mounts: Identities, archive: str) -> Tuple[Optional[str], Optional[str]]:
    """Return (target that shows something else, why others could not be compared), each None if there is none.

    Args:
        archive: the agent's own, which no container can replace: it differs where the engine has another kernel.
    """
    if mounts.get(archive) and _seen(archive, mounts) != mounts[archive]:
        return None, "the engine runs in a virtual machine"
    unseen = []
    for target in mounts:
        try:
            if not _is_as_opened(target, mounts):
                return target, None
        except PermissionError:  # no process of this user gets there
            unseen.append(target)
        except OSError:
            return target, None
    return None, "the container's user cannot reach %s" % ", ".join(unseen) if unseen else None


def _is_as_opened(target: str, mounts: Identities) -> bool:
    seen, wanted = _seen(target, mounts), mounts[target]
    if wanted is None:
        return bool(seen) and seen[0] != os.stat(os.path.dirname(target)).st_dev
    return seen == wanted


def _seen(target: str, mounts: Identities) -> List[int]:
    """Return device and inode at a path that no link leads away from: an image may have links above it, a mount not."""
    around = [other for other in mounts if target.startswith(other.rstrip("/") + "/")]
    trusted = max(around, key=len) if around else os.path.dirname(target)
    place = os.path.join(os.path.realpath(trusted), os.path.relpath(target, trusted))
    if os.path.realpath(place) != place:
        return []
    found = os.stat(place, follow_symlinks=False)
    return [found.st_dev, found.st_ino]
