"""One image has one size, whichever engine and store holds it, and however its files came in."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from engines import IMAGE as BASE
from engines import BuildImage
from seatrial.backends.containers.docker_and_podman import Docker, Podman
from seatrial.images.build.size import FOLDER, image_bytes
from seatrial.system.host import Host

pytestmark = pytest.mark.both_engines


class Images:
    """Images of names nobody else has, each a Dockerfile over BASE."""

    def __init__(self, engine: Docker | Podman, folder: Path, build: BuildImage) -> None:
        self.engine, self.folder, self._build = engine, folder, build

    def make(self, *lines: str) -> str:
        return self._build(self.engine.call, "\n".join([f"FROM {BASE}", *lines, ""]))

    def ask(self, *words: str) -> str:
        ended = subprocess.run([*self.engine.call, *words], capture_output=True, text=True, timeout=300)
        assert ended.returncode == 0, ended.stderr
        return ended.stdout

    def size(self, tag: str, python: str = "python3", state: str = "state") -> int | None:
        facts = self.engine.images.image(tag)
        assert facts is not None
        return image_bytes(self.engine.images, facts, python, Host({"SEATRIAL_STATE": str(self.folder / state)}))


@pytest.fixture
def images(engine: Docker | Podman, tmp_path: Path, build_image: BuildImage) -> Images:
    return Images(engine, tmp_path, build_image)


def test_size_is_what_du_counts_inside(images: Images) -> None:
    network = "none" if images.engine.name == "docker" else "host"
    reported = images.ask("run", "--rm", "--network", network, BASE, "du", "-sxb", "/")
    assert images.size(BASE) == pytest.approx(int(reported.split()[0]), rel=0.001)


def test_size_counts_links_once_holes_whole_and_hidden_files(images: Images) -> None:
    base = images.size(BASE)
    assert base is not None
    tag = images.make(
        "RUN mkdir /made && head -c 3000000 /dev/zero > /made/file && ln /made/file /made/link",
        "RUN truncate -s 5000000 /made/hole",
        "RUN mkdir -m 700 /made/closed && head -c 1000000 /dev/zero > /made/closed/file && chown -R 1234 /made/closed",
        "RUN head -c 7000000 /dev/zero > /made/deleted",
        "RUN rm /made/deleted && printf x > '/made/a name\\\\with spaces'",
        "VOLUME /made/closed",
        "USER 1234",
    )
    size = images.size(tag)
    assert size is not None
    assert size - base == pytest.approx(3_000_000 + 5_000_000 + 1_000_000 + 2 * 4096, abs=200)


def test_size_is_counted_once_for_an_image(images: Images) -> None:
    tag = images.make("RUN printf x > /made")
    size = images.size(tag)
    (kept,) = (images.folder / "state" / FOLDER).iterdir()
    assert json.loads(kept.read_bytes()) == {"bytes": size}
    kept.write_text('{"bytes": 5}')
    assert images.size(tag) == 5
    kept.write_text("[")
    assert images.size(tag) == size


@pytest.mark.parametrize(
    "answer", ["yes | head -c 1000000", "echo -5", "echo 99999999999999999999", "echo 1; exit 1", "printf '1\\n2\\n'"]
)
def test_size_is_unknown_when_the_image_answers_nonsense(images: Images, answer: str) -> None:
    (images.folder / "image" / "liar").write_text(f"#!/bin/sh\n{answer}\n")
    tag = images.make("COPY liar /usr/bin/liar", "RUN chmod 755 /usr/bin/liar")
    assert images.size(tag, python="/usr/bin/liar") is None
    assert images.size(tag, python="/not/there") is None
    assert images.size(tag) is not None
