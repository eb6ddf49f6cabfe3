"""axe in Chromium finds nothing serious on any page, light and dark, wide and on a phone; and nothing is wider."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from seatrial.system.host import Host

for needed in ("starlette", "uvicorn", "playwright"):
    pytest.importorskip(needed, reason=f"{needed} is not installed")

from playwright.sync_api import sync_playwright  # noqa: E402

from dashboard_site import CHROMIUM, a_run, serve  # noqa: E402
from seatrial.monitor.compare import compare, to_html  # noqa: E402
from seatrial.receipt.store import load  # noqa: E402
from seatrial.runs.store import RunStore  # noqa: E402

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("dashboard")]

LOOKS = [(1280, "light"), (1280, "dark"), (390, "light"), (390, "dark")]


@pytest.fixture(scope="module")
def axe() -> str:
    """axe-core's script, out of a package that carries it."""
    spec = importlib.util.find_spec("axe_playwright_python")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("axe_playwright_python is not installed")
    return (Path(spec.submodule_search_locations[0]) / "axe.min.js").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def addresses(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    folder = tmp_path_factory.mktemp("pages")
    store = RunStore(folder, Host({"SEATRIAL_STATE": str(folder / "state")}))
    ids = [f"20261121-00000{number}-aaaa" for number in range(3)]
    folders = [a_run(store, id, name=f"run-{id[14]}", ended=id != ids[2], stdout=b"step 1\n") for id in ids]
    first, second = (load(each) for each in folders[:2])
    (folder / "compare.html").write_text(to_html(compare(first, second)))
    address, running, thread, _ = serve(store)
    views = {"live": "", "runs": "#/runs", "sweeps": "#/sweeps", "comparison": f"#/compare/{'/'.join(ids)}"}
    views |= {"a run": f"#/runs/{ids[0]}", "a live run": f"#/runs/{ids[2]}"}
    files = {
        "receipt": folders[0] / "receipt.html",
        "compare": folder / "compare.html",
    }
    yield {
        **{name: address + view for name, view in views.items()},
        **{name: file.as_uri() for name, file in files.items()},
    }
    running.should_exit = True
    thread.join(10)


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")
def test_nothing_serious_and_nothing_wider_than_the_screen(axe: str, addresses: dict[str, str]) -> None:
    wrong = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        for name, address in addresses.items():
            for width, scheme in LOOKS:
                # The pages' policies would refuse axe itself; that they hold is test_dashboard's.
                context = browser.new_context(
                    viewport={"width": width, "height": 900}, color_scheme=scheme, bypass_csp=True
                )  # type: ignore[arg-type]
                page = context.new_page()
                page.goto(address)
                page.wait_for_selector("h1")
                page.wait_for_timeout(800)
                page.evaluate(axe)
                found: list[dict[str, Any]] = page.evaluate("axe.run().then((found) => found.violations)")
                serious = [each for each in found if each["impact"] in ("serious", "critical")]
                wrong += [f"{name} {width} {scheme}: {each['id']} {each['nodes'][0]['target']}" for each in serious]
                if page.evaluate("document.documentElement.scrollWidth") > width:
                    wrong.append(f"{name} is wider than {width}")
                context.close()
        browser.close()
    assert wrong == []
