"""Write the Dockerfile of an image as one file, to keep or to build without seatrial."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from seatrial.images.dockerfile.layers import ImageContents
from seatrial.images.dockerfile.render import VENV, VENV_PYTHON, finish, of_the_project
from seatrial.images.requirements.source_builds import debian_packages
from seatrial.job.in_container import CONTAINER_PROJECT

_BUILD = "/tmp/requirements"


def render_plain(contents: ImageContents) -> str | None:
    """Return the Dockerfile as one file; None if the image needs what no text holds: wheels, secrets, nvcc, slimming.

    Files are printed: here-documents need a Dockerfile frontend of 1.4 (docs.docker.com/build/buildkit).
    """
    of_base = contents.base.builder or contents.base.toolkit or contents.base.kept
    own = contents.extensions or contents.options.ca_bundle or contents.pip_conf or contents.own_wheel
    if of_base or own or contents.wheels or contents.in_sight:
        return None
    if contents.slimming.arguments and contents.slimming.packages:  # requested; `auto` may as well keep it
        return None
    return "\n".join(_lines(contents)) + "\n"


def _lines(contents: ImageContents) -> Iterator[str]:
    lines, constraints = contents.resolved.requirements.lines, contents.resolved.requirements.constraints
    yield f"# {contents.slug}: made by seatrial. The project is mounted at {CONTAINER_PROJECT} when it runs."
    yield f"FROM {contents.base.image}"
    yield f"WORKDIR {CONTAINER_PROJECT}"
    git = ("git", "ca-certificates") if contents.git else ()
    yield from of_the_project(contents, (*contents.base_packages, *git, *debian_packages(contents.builds)))
    yield f"RUN python3 -m venv {VENV}"
    if lines:
        files = {"requirements.txt": lines, "constraints.txt": constraints}
        quoted = {name: " ".join(map(shlex.quote, text)) for name, text in files.items() if text}
        commands = [f"printf '%s\\n' {words} > {_BUILD}/{name}" for name, words in quoted.items()]
        flags = [f"--extra-index-url {contents.resolved.index}"] if contents.resolved.index else []
        flags += [f"-r {_BUILD}/requirements.txt"] + ([f"-c {_BUILD}/constraints.txt"] if constraints else [])
        install = f"{VENV_PYTHON} -m pip install --no-cache-dir {' '.join(flags)}"
        yield "RUN " + " && \\\n    ".join([f"mkdir -p {_BUILD}", *commands, install, f"rm -r {_BUILD}"])
    yield from finish(contents)
