"""Runs whose record somebody has changed, and every verb that reads one; a child process for the limits of memory."""

from __future__ import annotations

import asyncio
import io
import json
import os
import random
import re
import resource
import shutil
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from starlette.requests import Request

from seatrial import cli
from seatrial.monitor.app import Api, Feed
from seatrial.monitor.prometheus import Exposition
from seatrial.runs.live import live_runs
from seatrial.runs.store import Projects, RunStore
from seatrial.system.names import Names

#: A verb that takes longer hangs: seconds of processor, and of the clock (it may wait for nothing).
MOST_CPU_S, MOST_S = 2.0, 60.0

MOST_MEMORY_BYTES = 300 << 20

#: Only a bomb meets this one: the kernel counts what is reserved, too.
MOST_RESERVED_BYTES = 4 << 30

VALUES: list[Any] = [
    None, True, False, 0, -1, 3, 1.5, 10**30, -(10**400), float("nan"), float("inf"), 1e308, "", "x", "x" * 100_000,
    "\x1b[8m\u202e\n[✓] forged", "\ud800", "../../etc/passwd", [], {}, [[]], [None, 1], {"a": {"b": []}}, ["x"] * 1000,
]  # fmt: skip

JSONS = ("summary.json", "receipt.json", "plan.json", "handle.json", "agent.json", "launcher.json", "seal.json")
LOGS = ("stdout.log", "stderr.log", "output.idx", "events.jsonl")
OTHERS = (
    "name", "receipt.html", "receipt.md", "notified.txt", "notify.json", ".finalise.lock", ".adopt.lock",
    "collect.lock", "agent.out", "container.id",
)  # fmt: skip


def _socket(path: Path) -> None:
    path.unlink(missing_ok=True)
    before = Path.cwd()
    os.chdir(path.parent)  # an address has 108 bytes
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(path.name)
    os.chdir(before)


def _sparse(path: Path) -> None:
    with path.open("ab") as file:
        file.truncate(1 << 30)


def _device(path: Path) -> None:
    try:
        os.mknod(path, 0o600 | 0o020000, os.makedev(1, 5))  # /dev/zero
    except PermissionError:
        path.symlink_to("/dev/zero")


#: In place of a file.
PLANTED: dict[str, Callable[[Path], object]] = {
    "a link": lambda path: path.symlink_to("/etc/passwd"),
    "a link to nothing": lambda path: path.symlink_to("nothing"),
    "a link to itself": lambda path: path.symlink_to(path.name),
    "a FIFO": os.mkfifo,
    "a socket": _socket,
    "a device": _device,
    "a folder": Path.mkdir,
    "nothing": lambda path: None,
    "an empty file": Path.touch,
    "1 GB of zeros": _sparse,
    "deep JSON": lambda path: path.write_text("[" * 200_000 + "]" * 200_000),
    "deep objects": lambda path: path.write_text('{"a":' * 100_000 + "1" + "}" * 100_000),
    "giant JSON": lambda path: path.write_bytes(b"[" + b"[]," * 9_000_000 + b"1]"),
    "a giant object": lambda path: path.write_bytes(b'{"id":"' + b"x" * (9 << 20) + b'"}'),
    "a giant number": lambda path: path.write_text('{"gpus": ' + "9" * 100_000 + "}"),
    "no UTF-8": lambda path: path.write_bytes(b'{"\xff\xfe": "\x80"}\n'),
    "a list": lambda path: path.write_text("[]"),
    "a text": lambda path: path.write_text('"x"'),
    "null": lambda path: path.write_text("null"),
    "many lines": lambda path: path.write_bytes(b"{}\n" * 300_000),
    "one line": lambda path: path.write_bytes(b"x" * (4 << 20)),
    "huge chunks": lambda path: path.write_bytes(b"1.0 1 999999999999999\n1.0 2 %s\n" % (b"9" * 5000)),
}


def _places(data: Any) -> Iterator[tuple[Any, Any]]:
    """(container, key) of every value below."""
    for key in data if isinstance(data, dict) else range(len(data)) if isinstance(data, list) else ():
        yield data, key
        yield from _places(data[key])


def _other_value(text: bytes, choose: random.Random) -> bytes:
    data = json.loads(text)
    places = list(_places(data))
    container, key = choose.choice(places)
    if choose.random() < 0.1:
        del container[key]
    else:
        container[key] = choose.choice(VALUES)
    return json.dumps(data).encode("utf-8", "surrogatepass")


def mutate(folder: Path, choose: random.Random) -> str:
    """Change a record; return how. A half of the runs has not ended: plan, handle and evidence count there."""
    words = []
    if choose.random() < 0.35:
        (folder / "summary.json").unlink()
        words.append("no summary")
    for _ in range(choose.choice((1, 1, 1, 2, 3))):
        name = choose.choice((*JSONS * 2, *LOGS, *OTHERS))
        path = folder / name
        way = choose.random()
        known = path.is_file() and not path.is_symlink() and path.stat().st_size < 1 << 20
        if known and name in JSONS and way < 0.6:
            try:
                path.write_bytes(_other_value(path.read_bytes(), choose))
            except (ValueError, IndexError, RecursionError):
                continue
            words.append(f"{name}: another value")
        elif known and name == "events.jsonl" and way < 0.6:
            lines = path.read_bytes().splitlines()
            try:
                at = choose.randrange(len(lines))
                lines[at] = _other_value(lines[at], choose)
            except (ValueError, IndexError, RecursionError):
                continue
            path.write_bytes(b"\n".join(lines) + b"\n")
            words.append(f"{name}: another value")
        elif known and way < 0.7:
            data = bytearray(path.read_bytes() or b"\0")
            for _ in range(choose.randrange(1, 20)):
                data[choose.randrange(len(data))] = choose.randrange(256)
            path.write_bytes(data[: choose.randrange(len(data) + 1)] if choose.random() < 0.3 else data)
            words.append(f"{name}: other bytes")
        else:
            kind = choose.choice(list(PLANTED))
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            path.unlink(missing_ok=True)
            PLANTED[kind](path)
            words.append(f"{name}: {kind}")
    return "; ".join(words)


