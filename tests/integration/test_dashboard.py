"""The dashboard in a real headless Chromium: live update, dark mode, 1,000 runs, hostile logs, keyboard, a phone."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from seatrial.runs.store import RunStore
from seatrial.system import names
from seatrial.system.host import Host

for needed in ("starlette", "uvicorn", "playwright"):
    pytest.importorskip(needed, reason=f"{needed} is not installed")


from dashboard_site import NOBODY, a_run, serving  # noqa: E402
from seatrial.web import server  # noqa: E402

HOSTILE = b"<script>window.hit=1</script>\n<img src=x onerror='window.hit=1'>\n</pre><b>bold</b>\n\x1b[31mred\x1b[0m\n"
MEGABYTES = 50

pytestmark = pytest.mark.xdist_group("dashboard")


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """A thousand runs: most of them ended, three that go on, one of those hostile."""
    store = RunStore(tmp_path_factory.mktemp("dashboard"))
    for number in range(997):
        folder = store.root / f"20261120-{number:06d}-bbbb"
        folder.mkdir(parents=True)
        summary = {"id": folder.name, "name": None, "target": "train.py", "backend": "docker", "gpus": 1,
                   "exit_code": number % 2, "outcome": "Finished in 3 s", "seconds": 3.0}  # fmt: skip
        (folder / "summary.json").write_text(json.dumps(summary))
    a_run(store, "20261121-000001-aaaa", name="base", ended=True)
    a_run(store, "20261121-000002-aaaa", name="<i>tilt</i>", offset=0.5)
    long_line = HOSTILE * (MEGABYTES * 2**20 // len(HOSTILE))
    a_run(store, "20261121-000003-aaaa", name="hostile", stdout=long_line)
    return store


@pytest.fixture(scope="module")
def site(store):
    with serving(store) as site:
        yield site


@pytest.fixture
def page(browser):
    """A page that fails the test on any script error, any line on the console and any request to elsewhere."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    opened, trouble = context.new_page(), []
    opened.set_default_timeout(60_000)  # two cores may be shared with other tests
    opened.on("pageerror", lambda error: trouble.append(str(error)))
    opened.on("console", lambda line: trouble.append(line.text) if line.type in ("error", "warning") else None)
    opened.on("dialog", lambda dialog: (trouble.append("a dialog opened"), dialog.dismiss()))
    opened.on("request", lambda request: "127.0.0.1" in request.url or trouble.append(request.url))
    yield opened
    shots = os.environ.get("SEATRIAL_SCREENSHOTS")
    if shots:
        opened.screenshot(path=Path(shots) / f"{os.environ['PYTEST_CURRENT_TEST'].split('::')[1].split(' ')[0]}.png")
    context.close()
    assert trouble == []


def get(url, method="GET", **headers):
    request = urllib.request.Request(url, method=method, headers={k.replace("_", "-"): v for k, v in headers.items()})
    try:
        with urllib.request.urlopen(request, timeout=300) as answer:
            return answer.status, answer.headers, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.headers, error.read()


def test_numbers_and_graphs_follow_the_gpu(page, site):
    address, gpu = site
    gpu.utilization_pct = 41
    page.goto(address)
    page.wait_for_selector("text=41 %")
    gpu.utilization_pct = 87
    page.wait_for_selector("text=87 %", timeout=20_000)
    page.wait_for_selector(".chart svg path.curve")
    assert page.inner_text("#state") == "live"


def test_dark_mode_follows_the_system_at_once(page, site):
    page.emulate_media(color_scheme="light")
    page.goto(site[0])
    page.wait_for_selector(".chart svg .curve")
    colour = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(colour)
    page.emulate_media(color_scheme="dark")
    assert page.evaluate(colour) != light == "rgb(244, 245, 247)"


@pytest.mark.slow
def test_a_thousand_runs_are_paged_and_found(page, site):
    began = time.monotonic()
    page.goto(site[0] + "#/runs")
    page.wait_for_selector("text=1000 runs, page 1 of 20")
    assert time.monotonic() - began < 30 and page.locator("tbody tr").count() == 50
    page.get_by_role("button", name="Older").click()
    page.wait_for_selector("text=1000 runs, page 2 of 20")
    page.get_by_label("Find runs").fill("base")
    page.wait_for_selector("text=1 run, page 1 of 1")


def test_curves_and_markup_in_names(page, site):
    page.goto(site[0] + "#/runs/20261121-000002-aaaa")
    page.wait_for_selector(".chart svg .curve")
    assert page.inner_text("h1") == "<i>tilt</i>" and page.locator("h1 i").count() == 0
    assert page.get_by_text("<b>hang</b>").count() == 1  # what was found while it goes on
    assert "loss" in page.inner_text(".plots")


