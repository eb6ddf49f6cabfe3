"""Docker's words in a command line of seatrial: what stands for each option, and the command without them."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from seatrial.cli.options import options_of
from seatrial.cli.verbs import OTHER_WORDS, VERBS
from seatrial.cli.words import typed_parts
from seatrial.job.flags import read_table

#: Words that stand before Docker's own commands.
_PROGRAMS = ("sudo", "docker", "podman", "nvidia-docker", "compose", "container", "image")


def without_docker(argv: Sequence[str]) -> tuple[str, list[str]]:
    """Return what stands for Docker's options of a command line, and its words without them; "" if it has none."""
    cut = argv.index("--") if "--" in argv else len(argv)
    known, rows, has_value = options_of(argv[0]), dict[str, str](), dict[str, bool]()
    for names, row in read_table("docker.json")["build" if argv[0] == "build" else "run"].items():
        for name in (each for each in names.split() if each[0] == "-"):
            rows[name], has_value[name] = row, not names.split()[-1].startswith("-")
    kept, said, has_target = [argv[0]], dict[str, None](), "-m" in argv[:cut] or "--image" in argv[:cut]
    parts = [*typed_parts(argv[1:cut], has_value | known)]
    for at, (name, words) in enumerate(parts):
        letters = [f"-{letter}" for letter in words[0][1:]] if not name and words[0][:2] != "--" else []
        if name in rows and name not in known:
            said[f"{name}: {'seatrial has ' * (rows[name] in known)}{rows[name]}"] = None
            if rows[name] in known:
                kept += [rows[name], words[-1].removeprefix(f"{name}=")]
        elif words[0][0] == "-" and letters[1:] and all(each in rows or each in known for each in letters):
            said |= {f"{each}: {rows[each]}": None for each in letters if each in rows}
            kept += [each for each in letters if each not in rows]
        elif name or words[0].startswith("-") or has_target:
            kept += words
        else:
            rest = [word for _, each in parts[at + 1 :] for word in each]
            return "\n".join(said), [*kept, *_target(argv[0], words[0], rest), *argv[cut:]]
    return "\n".join(said), [*kept, *argv[cut:]]


def _target(verb: str, word: str, rest: list[str]) -> list[str]:
    """Return seatrial's words for Docker's image and its command, or for the folder of a build."""
    from seatrial.images.recipes import RECIPES
    from seatrial.job.startable import what_is_here

    if verb == "build" and Path(word).is_dir() and (here := what_is_here(Path(word))) and not here[1]:
        return shlex.split(here[2]) if word == "." else [str(Path(word) / here[2])]
    if verb == "build" or Path(word).exists() or word.endswith(".py") or word in RECIPES:
        return [word, *rest]
    return ["--image", word, *(["--", *rest] if rest else [])]


def of_docker(argv: Sequence[str]) -> tuple[str, str] | None:
    """Return (sentence, command) for ``docker run …`` behind seatrial, or for Docker's command alone; None for others.

    A command that no verb of seatrial stands for is Docker's.
    """
    at = next((at for at, word in enumerate(argv) if word not in _PROGRAMS), len(argv))
    if argv[at:] and (at or argv[0] in read_table("docker.json")["commands"]):
        verb = OTHER_WORDS.get(argv[at], argv[at])
        if verb.split()[0] in VERBS:
            known, rest = options_of(*verb.split()), argv[at + 1 :]
            words = without_docker([verb, *rest])[1][1:] if verb in ("run", "build") else [*rest]
            while words and words[0].startswith("-") and words[0] not in known:
                words = words[1:]
            command = shlex.join(["seatrial", *verb.split(), *words])
            return f"seatrial starts containers itself: docker {argv[at]} is seatrial {verb}", command
        command = shlex.join([*(argv[:at] or ["docker"]), *argv[at:]])
        return f"{argv[at]} is a command of docker, and seatrial has none for it", command
    return None