VERBS = (
    "runs ls", "runs ls --json", "runs show ID", "runs show ID --json", "runs logs ID", "runs logs ID --tail 5",
    "runs compare ID good", "runs verify ID", "runs attach ID", "open ID --print", "explain FOLDER", "runs stop ID",
    "runs exec ID -- true", "runs cp ID:x out", "runs prune --dry-run --keep 1", "runs show bad", "runs show last",
)  # fmt: skip


class Sink(io.RawIOBase):
    """Takes what a verb prints, and keeps its beginning and its end."""

    def __init__(self) -> None:
        self.kept = b""

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self.kept = (self.kept + bytes(data[-65536:]))[-(1 << 17) :]
        return len(data)


class Hang(BaseException):
    pass


def _alarm(number: int, frame: object) -> None:
    raise Hang


def _verb(words: list[str]) -> str:
    sink = Sink()
    kept = sys.stdout, sys.stderr
    sys.stdout = sys.stderr = io.TextIOWrapper(io.BufferedWriter(sink, 1 << 16), "utf-8", errors="backslashreplace")
    try:
        cli._main(words)
        sys.stdout.flush()
    finally:
        sys.stdout, sys.stderr = kept
    return sink.kept.decode("utf-8", "replace")


def _dashboard(store: RunStore, run_id: str) -> str:
    """The answers about runs, as the page asks for them. A defect is one that the API words as such."""
    projects = Projects(store)
    exposition = Exposition(lambda: live_runs(store), interval_s=1.0)
    api = Api(projects, Feed(dict, interval_s=1.0, on_reading=exposition.renew), Names())
    answers = []
    for route, query, parameters in (
        (api._answering(api.runs), "", {}),
        (api._answering(api.run), "", {"id": run_id}),
        (api._answering(api.log), "stream=stdout", {"id": run_id}),
        (api._answering(api.log), "stream=stderr&start=0", {"id": run_id}),
        (api._answering(api.compare), f"run={run_id}&run={run_id}", {}),
        (api.receipt, "", {"id": run_id}),
    ):
        scope = {"type": "http", "method": "GET", "path": "/", "query_string": query.encode(), "headers": [],
                 "path_params": parameters}  # fmt: skip
        response = asyncio.run(route(Request(scope)))
        answers.append(bytes(response.body)[:200] if response.status_code == 500 else b"")
    live_runs(store)
    return b"\n".join(answers).decode("utf-8", "replace")


_OWN_DEFECT = re.compile(r"Internal error|Traceback \(most|cannot be shown: \w+|cannot be read: \w+Error")


def attack(seed: int, project: Path, template: Path, good: str) -> list[str]:
    """Change one run, and let every verb read it; return what is wrong."""
    choose = random.Random(seed)
    store = RunStore(project)
    run_id = f"20261120-231501-{seed:04d}"
    folder = store.root / run_id
    shutil.copytree(template, folder)
    (folder / "name").write_text("bad")
    how = mutate(folder, choose)
    wrong = []
    for words in (*VERBS, "dashboard"):
        argv = words.replace("ID", run_id).replace("FOLDER", str(folder)).split()
        began_s = time.process_time()
        signal.setitimer(signal.ITIMER_REAL, MOST_S)
        try:
            text = _dashboard(store, run_id) if words == "dashboard" else _verb(argv)
        except Hang:
            text = f"Internal error: it hangs at {traceback.format_exc(limit=-2)}"
        except Exception as error:
            text = f"Internal error: {type(error).__name__}: {error} {traceback.format_exc(limit=-3)}"
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        took_s = time.process_time() - began_s
        status = Path("/proc/self/status").read_text()  # ru_maxrss begins with the parent's
        memory = int(status.partition("VmHWM:")[2].split()[0]) * 1024
        where = f"seed {seed} ({how}): {words}"
        if found := _OWN_DEFECT.search(text):
            wrong.append(f"{where}: {text[found.start() : found.start() + 700]}")
        if took_s > MOST_CPU_S and words != "explain FOLDER":  # it reads a log of any size, to its end
            wrong.append(f"{where}: {took_s:.1f} s")
        if memory > MOST_MEMORY_BYTES:
            wrong.append(f"{where}: {memory >> 20} MB")
            break
        if words == "runs ls" and (good not in text or run_id not in text):
            wrong.append(f"{where}: a run is missing in {text[-500:]}")
    shutil.rmtree(folder, ignore_errors=True)
    shutil.rmtree(store.places / run_id, ignore_errors=True)
    return wrong


def main() -> None:
    """Attack with the seeds of a range, in this process: PROJECT TEMPLATE GOOD BEGIN END."""
    resource.setrlimit(resource.RLIMIT_AS, (MOST_RESERVED_BYTES, MOST_RESERVED_BYTES))
    signal.signal(signal.SIGALRM, _alarm)
    project, template, good, begin, end = sys.argv[1:]
    os.chdir(project)
    for seed in range(int(begin), int(end)):
        if wrong := attack(seed, Path(project), Path(template), good):
            print(json.dumps(wrong), flush=True)
            if any(each.endswith(" MB") for each in wrong):  # a peak stays: what comes next cannot be measured
                raise SystemExit(3)


if __name__ == "__main__":
    main()
