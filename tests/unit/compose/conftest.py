"""Compose files written for a test and read by the real ``docker compose config``, which needs no engine."""

from __future__ import annotations

import os
import shutil
import subprocess
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from seatrial.compose.client import Compose
from seatrial.compose.read import ComposeFile, read_compose
from seatrial.compose.service import Service
from seatrial.system.host import Host

Read = Callable[..., ComposeFile]


@pytest.fixture(scope="session")
def compose_call() -> list[str]:
    if shutil.which("docker") is None:
        pytest.skip("docker is not installed")
    requested = subprocess.run(["docker", "compose", "version"], capture_output=True, text=True)
    if requested.returncode != 0:
        pytest.skip(f"docker has no Compose: {requested.stderr.strip()[-200:]}")
    return ["docker"]


@pytest.fixture
def read(tmp_path: Path, compose_call: list[str]) -> Read:
    """``read(text, name="compose.yaml", **files)``: the text written to a folder, with other files next to it."""

    def write_and_read(text: str, *names: str, **environ: str) -> ComposeFile:
        (tmp_path / "compose.yaml").write_text(textwrap.dedent(text))
        return read_compose(
            [tmp_path / "compose.yaml"], Compose((*compose_call, "compose"), (), Host({**os.environ, **environ})), names
        )

    return write_and_read


@pytest.fixture
def services(read: Read) -> Callable[[Sequence[str]], tuple[ComposeFile, list[Service]]]:
    """Return a function that reads one file with a service for each text: Compose is slow to start."""

    def read_together(texts: Sequence[str]) -> tuple[ComposeFile, list[Service]]:
        file = read("services:\n" + "".join(f"  s{number}: {text}\n" for number, text in enumerate(texts)))
        return file, [file.services[f"s{number}"] for number in range(len(texts))]

    return read_together