@pytest.mark.slow
def test_a_log_of_50_megabytes_with_markup(page, site):
    began = time.monotonic()
    page.goto(site[0] + "#/runs/20261121-000003-aaaa")
    page.wait_for_selector("text=52.4 MB in all")
    assert time.monotonic() - began < 40
    text = page.inner_text("pre.log")
    assert "<script>window.hit=1</script>" in text and "\x1b" not in text and "red" in text
    before = len(text)
    page.get_by_role("button", name="Earlier").click()
    for _ in range(100):  # Playwright's own waiting would need eval, which the page's policy forbids
        if page.evaluate("document.querySelector('pre.log').textContent.length") > before:
            break
        page.wait_for_timeout(100)
    assert page.evaluate("document.querySelector('pre.log').textContent.length") > before
    assert page.evaluate("window.hit") is None and page.locator("pre.log b, pre.log img").count() == 0


def test_the_receipt_is_shown_in_a_frame_that_can_do_nothing(page, site):
    page.goto(site[0] + "#/runs/20261121-000001-aaaa")
    frame = page.frame_locator("iframe")
    page.locator("iframe").scroll_into_view_if_needed()
    frame.get_by_role("heading", name="Measured").wait_for()
    assert frame.locator("h1").count() == 0  # its heading stands above already
    inside = "document.querySelector('iframe').contentDocument.documentElement.scrollHeight"
    for _ in range(50):  # as tall as its content: the page scrolls, and nothing in it
        taller = page.evaluate(f"document.querySelector('iframe').clientHeight - {inside}")
        if 0 <= taller <= 2:
            break
        page.wait_for_timeout(100)
    assert 0 <= taller <= 2
    _, headers, _ = get(site[0] + "receipts/20261121-000001-aaaa")
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy and "sandbox" in policy and "script" not in policy


def test_every_project_of_the_user_is_listed_sorted_and_filtered(page, tmp_path):
    environ = {"SEATRIAL_STATE": str(tmp_path / "state")}
    first, second = (RunStore(tmp_path / name, Host(environ)) for name in ("here", "there"))
    for store, ids in ((first, ["20261121-000001-aaaa", "20261121-000002-aaaa"]), (second, ["20261121-000003-aaaa"])):
        store.project.mkdir()
        store.create("20261121-000000-xxxx", None)  # the first run of a project writes it into the registry
        for place, id in enumerate(ids):
            a_run(store, id, name=f"run-{id[14]}", offset=int(id[14]), ended=place == 0)
    with serving(first, environ=environ) as (address, _):
        page.goto(address + "#/runs")
        page.wait_for_selector("text=5 runs, page 1 of 1")
        assert page.get_by_label("Project", exact=True).inner_text().split("\n") == ["All projects", "here", "there"]
        page.get_by_role("button", name="Loss").click()
        page.wait_for_selector("th[aria-sort] >> text=Loss")
        names = page.locator("td.run a")
        assert [names.nth(place).inner_text() for place in range(3)] == ["run-1", "run-2", "run-3"]
        page.get_by_role("button", name="Running").click()
        page.wait_for_selector("text=3 runs")  # run-2, and the two that were only begun
        page.get_by_role("button", name="All").click()
        page.get_by_label("Project", exact=True).select_option(label="there")
        page.wait_for_selector("text=2 runs")
        page.get_by_role("link", name="run-3").click()
        page.wait_for_selector(".verdict .badge")
        assert "there" in page.inner_text(".brand")
        assert json.loads(get(address + "api/runs?sort=started")[2])["total"] == 5
        assert get(address + "api/runs?sort=id")[0] == 400 == get(address + "api/runs?status=x")[0]
        page.goto("about:blank")
    with serving(first) as (address, _):  # one project: nothing of the other can be had
        assert json.loads(get(address + "api/runs")[2])["total"] == 3
        assert get(address + "api/runs/20261121-000003-aaaa")[0] == 404


def test_with_the_keyboard_alone_to_a_comparison(page, site):
    page.goto(site[0])
    page.wait_for_selector("text=live")

    def focused():
        return page.evaluate(
            "(document.activeElement.getAttribute('aria-label') || document.activeElement.textContent)"
        )

    def tab_to(what, limit=40):
        for _ in range(limit):
            page.keyboard.press("Tab")
            if what in focused():
                return
        raise AssertionError(f"{what} is not reached by Tab")

    tab_to("Runs")
    page.keyboard.press("Enter")
    page.wait_for_selector("text=1000 runs")
    tab_to("Compare <i>tilt</i>")
    page.keyboard.press("Space")
    tab_to("Compare base")
    page.keyboard.press("Space")
    page.wait_for_selector("button:not([disabled]):has-text('Compare 2 runs')")
    for _ in range(20):
        page.keyboard.press("Shift+Tab")
        if focused() == "Compare 2 runs":
            break
    page.keyboard.press("Enter")
    page.wait_for_selector("text=Changes are against 20261121-000002-aaaa")
    page.wait_for_selector(".chart svg .curve")
    assert "20261121-000002-aaaa" in page.locator("thead").first.inner_text()


