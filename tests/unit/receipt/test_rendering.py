"""Renderings: snapshots of terminal and Markdown, and no output of a run acts on its reader."""

import io
import json
import re
from html.parser import HTMLParser

import pytest
from rich.console import Console

from seatrial.errors import DiskError, RunNotFoundError, UntrustedPathError
from seatrial.receipt.judge import write_receipt
from seatrial.receipt.model import load, numbers
from seatrial.receipt.render import markdown, pages, terminal

from .conftest import START, at

#: Every verdict, every section, one and two GPUs, CPU: the rest differs in words alone.
SHOWN = ["h200-success", "cpu-fallback", "contract-failure", "gpu-not-used", "cuda-oom", "host-oom", "garbage"]


def in_terminal(receipt, width=80, **options):
    file = io.StringIO()
    terminal.render(receipt, Console(file=file, width=width, **options))
    return file.getvalue()


@pytest.mark.parametrize("name", SHOWN)
def test_terminal(scenario, tmp_path, snapshot, name):
    receipt = scenario(name).judge(tmp_path)
    shown = in_terminal(receipt)
    assert all(len(line) <= 80 for line in shown.splitlines())
    assert shown == snapshot
    coloured = in_terminal(receipt, force_terminal=True, color_system="truecolor")
    assert "\x1b[" in coloured and re.sub(r"\x1b\[[\d;]*m", "", coloured) == shown


@pytest.mark.parametrize("name", SHOWN)
def test_markdown(scenario, tmp_path, snapshot, name):
    assert markdown.render(scenario(name).judge(tmp_path)) == snapshot


def test_ascii_terminal_gets_ascii(scenario, tmp_path):
    raw = io.BytesIO()
    with io.TextIOWrapper(raw, encoding="ascii") as file:
        terminal.render(scenario("h200-success").judge(tmp_path), Console(file=file, width=80))
        file.flush()
        assert raw.getvalue().startswith(b"[v] train.py")


def test_output_of_a_run_cannot_steer_a_terminal(scenario, tmp_path):
    run = scenario("script-error")
    run.events.append(at(36.2, "note", message="\x1b[2J\x1b]0;owned\x07cleared\x9b5A \r\u009b"))
    shown = in_terminal(run.judge(tmp_path))
    assert "cleared" in shown and "[bold]11[/bold]" in shown
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", shown)


def test_page_loads_nothing_and_its_tags_are_balanced(every_scenario, tmp_path):
    page = pages.render(every_scenario[1].judge(tmp_path))
    assert not re.search(r"https?://|\bsrc=|\bhref=|url\(|@import|<script|<link|\bon\w+=", page)
    assert "default-src 'none'" in page
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


def test_output_of_a_run_is_escaped_in_a_page(scenario, tmp_path):
    run = scenario("script-error")
    run.events += [at(6.1, "note", message='"><svg onload=alert(1)>')]
    run.events += [at(6.2, "step", "target", **{'"><img src=x onerror=alert(1)>': x}) for x in (1.0, 2.0)]
    page = pages.render(run.judge(tmp_path))
    assert "<script>" not in page and "&lt;script&gt;alert(1)" in page
    assert "&lt;img" in page and "&lt;svg onload" in page
    assert "<img" not in page and "<svg onload" not in page


def test_plots_and_tiles_of_gpu_runs(scenario, tmp_path):
    page = pages.render(scenario("h200-success").judge(tmp_path))
    titles = re.findall(r"<h3>([^<]*)</h3><ul>", page)
    assert titles == ["loss", "accuracy", "GPU busy (%)", "GPU memory, sampled (GB)", "GPU power (W)", "CPU (cores)",
                      "Host memory, sampled (GB)"]  # fmt: skip
    (tmp_path / "other").mkdir()
    page = pages.render(scenario("gpu-not-used").judge(tmp_path / "other"))
    assert "<b>44 %</b><span>GPU utilisation</span>" in page, "not of the busy GPU alone"
    assert "<b>cause:</b> The script uses 1 GPU" in page and "</p><pre><code>seatrial run" in page


def test_a_loss_that_ended_as_nan_is_no_number_in_verdict_and_tile(scenario, tmp_path):
    run = scenario("cpu-success")
    run.events = [event for event in run.events if event["type"] != "step"]
    run.stdout = "step 1 loss=2.5\nstep 2 loss=9.5e+16\nstep 3 loss=nan\n"
    receipt = run.judge(tmp_path)
    assert "loss nan" in numbers(receipt) and "<b>nan</b><span>loss</span>" in pages.render(receipt)


@pytest.mark.parametrize("count", [10_000, pytest.param(100_000, marks=pytest.mark.slow)])
def test_many_steps_stay_small_and_keep_their_spike(scenario, tmp_path, count):
    run = scenario("cpu-success")
    steps = [
        at(4 + i / 4000, "step", "target", step=i, loss=1 / (1 + i), lr=1e-3, grad_norm=i % 97) for i in range(count)
    ]
    steps[count // 2 + 4321]["loss"] = 77.0
    run.events[-2:-2] = steps
    receipt = run.judge(tmp_path)
    loss = next(line for plot in receipt.plots for line in plot.lines if line.name == "loss")
    assert max(y for _, y in loss.points) == 77.0
    assert len(pages.render(receipt)) < 200_000 and len(receipt.model_dump_json()) < 200_000


def test_too_many_metric_names_are_cut_with_a_warning(scenario, tmp_path):
    run = scenario("cpu-success")
    run.events += [at(5, "step", "target", **{f"m{i}": i, "step": s}) for s in range(2) for i in range(3_000)]
    receipt = run.judge(tmp_path)
    assert len(pages.render(receipt)) < 2_000_000
    assert any("metrics were skipped" in warning for warning in receipt.warnings)


def test_written_receipt_is_read_back_also_from_a_newer_version(scenario, tmp_path):
    receipt = scenario("h200-success").judge(tmp_path)
    assert receipt.header.started_at == START
    write_receipt(tmp_path / "run", receipt)
    assert load(tmp_path / "run") == receipt
    names = sorted(path.name for path in (tmp_path / "run").iterdir())
    assert names == ["receipt.html", "receipt.json", "receipt.md", "stderr.log", "stdout.log"]
    content = json.loads((tmp_path / "run" / "receipt.json").read_text())
    assert content["schema_version"] == 1
    (tmp_path / "receipt.json").write_text(json.dumps({**content, "carbon_g": 12}))
    assert load(tmp_path) == receipt


@pytest.mark.parametrize("content", [None, "", "{}", '{"header": 1}'])
def test_unreadable_receipt_is_refused(tmp_path, content):
    if content is not None:
        (tmp_path / "receipt.json").write_text(content)
    with pytest.raises(RunNotFoundError if content is None else UntrustedPathError, match="receipt"):
        load(tmp_path)


def test_failed_write_leaves_nothing(scenario, tmp_path):
    receipt = scenario("cpu-success").judge(tmp_path)
    folder = tmp_path / "gone"
    with pytest.raises(DiskError, match="Cannot write"):
        write_receipt(folder, receipt)
    assert not folder.exists()
