"""The image's labels of the project's origin, and the wheel of recipes: what they import of ours comes along."""

from __future__ import annotations

import ast
import subprocess
from pathlib import Path

import pytest

import seatrial
from seatrial.images.dockerfile.context import _our_modules, origin_labels, public_url
from seatrial.job.model import Job, Target
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


FILES = [path for folder in ("recipes", "train") for path in (Path(seatrial.__file__).parent / folder).rglob("*.py")]


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_imports_are_found_without_parsing(path: Path) -> None:
    imported = {
        name.split(".")[1]
        for node in ast.walk(ast.parse(path.read_bytes()))
        for name in _names(node)
        if name.startswith("seatrial.")
    }
    assert _our_modules(path) == imported


def _names(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        return [f"{node.module}.{alias.name}" for alias in node.names]
    return []


def test_every_way_to_import_is_found(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(
        "from seatrial.train.loop import fit\nfrom seatrial import events, errors as e\n"
        "def f():\n    import seatrial.frames\n    from seatrial_more import x\n"
    )
    assert _our_modules(tmp_path / "a.py") == {"train", "events", "errors", "frames"}