def test_it_is_readable_on_a_phone(browser, site):
    context = browser.new_context(viewport={"width": 360, "height": 740}, device_scale_factor=2)
    page = context.new_page()
    for view in ("", "#/runs", "#/runs/20261121-000001-aaaa", "#/compare/20261121-000001-aaaa/20261121-000002-aaaa"):
        page.goto(site[0] + view)
        page.wait_for_selector("table.runs td:visible" if view == "#/runs" else "main h1")
        page.wait_for_timeout(700)
        assert page.evaluate("document.documentElement.scrollWidth") <= 360, view
        # In one call, as the page renews its rows. Hidden cells have no width.
        cells = "[...document.querySelectorAll('table.runs td:not(.pick)')]"
        widths = page.evaluate(f"{cells}.map(each => each.getBoundingClientRect().width).filter(width => width > 0)")
        assert all(width > 50 for width in widths), (view, widths)  # no column of letters
        assert widths or view != "#/runs"
    words = page.locator("th[scope=row]").filter(has_text="outcome")
    assert words.bounding_box()["width"] > 50  # in the comparison a label is a word, not a column of letters
    context.close()


def test_nothing_but_get_and_no_path_out(site):
    address, _ = site
    for method in ("POST", "PUT", "DELETE", "PATCH"):
        assert get(address + "api/runs", method)[0] == 405
    for path in (
        "api/runs/..",
        "api/runs/%2e%2e%2f%2e%2e%2fetc",
        "receipts/..%2f..",
        "..%2f..%2fetc%2fpasswd",
        "app.py",
    ):
        assert get(address + path)[0] == 404, path
    assert get(address + "api/runs/x/log?start=-1")[0] in (400, 404)
    assert get(address + "api/runs?page=x")[0] == 400
    status, headers, _ = get(address)
    policy = headers["content-security-policy"]
    assert status == 200 and "script-src 'self';" in policy and "default-src 'none'" in policy
    assert headers["x-content-type-options"] == "nosniff"


def test_another_sites_name_for_this_address_is_turned_away(site):
    assert get(site[0], Host="evil.example:8765")[0] == 403
    assert get(site[0], Host="localhost:8765")[0] == 200 and get(site[0], Host="[::1]:8765")[0] == 200


def test_a_token_is_requested_everywhere(store):
    with serving(store, token="s3cret") as (address, _):
        for path in ("", "app.js", "api/runs", "api/events", "receipts/x"):
            assert get(address + path)[0] == 401
        assert get(address + "?token=wrong")[0] == 401
        assert get(address + "api/runs", Authorization="Bearer s3cret")[0] == 200
        assert get(address + "api/runs", Cookie="seatrial-token=s3cret")[0] == 200
        assert get(address + "api/runs", Host="any.example", Cookie="seatrial-token=s3cret")[0] == 200
        opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
        answer = opener.open(address + "?token=s3cret")
        assert answer.url == address and answer.status == 200  # the token has left the address


def test_fifty_dashboards_get_every_reading(store):
    """Fifty open streams, read from the moment that all are open: none misses a reading."""
    with serving(store, interval_s=0.5) as (address, _):
        seen, all_open = [[] for _ in range(50)], threading.Barrier(50)

        def watch(times):
            with urllib.request.urlopen(address + "api/events", timeout=300) as stream:
                all_open.wait(60)
                while len(times) < 8:
                    line = stream.readline()
                    if line.startswith(b"data: "):
                        times.append(json.loads(line[6:])["t"])

        threads = [threading.Thread(target=watch, args=(times,)) for times in seen]
        for each in threads:
            each.start()
        for each in threads:
            each.join(120)
    every = sorted({t for times in seen for t in times})
    for times in seen:
        assert times == [t for t in every if times[0] <= t <= times[-1]] and len(times) == 8


def test_a_port_in_use_is_one_sentence():
    from seatrial.errors import UsageError

    taken = socket.socket()
    taken.bind(("127.0.0.1", 0))
    taken.listen()
    with pytest.raises(UsageError, match="Cannot listen on"):
        server.listen("dashboard", "127.0.0.1", taken.getsockname()[1])
    taken.close()


def test_no_answer_reports_user_host_or_home(tmp_path):
    store = RunStore(tmp_path / "project")
    reported = b"saved to /home/zebedee/out on florence.example.org for zebedee\n"
    folder = a_run(store, "20261121-000001-aaaa", name="zebedee-1", stdout=reported)
    notes = [{"t": 1e9, "type": "note", "source": "agent", "message": reported.decode()}]
    notes.append({"t": 1e9, "type": "host.launched", "source": "host", "host": "florence.example.org"})
    with (folder / "events.jsonl").open("a") as events:
        events.writelines(json.dumps(note) + "\n" for note in notes)
    hidden = names.Names(users=("zebedee",), hosts=("florence.example.org", "florence"), homes=("/home/zebedee",))
    for shown in (hidden, NOBODY):
        with serving(store, hidden=shown) as (address, _):
            places = ["api/runs", "api/runs/ID", "api/runs/ID/log", "api/compare?run=ID&run=ID", "receipts/ID"]
            texts = [get(address + place.replace("ID", folder.name))[2] for place in places]
        text = "".join(text.decode() for text in texts)
        assert folder.name in text
        assert ("zebedee" in text or "florence" in text) == (shown is NOBODY)
        assert ("saved to ~/out on HOST for USER" in text) == (shown is hidden)
