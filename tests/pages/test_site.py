"""Links lead somewhere, every page has its place, and the built site is whole, small and asks no other server."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"

#: Read on GitHub as they are, beside the pages.
ABOVE = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")

_FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"`[^`\n]*`")
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)


def pages() -> list[Path]:
    return [*(ROOT / name for name in ABOVE), *sorted(DOCS.rglob("*.md"))]


def anchors(page: Path) -> set[str]:
    """As GitHub and MkDocs make them from headings alike."""
    headings = _HEADING.findall(_FENCED.sub("", page.read_text(encoding="utf-8")))
    return {re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", heading.lower())).strip("-") for heading in headings}


def test_links_lead_to_files_and_headings() -> None:
    lost, seen = [], 0
    for page in pages():
        for link in _LINK.findall(_CODE.sub("", _FENCED.sub("", page.read_text(encoding="utf-8")))):
            path, _, anchor = link.partition("#")
            if re.match(r"\w+:", link):
                continue
            seen += 1
            target = (page.parent / path) if path else page
            if not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors(target)):
                lost.append(f"{page.relative_to(ROOT)}: {link}")
    assert not lost
    assert seen > 100


def listed(nav: list[object] | dict[str, object] | str) -> set[str]:
    if isinstance(nav, str):
        return {nav}
    return set().union(*map(listed, nav.values() if isinstance(nav, dict) else nav))  # type: ignore[arg-type]


def test_every_page_has_its_place() -> None:
    site = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    there = {page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md")}
    there = {page for page in there if not page.startswith(("decisions/", "receipts/"))}
    assert listed(site["nav"]) == there | {"receipts/README.md", "decisions/index.md"}


def test_a_console_block_copies_what_is_typed() -> None:
    spec = importlib.util.spec_from_file_location("site_hooks", DOCS / "site_hooks.py")
    assert spec is not None and spec.loader is not None
    hooks = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(hooks)
    assert hooks.commands("$ cd x\nprinted\n$ run a \\\n  b\nprinted \\\n$ ls") == "cd x\nrun a \\\n  b\nls"
    assert hooks.commands("import torch") == ""


def test_readme_is_one_screen() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 70


@pytest.mark.slow
def test_the_site(tmp_path: Path) -> None:
    pytest.importorskip("material", reason="needs the group docs: make docs")
    words = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    done = subprocess.run(
        words, cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    site = tmp_path / "site"
    assert (site / "search" / "search_index.js").stat().st_size < 2_000_000
    assert sum(file.stat().st_size for file in site.rglob("*") if file.is_file()) < 10_000_000
    for page in site.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        fetched = re.findall(r"<(?:script|img|iframe|source)[^>]*\ssrc=\"?(https?:[^\"\s>]+)", text)
        fetched += [tag for tag in re.findall(r"<link[^>]*>", text) if "http" in tag and "canonical" not in tag]
        assert not fetched, f"{page.name} asks {fetched}"
    start = site / "start.html"
    ours = re.findall(r"(?:src|href)=\"?(assets/[^\"\s>]+\.(?:js|css))", start.read_text(encoding="utf-8"))
    assert start.stat().st_size + sum((site / name).stat().st_size for name in set(ours)) < 500_000
