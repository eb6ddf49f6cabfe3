"""Compose files written for a test and read by the real ``docker compose config``, which needs no engine."""

from __future__ import annotations

import os
import shutil
import subprocess
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from seatrial.compose.client import Compose
from seatrial.compose.read import ComposeFile, read_compose
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
