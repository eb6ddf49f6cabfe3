"""What a container runs with: shared memory, the key ``version``, limits that GPUs do not have."""

from __future__ import annotations

import re
from collections.abc import Iterator

from seatrial.pipelines.compose.gpu_asks import gpu_ask
from seatrial.pipelines.compose.lines import Place
from seatrial.pipelines.compose.reading import ComposeFile
from seatrial.pipelines.compose.remark import Edit, Remark
from seatrial.pipelines.compose.service import Service
from seatrial.system.project_files import is_there, read_bytes

#: DataLoader workers in a script's text, or in a command's words.
_WORKERS_IN_CODE = re.compile(rb"num_workers\s*=\s*(?!0\b)[\w(]")
_WORKERS_IN_WORDS = re.compile(r"--?(num[-_]?workers|workers|n[-_]?workers)[ =](?!0\b)\d")

#: Frameworks whose trainers start workers unless told otherwise.
_TRAINERS = re.compile(r"\b(yolo|ultralytics|torchrun|accelerate launch|lightning|deepspeed|tune run)\b")

#: Scripts that end by themselves.
_TRAINING = re.compile(r"\b(train|finetune|fine_tune|fit|preprocess|export)\w*\.py")

_MOST_FILES, _MOST_BYTES = 20, 200_000


def _version(file: ComposeFile) -> Iterator[Remark]:
    for document in file.lines.documents:
        place = type(file.lines)([document]).place("version")
        if type(file.lines)([document]).has("version"):
            yield Remark(
                place,
                "version-ignored",
                "hint",
                "version: has no meaning any more; Compose ignores it and warns of it",
                "leave the line out",
                (Edit(place, place.line, place.line, ()),),
            )


def _small_shared_memory(file: ComposeFile) -> Iterator[Remark]:
    """An engine gives /dev/shm 64 MB; batches of DataLoader workers pass through it, and end in "Bus error"."""
    for name, service in file.services.items():
        if service.config.get("shm_size") or service.config.get("ipc") or _mounts_shm(service):
            continue
        if (why := _workers(file, service)) is not None:
            at = file.place(name)
            node = file.lines.node("services", name)
            indent = "" if node is None or getattr(node, "flow_style", True) else " " * node.start_mark.column
            edits = (Edit(at, at.line + 1, at.line, (f"{indent}shm_size: 2gb",)),) if indent else ()
            yield Remark(
                at,
                "shm-size",
                "warning",
                f"{name} has 64 MB of shared memory, and uses DataLoader workers ({why}): they end in a bus error",
                "shm_size: 2gb",
                edits,
            )


def _mounts_shm(service: Service) -> bool:
    tmpfs = [str(each).partition(":")[0] for each in service.config.get("tmpfs") or ()]
    return "/dev/shm" in tmpfs or any(volume.target == "/dev/shm" for volume in service.volumes)


def _workers(file: ComposeFile, service: Service) -> str | None:
    """Where it shows that it uses workers, or None."""
    words = service.words
    match = _WORKERS_IN_WORDS.search(words)
    if match and match[1] == "workers" and not service.is_task:
        match = None  # a server's own processes: gunicorn, uvicorn, mlflow server
    if match := match or (_TRAINERS.search(words) if gpu_ask(file, service) else None):
        return match[0]
    for path in [] if service.context is None else sorted(service.context.glob("*.py"))[:_MOST_FILES]:
        if path.name in words and is_there(path):
            text = read_bytes(path, inside=None, limit_bytes=_MOST_BYTES)
            if match_in := _WORKERS_IN_CODE.search(text):
                line = text.count(b"\n", 0, match_in.start()) + 1
                return f"{path.name}:{line}"
    return None


def _restarted_task(file: ComposeFile) -> Iterator[Remark]:
    """A training that ends well and is started again, for ever."""
    for name, service in file.services.items():
        restart = service.config.get("restart")
        if restart not in ("always", "unless-stopped") or service.ports or service.config.get("healthcheck"):
            continue
        if gpu_ask(file, service) and _TRAINING.search(service.words):
            yield Remark(
                file.place(name, "restart"),
                "trains-for-ever",
                "warning",
                f"{name} is started again whenever it has ended well: restart: {restart}",
                "restart: on-failure",
            )


def _unset_variables(file: ComposeFile) -> Iterator[Remark]:
    """Compose puts nothing in their place, and goes on."""
    lines = [(each.path, n, text) for each in file.lines.documents for n, text in enumerate(each.text.split("\n"), 1)]
    for name in file.unset:
        used = re.compile(rf"(?<!\$)\$(\{{{name}\b|{name}\b)")
        place = next((Place(path, n) for path, n, text in lines if used.search(text)), Place(file.path, 1))
        message = f"the variable {name} is not set: Compose leaves its place empty"
        yield Remark(place, "variable-unset", "warning", message, f"export {name}=…   # or ${{{name}:-default}}")


RULES = (_version, _small_shared_memory, _restarted_task, _unset_variables)
