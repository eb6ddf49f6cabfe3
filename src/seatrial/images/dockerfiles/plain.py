"""The same image as a Dockerfile for other people's tools: no build context, no layers or caches of ours."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import replace

from seatrial.images.dockerfiles.write import VENV, VENV_PYTHON, ImageContents, debian_packages, finish
from seatrial.job.plan import CONTAINER_PROJECT

_BUILD = "/tmp/requirements"


def render_plain(contents: ImageContents, lines: Sequence[str], constraints: Sequence[str]) -> str | None:
    """The Dockerfile, or None where the image needs what a text cannot hold: wheels, secrets, nvcc, slimming.

    Files are printed: here-documents need a Dockerfile frontend of 1.4 (docs.docker.com/build/buildkit).
    """
    if contents.builder or contents.ca_bundle or contents.pip_conf or contents.wheels or contents.own_wheel:
        return None
    if contents.slimming and contents.slims_packages:  # asked for; what `auto` leaves out may as well be there
        return None
    return "\n".join(_lines(contents, lines, constraints)) + "\n"


def _lines(contents: ImageContents, lines: Sequence[str], constraints: Sequence[str]) -> Iterator[str]:
    yield f"# {contents.slug}: made by seatrial. The project is mounted at {CONTAINER_PROJECT} when it runs."
    yield f"FROM {contents.base}"
    yield f"WORKDIR {CONTAINER_PROJECT}"
    git = ("git", "ca-certificates") if contents.git else ()
    everything = (*contents.base_packages, *contents.system_packages, *git)
    yield from debian_packages(replace(contents, system_packages=everything))
    yield f"RUN python3 -m venv {VENV}"
    if lines:
        files = {"requirements.txt": lines, "constraints.txt": constraints}
        commands = [
            f"printf '%s\\n' {' '.join(map(shlex.quote, text))} > {_BUILD}/{name}"
            for name, text in files.items()
            if text
        ]
        flags = [f"--extra-index-url {contents.index}"] if contents.index else []
        flags += [f"-r {_BUILD}/requirements.txt"] + ([f"-c {_BUILD}/constraints.txt"] if constraints else [])
        install = f"{VENV_PYTHON} -m pip install --no-cache-dir {' '.join(flags)}"
        yield "RUN " + " && \\\n    ".join([f"mkdir -p {_BUILD}", *commands, install, f"rm -r {_BUILD}"])
    yield from finish(contents)
