"""Links lead somewhere, every page has its place, and the built site is whole, small and asks no other server."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"

#: Pages above docs/.
ABOVE = ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")

#: What takes seconds takes this long at most on a machine that many others use.
BUSY_S = 180

_FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"`[^`\n]*`")
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)


def hooks() -> ModuleType:
    """The site's hooks, loaded from docs/."""
    spec = importlib.util.spec_from_file_location("site_hooks", DOCS / "site_hooks.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@cache
def generated() -> dict[Path, str]:
    """Text of each page that the site generates, by its path in docs/."""
    return {DOCS / "reference" / name: text() for name, text in hooks().generator().PAGES.items()}


def pages() -> list[Path]:
    return [*(ROOT / name for name in ABOVE), *sorted(DOCS.rglob("*.md")), *sorted(ROOT.glob("examples/*/README.md"))]


def anchors(page: Path) -> set[str]:
    """Return anchors as GitHub and MkDocs derive them from headings."""
    text = generated().get(page) or page.read_text(encoding="utf-8")
    headings = _HEADING.findall(_FENCED.sub("", text))
    return {re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", heading.lower())).strip("-") for heading in headings}


def test_links_lead_to_files_and_headings() -> None:
    lost, seen = [], 0
    for page in pages():
        for link in _LINK.findall(_CODE.sub("", _FENCED.sub("", page.read_text(encoding="utf-8")))):
            path, _, anchor = link.partition("#")
            if re.match(r"\w+:", link):
                continue
            seen += 1
            target = (page.parent / path).resolve() if path else page
            if not (target.exists() or target in generated()) or (
                anchor and target.suffix == ".md" and anchor not in anchors(target)
            ):
                lost.append(f"{page.relative_to(ROOT)}: {link}")
    assert not lost
    assert seen > 100


def test_every_measurement_has_its_machine_and_is_shown() -> None:
    shown = "".join(page.read_text(encoding="utf-8") for page in pages())
    results = sorted((ROOT / "benchmarks" / "results").glob("*.json"))
    assert results
    for path in results:
        result = json.loads(path.read_text(encoding="utf-8"))
        assert all(result[key] for key in ("title", "machine", "versions", "date", "command")), path.name
        assert all(len(row) == len(result["columns"]) for row in result["rows"]), path.name
        assert f"benchmarks/results/{path.name})" in shown, f"no page links {path.name}"
        assert hooks().measured(path).count("\n|") == len(result["rows"]) + 1


def listed(nav: list[object] | dict[str, object] | str) -> set[str]:
    if isinstance(nav, str):
        return {nav}
    return set().union(*map(listed, nav.values() if isinstance(nav, dict) else nav))  # type: ignore[arg-type]


def test_every_page_has_its_place() -> None:
    site = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    there = {page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md")}
    there = {page for page in there if not page.startswith("receipts/")}
    there |= {page.relative_to(DOCS).as_posix() for page in generated() if page.suffix == ".md"}
    there |= {page.relative_to(ROOT).as_posix() for page in ROOT.glob("examples/*/README.md")}
    assert listed(site["nav"]) == there | {"receipts/README.md"}


def test_a_console_block_copies_what_is_typed() -> None:
    commands = hooks().commands
    assert commands("$ cd x\nprinted\n$ run a \\\n  b\nprinted \\\n$ ls") == "cd x\nrun a \\\n  b\nls"
    assert commands("import torch") == ""


def test_architecture_names_files_that_exist() -> None:
    text = _FENCED.sub("", (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8"))
    named = {path for path in re.findall(r"`([\w./-]+)`", text) if re.search(r"/|\.py$", path)}
    assert len(named) > 80
    places = (ROOT, ROOT / "src" / "seatrial")
    assert [path for path in sorted(named) if not any((place / path).exists() for place in places)] == []
    assert text.count("\n") <= 200


def test_readme_is_one_screen() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 70


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built."""
    pytest.importorskip("material", reason="needs the group docs: make docs")
    built = tmp_path_factory.mktemp("built") / "site"
    words = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(built)]
    done = subprocess.run(
        words, cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True, timeout=BUSY_S
    )
    assert done.returncode == 0, done.stderr
    return built


@pytest.mark.slow
def test_the_site(site: Path) -> None:
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


@pytest.mark.slow
@pytest.mark.timeout(6 * BUSY_S)
@pytest.mark.xdist_group("dashboard")
def test_the_site_in_a_browser(site: Path, browser: Any, faults: Callable[[Any], list[str]]) -> None:
    """From a folder: nothing serious for axe, nothing wider than a phone, no complaint, and the search answers."""
    wrong: list[str] = []

    def opened(address: str, width: int = 1280, scheme: str = "light") -> Any:
        page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
        page.set_default_timeout(1000 * BUSY_S)
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.goto(address)
        return page

    for name in ("start.html", "benchmarks.html"):
        for width, scheme in ((1280, "dark"), (390, "light")):
            page = opened((site / name).as_uri(), width, scheme)
            if page.query_selector("table") and width < 500:  # the theme wraps tables when it has started
                page.wait_for_selector(".md-typeset__scrollwrap[tabindex]", state="attached")
            wrong += [f"{name} {width} {scheme}: {each}" for each in faults(page)]
            page.close()
    page = opened((site / "index.html").as_uri() + "?q=data-bound")
    page.wait_for_selector(".md-search-result__link[href*='diagnosis.html']", state="attached")
    assert wrong == []
