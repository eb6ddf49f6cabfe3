"""The receipt's page: what failed comes first, why it failed is on it, and numbers and charts are of one window."""

import re

import pytest

from seatrial.backends.base import State
from seatrial.receipt.logs import MAX_FRAMES, MAX_LETTERS, MAX_LINES, read_log_end, read_output
from seatrial.receipt.render import html
from seatrial.receipt.render.svg import HEIGHT, draw
from seatrial.receipt.section import Line, Plot
from seatrial.receipt.sections.curves import values_in_window
from seatrial.receipt.sections.curves import window_note as window_words

from .conftest import at


def test_criteria_come_as_one_looks_for_them_and_the_open_ones_are_folded(scenario, tmp_path):
    run = scenario("cpu-success")
    run.criteria = {"metrics": {"accuracy": ">= 2", "loss": "<= 100"}}
    receipt = run.judge(tmp_path)
    page = html.render(receipt)
    _, _, criteria = page.partition("<h2>Criteria</h2>")
    shown, _, folded = criteria.partition("<details>")
    order = re.findall(r'badge (\w+)">[✓✗!] (?:pass|fail|warning)<', shown)
    assert order[0] == "fail" and order == sorted(order, key=["fail", "warning", "pass"].index) and "pass" in order
    folded = folded.partition("</details>")[0]
    assert "not judged" in folded and "not judged" not in shown
    assert page.count("<details") == 1


def test_what_is_not_met_stands_beside_the_badge(scenario, tmp_path):
    run = scenario("cpu-success")
    run.criteria = {"metrics": {"accuracy": ">= 2"}}
    page = html.render(run.judge(tmp_path))
    verdict = page.partition('<div class="verdict">')[2].partition("</div>")[0]
    assert "criteria not met" in verdict and re.search(r"<b>Metric accuracy: [\d.]+, required: &gt;= 2</b>", verdict)
    assert "not met: " not in verdict


def test_a_run_that_failed_shows_its_traceback_and_its_last_lines(scenario, tmp_path):
    receipt = scenario("script-error").judge(tmp_path)
    assert receipt.ending and receipt.ending.traceback[0].startswith("Traceback")
    assert receipt.ending.traceback[-1].startswith("ValueError: expected 10 classes")
    page = html.render(receipt)
    assert page.index("Why it failed") < page.index("<h2>Criteria</h2>") and "File &#34;/workspace/train.py" in page
    assert "<script" not in page and "Why it failed" not in html.render(receipt, embedded=True)
    assert scenario("cpu-success").judge(tmp_path / "other").ending is None


def test_names_and_secrets_leave_the_traceback(scenario, tmp_path, monkeypatch):
    monkeypatch.setenv("API_TOKEN", "opensesame-77")
    run = scenario("script-error")
    run.stderr = run.stderr.replace("ValueError: ", "ValueError: opensesame-77 ")
    run.job = {"secrets": ("API_TOKEN",)}
    receipt = run.judge(tmp_path)
    assert receipt.ending and "opensesame" not in receipt.model_dump_json() + html.render(receipt)


class TestLogEnd:
    def test_the_last_forty_lines_of_each_stream(self, tmp_path):
        (tmp_path / "stdout.log").write_text("".join(f"line {n}\n" for n in range(100)) + "\n\n")
        (tmp_path / "stderr.log").write_text("warning: x\n")
        end = read_log_end(tmp_path)
        assert end and len(end.stdout) == MAX_LINES and end.stdout[-1] == "line 99" and end.stdout[0] == "line 60"
        assert end.stderr == ("warning: x",) and end.traceback == ()

    def test_what_steers_a_terminal_or_turns_words_around_is_gone(self, tmp_path):
        (tmp_path / "stderr.log").write_bytes(
            "\x1b[31mred\x1b[0m \x1b]0;title\x07 \u202egnirts\r\nold\rnew\xff\n".encode()
        )
        (tmp_path / "stdout.log").write_bytes(b"\xff" + b"x" * 10_000 + b"\n")
        end = read_log_end(tmp_path)
        assert end and end.stderr == ("red  gnirts", "newÿ")
        assert len(end.stdout[0]) == MAX_LETTERS and end.stdout[0].endswith("…")

    def test_the_last_traceback_that_is_not_a_launchers(self, tmp_path):
        first = "Traceback (most recent call last):\n  File 'a'\nKeyError: 'a'\n"
        ranks = "[rank1]: Traceback (most recent call last):\n[rank1]:   File 'b'\n[rank1]: ValueError: b\n"
        launcher = "Traceback (most recent call last):\n  File 'c'\ntorch.distributed.ChildFailedError: \n"
        (tmp_path / "stderr.log").write_text(first + ranks + launcher)
        end = read_log_end(tmp_path)
        assert end and end.traceback == ("Traceback (most recent call last):", "  File 'b'", "ValueError: b")

    def test_an_exception_of_several_lines_is_whole(self, tmp_path):
        said = (
            "RuntimeError: Error(s) in loading state_dict for Net:\n\tsize mismatch for l.weight\n  fix: load another"
        )
        (tmp_path / "stderr.log").write_text(f"Traceback (most recent call last):\n  File 'a'\n{said}\nbye\n")
        end = read_log_end(tmp_path)
        assert end and end.traceback[2:] == tuple(said.splitlines())
        told = "RuntimeError: Error(s) in loading state_dict for Net: size mismatch for l.weight"
        assert read_output(tmp_path).exception == told

    def test_a_deep_one_keeps_both_its_ends(self, tmp_path):
        frames = "".join(f"  File {n}\n" for n in range(2000))
        (tmp_path / "stderr.log").write_text(f"Traceback (most recent call last):\n{frames}RecursionError: deep\n")
        end = read_log_end(tmp_path)
        assert end and len(end.traceback) == MAX_FRAMES + 1 and end.traceback[-1] == "RecursionError: deep"
        assert "  File 0" in end.traceback and any("left out" in line for line in end.traceback)

    @pytest.mark.parametrize("made", [None, "link"])
    def test_no_log_and_no_link_is_followed(self, tmp_path, made):
        if made == "link":
            (tmp_path / "secret").write_text("secret\n")
            (tmp_path / "stderr.log").symlink_to(tmp_path / "secret")
        assert read_log_end(tmp_path) is None


