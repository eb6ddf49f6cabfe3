"""A study's page in a real headless Chromium: winner, charts and table, offline, light and dark, on a phone."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from seatrial.system.host import Host

for needed in ("optuna", "playwright"):
    pytest.importorskip(needed, reason=f"{needed} is not installed")


from seatrial.job.model import Job, Target  # noqa: E402
from seatrial.search import results as study_page  # noqa: E402
from seatrial.search.request import Definition, parse_objective  # noqa: E402
from seatrial.search.search import Search  # noqa: E402
from seatrial.search.space import parse_space  # noqa: E402
from seatrial.search.study import Study  # noqa: E402
from seatrial.search.trial import Ending  # noqa: E402
from seatrial.system.names import Names  # noqa: E402

PICTURES = os.environ.get("SEATRIAL_PICTURES")
SPACE = ("lr=log:1e-5..1e-1", "word=<b>a</b>,b", "layers=int:1..4")


def _search(folder: Path, metric: str | None = "accuracy:max", trials: int = 9) -> Search:
    """A study as a search leaves it: done, pruned and failed trials, one that runs."""
    definition = Definition("s", "train.py </script>", SPACE, "tpe", metric, trials=trials)
    (folder / "s").mkdir()
    study = Study.create(folder / "s" / "study.journal", definition)
    for number in range(trials):
        settings = {"lr": f"{10.0 ** (-number % 5 - 0.5):.6g}", "word": ("<b>a</b>", "b")[number % 2], "layers": "2"}
        trial = study.ask(settings=settings)
        assert trial is not None
        study.begin(number, f"20261122-00000{number}-test")
        for step in range(1, 4):
            study.report(number, step, 0.1 * step + 0.01 * number)
        state = ("done", "done", "pruned", "failed")[number % 4]
        value = None if state == "failed" else 0.3 + 0.01 * number
        outcome = "Pruned after 2 s: <i>behind</i>" if state == "pruned" else "passed"
        metrics = {} if value is None else {"accuracy": value}
        if number < trials - 1:
            study.tell(number, Ending(state, value, outcome, 0, {"seconds": 2.0 + number}, metrics))
    (folder / "train.py").write_text("")
    return Search(
        study=study,
        space=parse_space(SPACE),
        objective=parse_objective(metric) if metric else None,
        job=Job(project=folder, target=Target(kind="script", value="train.py")),
        host=Host({}),
        note=print,
        most=trials,
    )


@pytest.fixture
def opened(browser: Any) -> Iterator[Any]:
    """Opens a page; what is an error on its console, or requested from another host, fails the test."""
    wrong: list[str] = []

    def open_page(path: Path, width: int = 1200, scheme: str = "light") -> Any:
        page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
        page.on("console", lambda message: wrong.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("request", lambda request: wrong.append(request.url) if "file://" not in request.url else None)
        page.goto(path.as_uri())
        return page

    yield open_page
    assert wrong == []


def test_charts_and_table(tmp_path: Path, opened: Any) -> None:
    path = study_page.write(_search(tmp_path), Names())
    for width, scheme in ((1200, "light"), (390, "dark")):
        page = opened(path, width, scheme)
        assert page.locator(".plots figure").count() == 1
        assert page.locator("table tr").count() == 10
        assert page.locator("table .badge", has_text="pruned").count() == 2
        assert page.locator("td b, td i:not(div > i)").count() == 0  # what a person or a script wrote is text
        link = page.locator("table a").first.get_attribute("href")  # the best of them is first
        assert link == "../../runs/20261122-000005-test/receipt.html"
        assert link == page.locator("section a").first.get_attribute("href")
        assert page.locator("tr.winner .n i").first.get_attribute("style") == "width:100%"
        assert "best accuracy 0.35 " in page.locator("header .verdict").inner_text()
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        if PICTURES:
            page.screenshot(path=Path(PICTURES) / f"study-{scheme}.png", full_page=True)
    assert "As of 20" in page.locator("header").inner_text(), "this test is its searcher, and it runs"
    reported = json.loads((path.parent / "results.json").read_bytes())
    assert [one["state"] for one in reported][:4] == ["done", "done", "pruned", "failed"]


def test_without_an_objective_it_is_a_table_and_runs_no_script(tmp_path: Path, opened: Any) -> None:
    path = study_page.write(_search(tmp_path, metric=None), Names())
    assert "<script" not in path.read_text() and "default-src 'none'" in path.read_text()
    assert opened(path).locator("table tr").count() == 10


def test_a_study_that_is_looked_at_while_it_is_written(tmp_path: Path) -> None:
    search = _search(tmp_path)
    writers = [threading.Thread(target=study_page.write, args=(search, Names())) for _ in range(3)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    folder = tmp_path / ".seatrial" / "sweeps" / "s"
    assert {path.name for path in folder.iterdir()} == {"index.html", "results.json"}
