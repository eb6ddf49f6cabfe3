"""Run other programs on the host, in every way that this project needs, and remember the engines' answers."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, NamedTuple, TypeVar
from urllib.parse import unquote

from seatrial.errors import CommandError, CommandTimeoutError, EngineUnavailableError

T = TypeVar("T")

#: Runs us as ``-m`` does, but imports nothing from the current folder: a project may have a json.py.
_OWN = (
    "import sys; sys.path[:] = filter(None, sys.path); "
    "import runpy; runpy.run_module('seatrial', None, '__main__', True)"
)
#: What takes its time now, the newest last, for those who wait.
doing_now: list[str] = []


class Completed(NamedTuple):
    """A command that has ended; ``exit_code`` is negative N when signal N ended it, text "" if not captured."""

    argv: tuple[str, ...]
    exit_code: int
    stdout: str = ""
    stderr: str = ""

    def last_line(self) -> str:
        """Return the last line with text: of stderr, else of stdout, else the exit code."""
        for text in (self.stderr, self.stdout):
            if text.strip():
                return text.rstrip().rpartition("\n")[2].strip()
        return f"exit code {self.exit_code} and no message"


def json_object(text: str | bytes) -> dict[str, Any]:
    """Parse JSON and return its object; {} for any other text."""
    with contextlib.suppress(ValueError, RecursionError):
        if isinstance(found := json.loads(text), dict):
            return found
    return {}


def run(
    argv: Sequence[str],
    *,
    timeout_s: float,
    input: str | None = None,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> Completed:
    """Run to the end and capture both streams. Raises EngineUnavailableError: no program; CommandTimeoutError."""
    try:
        # Standard input is closed unless given, and the terminal is out of reach: a tool that wants a password must
        # fail, not hang. Ctrl-C is for us, who may be stopping a run with this command.
        ended = subprocess.run(
            list(argv),
            input=None if input is None else input.encode(),
            stdin=subprocess.DEVNULL if input is None else None,
            capture_output=True,
            timeout=timeout_s,
            start_new_session=True,
            env=env,
            cwd=cwd,
            check=False,
        )
    except (FileNotFoundError, PermissionError) as error:
        raise _not_there(argv, error) from error
    except subprocess.TimeoutExpired as error:
        problem = f"{argv[0]} did not respond within {timeout_s:g} s"
        raise CommandTimeoutError(problem, argv=argv, exit_code_of_command=-9, stderr=_text(error.stderr)) from error
    return Completed(tuple(argv), ended.returncode, _text(ended.stdout), _text(ended.stderr))


def check(argv: Sequence[str], *, timeout_s: float) -> Completed:
    """Run as ``run`` does; raises CommandError as well when the exit code is not 0."""
    ended = run(argv, timeout_s=timeout_s)
    if ended.exit_code != 0:
        raise failed(ended)
    return ended


def failed(ended: Completed) -> CommandError:
    """Return the error for a command that ended with an exit code other than 0."""
    problem = f"{Path(ended.argv[0]).name} failed: {ended.last_line()}"
    return CommandError(problem, argv=ended.argv, exit_code_of_command=ended.exit_code, stderr=ended.stderr)


def stream(
    argv: Sequence[str],
    on_line: Callable[[str], None],
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    apart: bool = False,
) -> Completed:
    """Run to the end, handing over each line of both streams as it comes; all of it is ``stdout`` of the result.

    An exception, Ctrl-C included, ends the command before it goes on; ``apart``: the terminal's Ctrl-C does not reach
    it, so that its words for that are not taken for output. Raises EngineUnavailableError.
    """
    with contextlib.closing(_lines(argv, env, cwd, apart=apart)) as reading:
        while True:
            try:
                line = next(reading)
            except StopIteration as end:
                completed: Completed = end.value
                return completed
            on_line(line)


def lines(argv: Sequence[str]) -> Iterator[str]:
    """Yield each line of both streams; stopping early ends the command. Raises EngineUnavailableError, CommandError."""
    ended = yield from _lines(argv, None, None)
    if ended.exit_code != 0:
        raise failed(Completed(ended.argv, ended.exit_code, stderr=ended.stdout))


def _lines(
    argv: Sequence[str], env: Mapping[str, str] | None, cwd: Path | None, *, apart: bool = False
) -> Generator[str, None, Completed]:
    kept: list[str] = []
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    with _start(argv, **streams, env=env, cwd=cwd, start_new_session=apart) as process:
        try:
            assert process.stdout is not None
            for raw in process.stdout:
                kept.append(raw.decode(errors="replace").rstrip("\r\n"))
                yield kept[-1]
        except BaseException:
            process.terminate()
            raise
    return Completed(tuple(argv), process.returncode, stdout="\n".join(kept))


def call_interactive(
    argv: Sequence[str],
    *,
    keep_stderr: bool = False,
    withhold: re.Pattern[str] | None = None,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> Completed:
    """Run on the caller's terminal. Ctrl-C reaches the command, which decides. Raises EngineUnavailableError.

    ``keep_stderr``: pass stderr on, but for ``withhold``, which the caller words itself, and keep a copy in the result;
    the command then sees no terminal there.
    """
    stderr = subprocess.PIPE if keep_stderr else None
    kept = bytearray()
    with _start(argv, stdin=None, stderr=stderr, env=env, cwd=cwd) as process:
        while True:
            try:
                if process.stderr is not None:
                    _pass_on(process.stderr.fileno(), kept, withhold)
                process.wait()
                break
            except KeyboardInterrupt:  # the terminal has sent it to the command as well
                continue
    return Completed(tuple(argv), process.returncode, stderr=_text(bytes(kept)))


def own_program(*words: str) -> list[str]:
    """Return a command line of seatrial itself, for any working directory."""
    return [sys.executable, "-c", _OWN, *words]


def install_extra(extra: str) -> str:
    """Return the command that installs an extra of seatrial, from the checkout that it was installed from if any."""
    from importlib.metadata import PackageNotFoundError, distribution  # only for a missing extra

    origin = ""
    with contextlib.suppress(PackageNotFoundError, ValueError):
        origin = str(json.loads(distribution("seatrial").read_text("direct_url.json") or "{}").get("url", ""))
    folder = unquote(origin.removeprefix("file://"))
    name = folder if origin.startswith("file://") and Path(folder, "pyproject.toml").is_file() else "seatrial"
    return f"pip install {shlex.quote(f'{name}[{extra}]')}"


def spawn_detached(
    argv: Sequence[str], *, output: Path, env: Mapping[str, str] | None = None, cwd: Path | None = None
) -> int:
    """Start in its own session, both streams appended to ``output``; return the PID. Raises EngineUnavailableError."""
    with output.open("ab") as file:
        process = _start(argv, stdout=file, stderr=subprocess.STDOUT, start_new_session=True, env=env, cwd=cwd)
    process.returncode = 0  # nobody waits for it through this object, which is not a leak
    return process.pid


class Piped:
    """A command whose stdout is read by descriptor, out of reach of the terminal's Ctrl-C.

    Raises EngineUnavailableError.
    """

    def __init__(self, argv: Sequence[str]) -> None:
        self._process = _start(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True)
        assert self._process.stdout is not None
        self.stdout = self._process.stdout.fileno()

    @property
    def ended(self) -> bool:
        return self._process.poll() is not None

    def wait(self) -> int:
        """Wait for the end, once all output has been read, and return the exit code."""
        return self._process.wait()

    def end(self) -> int:
        """End the command if it has not ended; return its exit code, negative for a signal."""
        if self._process.poll() is None:
            self._process.terminate()
        try:
            return self._process.wait(timeout=5.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()

    def close(self) -> None:
        """End it, and close the pipe. Nobody may be reading any more."""
        self.end()
        assert self._process.stdout is not None
        self._process.stdout.close()


def dialogue(argv: Sequence[str], env: Mapping[str, str]) -> tuple[IO[str], IO[str]]:
    """Start a command that leaves a child, in a session of its own; return its pipes. Raises EngineUnavailableError."""
    pipe, root = subprocess.PIPE, Path("/")
    process = _start(argv, stdin=pipe, stdout=pipe, start_new_session=True, env=env, cwd=root)
    process.wait()
    assert process.stdin is not None
    assert process.stdout is not None
    return io.TextIOWrapper(process.stdin, "utf-8"), io.TextIOWrapper(process.stdout, "utf-8")


def _start(argv: Sequence[str], **settings: Any) -> subprocess.Popen[bytes]:
    """Start a command with settings of Popen; its standard input is /dev/null unless they set one."""
    try:
        return subprocess.Popen(list(argv), **{"stdin": subprocess.DEVNULL, **settings})
    except (FileNotFoundError, PermissionError) as error:
        raise _not_there(argv, error) from error


def _not_there(argv: Sequence[str], error: OSError) -> EngineUnavailableError:
    if error.filename not in (None, argv[0]):  # the working directory, or /dev/null
        verb, place = "open" if error.filename == os.devnull else "enter", shlex.quote(str(error.filename))
        return EngineUnavailableError(f"Cannot {verb} {error.filename}: {error.strerror}", run=f"ls -ld {place}")
    problem = f'"{argv[0]}" cannot be run: {error.strerror}'
    cause = "it is not installed, or not on PATH"
    return EngineUnavailableError(problem, cause=cause, run=f"command -v {shlex.quote(argv[0])}; echo $PATH")


def _pass_on(descriptor: int, kept: bytearray, withhold: re.Pattern[str] | None) -> None:
    """Copy a pipe to our standard error until its end."""
    while chunk := os.read(descriptor, 65536):
        kept += chunk
        if withhold is not None and withhold.search(_text(chunk)):
            continue
        sys.stderr.buffer.write(chunk)
        sys.stderr.flush()


def _text(data: bytes | None) -> str:
    return (data or b"").decode(errors="replace")


@contextmanager
def doing(words: str) -> Iterator[None]:
    """Note what takes its time while open, as ``asking the package index``."""
    doing_now.append(words)
    try:
        yield
    finally:
        doing_now.remove(words)


#: Limit on the age of an engine's answer that one command uses again.
_GOOD_FOR_S = 60.0

_memo_lock = threading.Lock()
_memos_open = 0
_answers: dict[Hashable, tuple[float, object]] = {}


@contextmanager
def remembering() -> Iterator[None]:
    """Remember answers for a minute, in every thread, while the context is open."""
    global _memos_open
    with _memo_lock:
        _memos_open += 1
    try:
        yield
    finally:
        with _memo_lock:
            _memos_open -= 1
            if not _memos_open:
                _answers.clear()


def remembered(question: Hashable, ask: Callable[[], T], worth: Callable[[T], bool]) -> T:
    """Return the answer to a question, an earlier one if that is fresh and ``worth`` it; "not found" is not."""
    with _memo_lock:
        known = _answers.get(question) if _memos_open else None
    if known is not None and time.monotonic() - known[0] < _GOOD_FOR_S:
        answer: T = known[1]  # type: ignore[assignment]  # of the same question
        return answer
    answer = ask()
    with _memo_lock:
        if _memos_open and worth(answer):
            _answers[question] = (time.monotonic(), answer)
    return answer
