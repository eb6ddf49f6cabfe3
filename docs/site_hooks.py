"""While the site is built: a list of decisions, a small search index, no files for debuggers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

#: Folders that the search leaves out: two thirds of all words, and records rather than answers.
UNSEARCHED = ("decisions/", "receipts/")

FOLDER = Path(__file__).parent / "decisions"


def text() -> str:
    lines = [
        "# Decisions",
        "",
        "Why it is built this way: what was decided, from what, and the alternative that lost.",
        "",
    ]
    for page in sorted(FOLDER.glob("[0-9]*.md")):
        title = page.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")
        lines.append(f"- [{title}]({page.name})")
    return "\n".join(lines) + "\n"


def on_files(files: Any, config: Any) -> Any:
    """Called by MkDocs, which is imported nowhere else."""
    from mkdocs.structure.files import File

    files.append(File.generated(config, "decisions/index.md", content=text()))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> None:
    if page.file.src_uri.startswith(UNSEARCHED):
        page.meta["search"] = {"exclude": True}


def on_post_build(config: Any) -> None:
    assets = Path(config["site_dir"]) / "assets"
    for file in (*assets.rglob("*.map"), *assets.glob("javascripts/lunr/**/*.js")):
        file.unlink()
