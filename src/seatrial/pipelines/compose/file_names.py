"""The names under which Compose looks for its files. Source: compose-go, cli/options.go."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from seatrial.system.typed_path import as_typed

#: In its order; the first that is there counts.
COMPOSE_FILES = ("compose.yaml", "compose.yml", "docker-compose.yml", "docker-compose.yaml")

#: Beside one of those; the first that is there counts.
OVERRIDES = tuple(f"{stem}.override.{ending}" for stem in ("compose", "docker-compose") for ending in ("yml", "yaml"))


def find_files(project: Path, environ: Mapping[str, str]) -> tuple[Path, ...]:
    """What ``docker compose`` without ``-f`` takes in this folder; () where there is none."""
    if listed := environ.get("COMPOSE_FILE"):
        separator = environ.get("COMPOSE_PATH_SEPARATOR") or os.pathsep
        return tuple(project / part for part in listed.split(separator) if part)
    first = next((project / name for name in COMPOSE_FILES if (project / name).is_file()), None)
    if first is None:
        return ()
    overrides = [project / name for name in OVERRIDES if (project / name).is_file()]
    return (first, *overrides[:1])


def up_command(files: Sequence[Path], environ: Mapping[str, str], names: Sequence[str] = ()) -> str:
    """As it would be typed here: with -f where the files are not those that are found without, and the active profiles.

    Args:
        names: of services.
    """
    found = find_files(files[0].parent, {}) if files[0].parent.resolve() == Path.cwd().resolve() else ()
    is_found = [path.resolve() for path in files] == [path.resolve() for path in found]
    given = [] if is_found else [f"-f {as_typed(path)}" for path in files]
    profiles = [f"--profile {shlex.quote(name)}" for name in profiles_in(environ)]
    return " ".join(["seatrial up", *given, *profiles, *map(shlex.quote, names)])


def profiles_in(environ: Mapping[str, str]) -> list[str]:
    """The active profiles, as Compose reads them."""
    return [name for name in environ.get("COMPOSE_PROFILES", "").split(",") if name]


def with_profiles(environ: Mapping[str, str], names: Sequence[str]) -> dict[str, str]:
    """An environment in which these are active, too."""
    found = dict.fromkeys([*profiles_in(environ), *names])
    return {**environ, "COMPOSE_PROFILES": ",".join(found)} if found else dict(environ)
