"""The image's labels of the project's origin, and the wheel of recipes: what they import of ours comes along."""

from __future__ import annotations

import ast
import io
import subprocess
import zipfile
from pathlib import Path

import pytest

from seatrial.images.dockerfile.context import origin_labels, public_url, wheel_bytes
from seatrial.job.model import Job, Target
from seatrial.job.reading.parsed_modules import Import
from seatrial.job.reading.signs import modules_of
from tables import cases

SCRIPT, RECIPE = Target(kind="script", value="train.py"), Target(kind="recipe", value="mnist")


def git(folder: Path, *words: str) -> str:
    identity = ("-c", "user.name=t", "-c", "user.email=t@example.org")
    return subprocess.run(["git", *identity, *words], cwd=folder, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    git(tmp_path, "init", "-q")
    (tmp_path / "train.py").write_text("import torch\n")
    git(tmp_path, "add", "train.py")
    git(tmp_path, "commit", "-q", "-m", "first")
    return tmp_path


def test_a_checkout_is_named_by_remote_and_commit(checkout: Path) -> None:
    git(checkout, "remote", "add", "origin", "https://me:hunter2@git.example/me/net.git?token=hunter2")
    head = git(checkout, "rev-parse", "HEAD").strip()
    assert origin_labels(Job(project=checkout, target=SCRIPT)) == {
        "org.opencontainers.image.revision": head,
        "org.opencontainers.image.source": "https://git.example/me/net.git",
    }
    (checkout / "train.py").write_text("import numpy\n")
    labels = origin_labels(Job(project=checkout, target=SCRIPT))
    assert labels["org.opencontainers.image.revision"] == f"{head}-dirty"
    assert origin_labels(Job(project=checkout, target=RECIPE)) == {}  # its image is the same from every project


def test_no_checkout_or_no_commit_is_no_label(tmp_path: Path) -> None:
    assert origin_labels(Job(project=tmp_path, target=SCRIPT)) == {}
    git(tmp_path, "init", "-q")
    assert origin_labels(Job(project=tmp_path, target=SCRIPT)) == {}


@cases("remote", "url")
def test_no_login_is_left_in_a_url(remote: str, url: str | None) -> None:
    assert public_url(remote) == url


def test_the_wheel_has_what_its_modules_import_of_ours() -> None:
    archive = zipfile.ZipFile(io.BytesIO(wheel_bytes()))
    inside = set(archive.namelist())
    for name in inside:
        for node in ast.walk(ast.parse(archive.read(name))) if name.endswith(".py") else ():
            for module in modules_of(node) if isinstance(node, Import) else ():
                places = {module, module.rpartition(".")[0]}
                files = {f"{each.replace('.', '/')}{end}" for each in places for end in (".py", "/__init__.py")}
                assert not module.startswith("seatrial.") or files & inside, (name, module)
