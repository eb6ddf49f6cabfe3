"""``docker compose`` over the user's files and an override: asked, and told what to bring up."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from seatrial.errors import EngineUnavailableError
from seatrial.system import command

#: For questions and for what takes things down: containers get their grace time first.
ANSWER_TIMEOUT_S = 60.0


@dataclass(frozen=True)
class Compose:
    """Compose's command line over some files.

    Attributes:
        call: Compose's program with the engine's global options, e.g. ``("docker", "compose")``.
        files: the user's, in their order; the first one's folder is what paths count from. override: ours, the last.
        wake: makes the engine listen, where it does not always; called before each command.
    """

    call: tuple[str, ...]
    files: tuple[Path, ...]
    environ: Mapping[str, str]
    override: Path | None = None
    wake: Callable[[], None] = lambda: None

    def argv(self, *words: str) -> list[str]:
        """A command line, to be run now. Raises EngineUnavailableError: the engine cannot be made to listen."""
        self.wake()
        files = [*self.files, *([self.override] if self.override else [])]
        return [*self.call, *(word for file in files for word in ("-f", str(file))), *words]

    def with_override(self, override: Path) -> Compose:
        return replace(self, override=override)

    def ask(self, *words: str, timeout_s: float = ANSWER_TIMEOUT_S) -> command.Completed:
        """Run a command of Compose to its end; the caller judges its exit code."""
        return command.run(self.argv(*words), timeout_s=timeout_s, env=self.environ, cwd=self.files[0].parent, input="")

    def version(self) -> tuple[int, ...]:
        """E.g. ``(2, 26, 1)``. Raises EngineUnavailableError: there is no Compose v2."""
        ended = command.run([*self.call, "version", "--short"], timeout_s=ANSWER_TIMEOUT_S, env=self.environ)
        match = re.search(r"(\d+)\.(\d+)(?:\.(\d+))?", ended.stdout)
        if ended.exit_code != 0 or match is None or int(match[1]) < 2:
            raise EngineUnavailableError(
                f"{' '.join(self.call)} is no Compose v2, which a Compose file needs",
                cause=ended.last_line(),
                run="sudo apt-get install docker-compose-plugin   # Ubuntu: docker-compose-v2; Debian: docker-compose",
            )
        return tuple(int(part or 0) for part in match.groups())


def unescaped(value: Any) -> Any:
    """What Compose prints, with ``$$`` as the one dollar that it stands for."""
    if isinstance(value, str):
        return value.replace("$$", "$")
    if isinstance(value, list):
        return [unescaped(each) for each in value]
    if isinstance(value, dict):
        return {key: unescaped(each) for key, each in value.items()}
    return value


def escaped(words: Sequence[str]) -> list[str]:
    """For a file that Compose reads: a dollar that is one."""
    return [word.replace("$", "$$") for word in words]
