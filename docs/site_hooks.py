"""Hooks of the site: pages that are generated, a small search index, no files for debuggers."""

from __future__ import annotations

import html
import importlib.util
import json
import re
import subprocess
from pathlib import Path
from types import ModuleType
from typing import Any

#: Pages that the search leaves out: records rather than answers.
UNSEARCHED = ("decisions.md", "receipts/")

HERE = Path(__file__).parent
RESULTS = HERE.parent / "benchmarks" / "results"
EXAMPLES = HERE.parent / "examples"

_RECORDED = re.compile(r"^<!-- recorded (\S+): (.*) -->$", re.MULTILINE)
_NOT_RUN = re.compile(r"^<!-- not run: (.*) -->$", re.MULTILINE)
#: A link from a page to examples/, which is next to docs/ in the repository and below it on the site.
_TO_EXAMPLE = re.compile(r"(\]\((?:\.\./)*)\.\./examples/")
#: A line that is only a link to a file of results: the site puts the table there.
_RESULT = re.compile(r"^\[[^\]]*\]\((?:\.\./)+benchmarks/results/([\w-]+\.json)\)$", re.MULTILINE)
#: A link to a receipt: the repository has the JSON, the site the page.
_TO_RECEIPT = re.compile(r"(?<=/receipt)\.json(?=\))")
_FILE = re.compile(r"^<!-- file: (.*) -->$", re.MULTILINE)

#: A block of code as Pygments makes it: what opens it, and what lies inside.
_CODE = re.compile(r'<div class="highlight">(?=<pre>(.*?)</pre>)', re.DOTALL)
_TAG = re.compile(r"<[^>]*>")


def generator() -> ModuleType:
    """Load reference/generate.py, which no package holds."""
    spec = importlib.util.spec_from_file_location("generate_reference", HERE / "reference" / "generate.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def on_files(files: Any, config: Any) -> Any:
    """Add the pages that are not in docs/. MkDocs calls this, and is imported nowhere else."""
    from mkdocs.structure.files import File

    for name, text in generator().PAGES.items():
        files.append(File.generated(config, f"reference/{name}", content=text()))
    for path in (HERE / "receipts").glob("*/receipt.json"):
        content = receipt_page(path)
        files.append(File.generated(config, f"receipts/{path.parent.name}/receipt.md", content=content))
    for page in EXAMPLES.glob("*/README.md"):
        content = page.read_text(encoding="utf-8").replace("](../../docs/", "](../../")
        files.append(File.generated(config, f"examples/{page.parent.name}/README.md", content=content))
    return files


def receipt_page(path: Path) -> str:
    """Render a recorded receipt as Markdown."""
    from seatrial.receipt.model import Receipt
    from seatrial.receipt.render import markdown

    return markdown.render(Receipt.model_validate_json(path.read_bytes()))


def measured(path: Path) -> str:
    """Return the table of a file of benchmarks/results, with its machine and command."""
    result = json.loads(path.read_text(encoding="utf-8"))
    shown = [["" if cell is None else str(cell) for cell in row] for row in (result["columns"], *result["rows"])]
    lines = ["| " + " | ".join(row) + " |" for row in shown]
    lines.insert(1, "|" + "---|" * len(result["columns"]))
    about = f"*{result['title']}*. {result['machine']}; {result['versions']}; {result['date']}; `{result['command']}`; "
    about += f"measured at `{result['commit']}`{_changed_since(result['commit'], result['files'])}."
    return "\n".join([*lines, "", about, *(f"\n{note}" for note in result.get("notes", ()))])


def _changed_since(commit: str, files: list[str]) -> str:
    """Return the files and folders of a measurement that have changed since its commit, if the repository knows it."""
    git = ["git", "-C", str(HERE.parent)]
    if subprocess.run([*git, "cat-file", "-e", commit], capture_output=True).returncode:
        return ""
    changed = [each for each in files if subprocess.run([*git, "diff", "--quiet", commit, "--", each]).returncode]
    return f", changed since then: {', '.join(f'`{each}`' for each in changed)}" if changed else ""


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Replace links to results and receipts, and show the markers of tests/pages/console.py."""
    if page.file.src_uri.startswith(UNSEARCHED):
        page.meta["search"] = {"exclude": True}
    markdown = _RESULT.sub(lambda found: measured(RESULTS / found[1]), markdown)
    markdown = _TO_RECEIPT.sub(".md", markdown)
    markdown = _TO_EXAMPLE.sub(r"\1examples/", _NOT_RUN.sub(_why_not, markdown))
    return _FILE.sub(r"`\1`:\n", _RECORDED.sub(r"*Recorded \1; needs: \2.*\n", markdown))


def _why_not(marker: re.Match[str]) -> str:
    """One sentence for all that waits for a GPU, so that nobody takes it for something that was seen."""
    reason = marker[1]
    if re.match(r"needs [^;[]*GPU", reason):
        return f"*N{reason[1:]}. No output of this has been recorded yet.*\n"
    return f"*No test runs this: {reason}.*\n"


def on_page_content(content: str, page: Any, config: Any, files: Any) -> str:
    """The button of a console block copies what is typed: no prompt, no output."""
    return _CODE.sub(_with_copy, content)


def _with_copy(block: re.Match[str]) -> str:
    typed = commands(html.unescape(_TAG.sub("", block[1])))
    return block[0].replace(">", f' data-copy="{html.escape(typed)}">', 1) if typed else block[0]


def commands(shown: str) -> str:
    """Return the text after the prompts of a console block; nothing without prompts."""
    typed, went_on = [], False
    for line in shown.splitlines():
        goes_on = went_on
        went_on = line.endswith("\\") and (goes_on or line.startswith("$ "))
        if goes_on or line.startswith("$ "):
            typed.append(line.removeprefix("$ "))
    return "\n".join(typed)


def on_post_page(output: str, page: Any, config: Any) -> str:
    """The theme's search has a role without a name, which screen readers need."""
    return output.replace(
        'data-md-component="search" role="dialog"', 'data-md-component="search" role="dialog" aria-label="Search"'
    )


def on_post_build(config: Any) -> None:
    assets = Path(config["site_dir"]) / "assets"
    for file in (*assets.rglob("*.map"), *assets.glob("javascripts/lunr/**/*.js")):
        file.unlink()
