"""What readers see: snapshots of the terminal and Markdown, and that nothing a run printed can act on its reader."""

import io
import json
import re
from html.parser import HTMLParser

import pytest
from rich.console import Console

from seatrial.errors import DiskError, RunNotFoundError
from seatrial.receipt.render import html, markdown, terminal
from seatrial.receipt.store import load, write_receipt

from .conftest import START, at

#: Every verdict, every section, one and two GPUs, CPU: the rest differs in words alone.
SHOWN = ["h200-success", "cpu-fallback", "contract-failure", "gpu-not-used", "cuda-oom", "host-oom", "garbage"]


def in_terminal(receipt, width=80, **options):
    file = io.StringIO()
    terminal.render(receipt, Console(file=file, width=width, **options))
    return file.getvalue()


@pytest.mark.parametrize("name", SHOWN)
def test_terminal(scenario, tmp_path, snapshot, name):
    shown = in_terminal(scenario(name).judge(tmp_path))
    assert all(len(line) <= 80 for line in shown.splitlines())
    assert shown == snapshot


@pytest.mark.parametrize("name", SHOWN)
def test_markdown(scenario, tmp_path, snapshot, name):
    assert markdown.render(scenario(name).judge(tmp_path)) == snapshot


def test_colour_adds_nothing_that_words_do_not_say(scenario, tmp_path):
    receipt = scenario("cuda-oom").judge(tmp_path)
    coloured = in_terminal(receipt, force_terminal=True, color_system="truecolor")
    assert "\x1b[" in coloured
    assert re.sub(r"\x1b\[[\d;]*m", "", coloured) == in_terminal(receipt)


def test_an_ascii_terminal_gets_ascii(scenario, tmp_path):
    raw = io.BytesIO()
    with io.TextIOWrapper(raw, encoding="ascii") as file:
        terminal.render(scenario("h200-success").judge(tmp_path), Console(file=file, width=80))
        file.flush()
        assert raw.getvalue().startswith(b"[v] train.py")


def test_what_a_run_printed_is_no_markup_in_a_terminal(scenario, tmp_path):
    shown = in_terminal(scenario("script-error").judge(tmp_path))
    assert "[bold]11[/bold]" in shown


def test_escape_sequences_of_a_run_do_not_reach_the_terminal(scenario, tmp_path):
    run = scenario("cpu-success")
    run.events.append(at(36.2, "note", message="\x1b[2J\x1b]0;owned\x07cleared\x9b5A \r\u009b"))
    shown = in_terminal(run.judge(tmp_path))
    assert "cleared" in shown
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", shown)


