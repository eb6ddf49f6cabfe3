"""axe in Chromium finds nothing serious on any page, light and dark, wide and on a phone; and nothing is wider."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from seatrial.system.host import Host

for needed in ("starlette", "uvicorn", "playwright"):
    pytest.importorskip(needed, reason=f"{needed} is not installed")

from dashboard_site import a_run, serving  # noqa: E402
from seatrial.monitor.compare import compare, to_html  # noqa: E402
from seatrial.receipt.model import load  # noqa: E402
from seatrial.runs.store import RunStore  # noqa: E402

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("dashboard")]

LOOKS = [(1280, "light"), (1280, "dark"), (390, "light"), (390, "dark")]


@pytest.fixture(scope="module")
def addresses(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    folder = tmp_path_factory.mktemp("pages")
    store = RunStore(folder, Host({"SEATRIAL_STATE": str(folder / "state")}))
    ids = [f"20261121-00000{number}-aaaa" for number in range(3)]
    folders = [a_run(store, id, name=f"run-{id[14]}", ended=id != ids[2], stdout=b"step 1\n") for id in ids]
    first, second = (load(each) for each in folders[:2])
    (folder / "compare.html").write_text(to_html(compare(first, second)))
    views = {"live": "", "runs": "#/runs", "sweeps": "#/sweeps", "comparison": f"#/compare/{'/'.join(ids)}"}
    views |= {"a run": f"#/runs/{ids[0]}", "a live run": f"#/runs/{ids[2]}"}
    files = {"receipt": folders[0] / "receipt.html", "compare": folder / "compare.html"}
    with serving(store) as (address, _):
        served = {name: address + view for name, view in views.items()}
        yield {**served, **{name: file.as_uri() for name, file in files.items()}}


def test_nothing_serious_and_nothing_wider_than_the_screen(
    browser: Any, faults: Callable[[Any], list[str]], addresses: dict[str, str]
) -> None:
    wrong = []
    for name, address in addresses.items():
        for width, scheme in LOOKS:
            # The pages' policies would refuse axe itself; that they hold is test_dashboard's.
            size = {"width": width, "height": 900}
            page = browser.new_page(viewport=size, color_scheme=scheme, bypass_csp=True)
            page.goto(address)
            page.wait_for_selector("h1")
            page.wait_for_timeout(800)
            wrong += [f"{name} {width} {scheme}: {each}" for each in faults(page)]
            page.close()
    assert wrong == []