class TestWindow:
    def test_numbers_beside_charts_are_those_under_measured(self, scenario, tmp_path):
        receipt = scenario("h200-success").judge(tmp_path)
        plots = {plot.id: plot for plot in receipt.plots}
        busy = dict(zip((line.name for line in plots["gpu-0-busy"].lines),
                        values_in_window(receipt, plots["gpu-0-busy"]) or (), strict=True))  # fmt: skip
        use = receipt.measurements.gpus[0]
        assert busy["utilisation"] == ("mean", use.utilization_mean_pct)
        assert values_in_window(receipt, plots["cpu"]) == [("mean", receipt.measurements.cpu_cores_mean)]
        assert values_in_window(receipt, plots["steps-loss"]) is None
        assert "Shaded: the training window, " in html.render(receipt)

    def test_a_window_without_a_sample_says_that_the_numbers_are_the_runs(self, scenario, tmp_path):
        receipt = scenario("cpu-success").judge(tmp_path)
        measured = receipt.measurements.model_copy(update={"samples": 0, "window_start_s": 1e6, "window_s": 1.0})
        receipt = receipt.model_copy(update={"measurements": measured})
        (plot,) = [plot for plot in receipt.plots if plot.id == "cpu"]
        ((what, _),) = values_in_window(receipt, plot) or [("", 0.0)]
        assert what == "mean of the run" and "of the whole run" in window_words(receipt)


@pytest.mark.parametrize("count", range(1, 6))
def test_no_cell_of_the_plots_is_empty(scenario, tmp_path, count):
    receipt = scenario("cpu-success").judge(tmp_path)
    points = ((0.0, 1.0), (1.0, 2.0))
    plots = tuple(
        Plot(id=f"p{n}", title=f"p{n}", unit="", x="step", lines=(Line(name="x", points=points),)) for n in range(count)
    )
    page = html.render(receipt.model_copy(update={"plots": plots, "anatomy": ()}))
    wide = page.count('<div class="broad">')  # spans both columns
    assert (count + wide) % 2 == 0 and wide <= 1


def test_the_title_of_an_axis_is_below_its_ticks():
    plot = Plot(id="p", title="p", unit="", x="step", lines=(Line(name="x", points=((0.0, 1.0), (9.0, 2.0))),))
    ys = {text: float(y) for y, text in re.findall(r'<text x="[\d.]+" y="([\d.]+)"[^>]*>([^<]*)</text>', draw(plot))}
    assert ys["step"] - ys["5"] >= 12 and ys["step"] < HEIGHT


def test_a_failure_told_by_the_state_alone_has_its_logs_as_well(scenario, tmp_path):
    run = scenario("script-error")
    run.events = [*run.events[:-2], at(6.5, "note", message="gone")]
    run.state = State("exited", 1)
    assert run.judge(tmp_path).ending is not None


def test_ticks_that_are_close_have_labels_that_differ():
    points = ((0.0, 0.99966), (1.0, 1.0))
    plot = Plot(id="p", title="p", unit="", x="step", lines=(Line(name="x", points=points),))
    shown = re.findall(r'text-anchor="end">([\d.]+)</text>', draw(plot))
    assert len(shown) >= 4 and len(set(shown)) == len(shown) and "0.9998" in shown