class TestHtml:
    @pytest.fixture
    def page(self, every_scenario, tmp_path):
        return html.render(every_scenario[1].judge(tmp_path))

    def test_nothing_is_loaded_and_nothing_runs(self, page):
        assert not re.search(r"https?://|\bsrc=|\bhref=|url\(|@import|<script|<link|\bon\w+=", page)
        assert "default-src 'none'" in page

    def test_what_a_run_printed_is_escaped(self, scenario, tmp_path):
        run = scenario("script-error")
        run.events += [at(6.1, "note", message='"><svg onload=alert(1)>')]
        run.events += [at(6.2, "step", "target", **{'"><img src=x onerror=alert(1)>': x}) for x in (1.0, 2.0)]
        page = html.render(run.judge(tmp_path))
        assert "<script>" not in page and "&lt;script&gt;alert(1)" in page
        assert "&lt;img" in page and "&lt;svg onload" in page
        assert "<img" not in page and "<svg onload" not in page

    def test_tags_are_balanced(self, page):
        open_tags = []

        class Checker(HTMLParser):
            def handle_starttag(self, tag, attrs):
                if tag != "meta":
                    open_tags.append(tag)

            def handle_startendtag(self, tag, attrs):
                assert tag in ("path", "circle")

            def handle_endtag(self, tag):
                assert open_tags.pop() == tag

        Checker().feed(page)
        assert open_tags == []

    def test_plots_for_a_gpu_run(self, scenario, tmp_path):
        page = html.render(scenario("h200-success").judge(tmp_path))
        titles = re.findall(r"<h3>([^<]*)</h3><ul>", page)
        assert titles == ["loss", "accuracy", "GPU busy (%)", "GPU memory, sampled (GB)", "GPU power (W)",
                          "CPU (cores)", "Host memory, sampled (GB)"]  # fmt: skip

    def test_the_tiles_do_not_show_the_busy_gpu_alone(self, scenario, tmp_path):
        page = html.render(scenario("gpu-not-used").judge(tmp_path))
        assert "<b>44 %</b><span>GPU utilisation</span>" in page
        assert "<b>cause:</b> The script uses 1 GPU" in page and "<b>fix:</b></p><pre><code>seatrial run" in page

    @pytest.mark.parametrize("count", [20_000, pytest.param(100_000, marks=pytest.mark.slow)])
    def test_a_hundred_thousand_steps_stay_small_and_keep_their_spike(self, scenario, tmp_path, count):
        run = scenario("cpu-success")
        steps = [
            at(4 + i / 4000, "step", "target", step=i, loss=1 / (1 + i), lr=1e-3, accuracy=i / 1e5, grad_norm=i % 97)
            for i in range(count)
        ]
        steps[count // 2 + 4321]["loss"] = 77.0
        run.events[-2:-2] = steps
        receipt = run.judge(tmp_path)
        loss = next(line for plot in receipt.plots for line in plot.lines if line.name == "loss")
        assert max(y for _, y in loss.points) == 77.0
        assert len(html.render(receipt)) < 200_000
        assert len(receipt.model_dump_json()) < 200_000

    def test_ten_thousand_metric_names_are_cut_and_the_cut_is_said(self, scenario, tmp_path):
        run = scenario("cpu-success")
        run.events += [at(5, "step", "target", **{f"m{i}": i, "step": s}) for s in range(2) for i in range(10_000)]
        receipt = run.judge(tmp_path)
        assert len(html.render(receipt)) < 2_000_000
        assert any("metrics were skipped" in warning for warning in receipt.warnings)


def test_written_and_read_back(scenario, tmp_path):
    receipt = scenario("h200-success").judge(tmp_path)
    write_receipt(tmp_path / "run", receipt)
    assert load(tmp_path / "run") == receipt
    names = sorted(path.name for path in (tmp_path / "run").iterdir())
    assert names == ["receipt.html", "receipt.json", "receipt.md", "stderr.log", "stdout.log"]
    assert json.loads((tmp_path / "run" / "receipt.json").read_text())["schema_version"] == 1


def test_a_receipt_of_a_newer_version_with_more_keys_is_read(scenario, tmp_path):
    receipt = scenario("cpu-success").judge(tmp_path)
    newer = {**receipt.model_dump(mode="json"), "carbon_g": 12}
    (tmp_path / "receipt.json").write_text(json.dumps(newer))
    assert load(tmp_path) == receipt


@pytest.mark.parametrize("content", [None, "", "{}", '{"header": 1}'])
def test_no_receipt(tmp_path, content):
    if content is not None:
        (tmp_path / "receipt.json").write_text(content)
    with pytest.raises(RunNotFoundError, match="receipt"):
        load(tmp_path)


def test_a_full_disk_leaves_the_old_receipt_and_no_scraps(scenario, tmp_path):
    receipt = scenario("cpu-success").judge(tmp_path)
    folder = tmp_path / "gone"
    with pytest.raises(DiskError, match="cannot write"):
        write_receipt(folder, receipt)
    assert not folder.exists()


def test_the_start_is_the_events_own(scenario, tmp_path):
    assert scenario("cpu-success").judge(tmp_path).header.started_at == START
