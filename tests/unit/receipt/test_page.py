"""The receipt's page: failures first, the end of the logs, and numbers and charts of one window."""

import re
import time

import pytest

from seatrial.backends.base import State
from seatrial.receipt.logs import MAX_FRAMES, MAX_LETTERS, MAX_LINES, read_log_end, read_output
from seatrial.receipt.render import pages
from seatrial.receipt.render.svg import HEIGHT, draw
from seatrial.receipt.section import Line, Plot
from seatrial.receipt.sections.curves import values_in_window, window_note

from .conftest import at


def test_failed_criteria_are_first_and_open_ones_folded(scenario, tmp_path):
    run = scenario("cpu-success")
    run.criteria = {"metrics": {"accuracy": ">= 2", "loss": "<= 100"}}
    page = pages.render(run.judge(tmp_path))
    _, _, criteria = page.partition("<h2>Criteria</h2>")
    shown, _, folded = criteria.partition("<details>")
    order = re.findall(r'badge (\w+)">[✓✗!] (?:pass|fail|warning)<', shown)
    assert order[0] == "fail" and order == sorted(order, key=["fail", "warning", "pass"].index) and "pass" in order
    assert "not judged" in folded.partition("</details>")[0] and "not judged" not in shown
    verdict = page.partition('<div class="verdict">')[2].partition("</div>")[0]
    assert "criteria not met" in verdict and re.search(r"<b>Metric accuracy: [\d.]+, required: &gt;= 2</b>", verdict)
    assert "not met: " not in verdict


def test_failed_run_shows_traceback_and_last_lines_without_secrets(scenario, tmp_path, monkeypatch):
    monkeypatch.setenv("API_TOKEN", "opensesame-77")
    run = scenario("script-error")
    run.stderr = run.stderr.replace("ValueError: ", "ValueError: opensesame-77 ")
    run.job = {"secrets": ("API_TOKEN",)}
    receipt = run.judge(tmp_path)
    assert receipt.ending.traceback[0].startswith("Traceback")
    assert receipt.ending.traceback[-1].startswith("ValueError: <redacted> expected 10 classes")
    page = pages.render(receipt)
    assert page.index("Why it failed") < page.index("<h2>Criteria</h2>") and "File &#34;/workspace/train.py" in page
    assert "opensesame" not in receipt.model_dump_json() + page
    assert "<script" not in page and "Why it failed" not in pages.render(receipt, embedded=True)


@pytest.mark.parametrize(("name", "has_end"), [("cpu-success", False), ("script-error", True)])
def test_end_of_the_logs_is_kept_of_failures_alone(scenario, tmp_path, name, has_end):
    run = scenario(name)
    if has_end:  # known by the state alone
        run.events = [*run.events[:-2], at(6.5, "note", message="gone")]
        run.state = State("exited", 1)
    assert (run.judge(tmp_path).ending is not None) == has_end


class TestLogEnd:
    def end(self, folder, stderr="", stdout=""):
        (folder / "stderr.log").write_bytes(stderr if isinstance(stderr, bytes) else stderr.encode())
        (folder / "stdout.log").write_bytes(stdout if isinstance(stdout, bytes) else stdout.encode())
        return read_log_end(folder)

    def test_last_lines_of_each_stream(self, tmp_path):
        end = self.end(tmp_path, "warning: x\n", "".join(f"line {n}\n" for n in range(100)) + "\n\n")
        assert len(end.stdout) == MAX_LINES and (end.stdout[0], end.stdout[-1]) == ("line 60", "line 99")
        assert end.stderr == ("warning: x",) and end.traceback == ()

    def test_control_sequences_are_removed_and_long_lines_cut(self, tmp_path):
        steering = "\x1b[31mred\x1b[0m \x1b]0;title\x07 \u202egnirts\r\nold\rnew\xff\n"
        end = self.end(tmp_path, steering, b"\xff" + b"x" * 10_000 + b"\n")
        assert end.stderr == ("red  gnirts", "newÿ")
        assert len(end.stdout[0]) == MAX_LETTERS and end.stdout[0].endswith("…")

    def test_last_traceback_is_not_the_launchers(self, tmp_path):
        first = "Traceback (most recent call last):\n  File 'a'\nKeyError: 'a'\n"
        ranks = "[rank1]: Traceback (most recent call last):\n[rank1]:   File 'b'\n50%|##\n[rank1]: ValueError: b\n"
        launcher = "Traceback (most recent call last):\n  File 'c'\ntorch.distributed.ChildFailedError: \n"
        end = self.end(tmp_path, first + ranks + launcher)
        assert end.traceback == ("Traceback (most recent call last):", "  File 'b'", "50%|##", "ValueError: b")

    def test_exception_of_several_lines_is_whole(self, tmp_path):
        error = "RuntimeError: Error(s) in loading for Net:\n\tsize mismatch for l.weight\n  fix: load another"
        end = self.end(tmp_path, f"Traceback (most recent call last):\n  File 'a'\n{error}\nbye\n")
        assert end.traceback[2:] == tuple(error.splitlines())
        one_line = "RuntimeError: Error(s) in loading for Net: size mismatch for l.weight"
        assert read_output(tmp_path).exception == one_line

    def test_exception_of_a_local_class_ends_its_traceback(self, tmp_path):
        end = self.end(tmp_path, "Traceback (most recent call last):\n  File 'a'\nmain.<locals>.Bad: boom\nbye\nDone\n")
        assert end.traceback == ("Traceback (most recent call last):", "  File 'a'", "main.<locals>.Bad: boom")

    def test_beginnings_of_tracebacks_without_an_end_take_no_time(self, tmp_path):
        began_s = time.process_time()
        assert self.end(tmp_path, "Traceback (most recent call last):\n" * 7000).traceback == ()
        assert time.process_time() - began_s < 1

    def test_deep_traceback_keeps_both_ends(self, tmp_path):
        frames = "".join(f"  File {n}\n" for n in range(2000))
        end = self.end(tmp_path, f"Traceback (most recent call last):\n{frames}RecursionError: deep\n")
        assert len(end.traceback) == MAX_FRAMES + 1 and end.traceback[-1] == "RecursionError: deep"
        assert "  File 0" in end.traceback and any("left out" in line for line in end.traceback)

    @pytest.mark.parametrize("link", [False, True])
    def test_missing_log_or_link_has_no_end(self, tmp_path, link):
        if link:
            (tmp_path / "secret").write_text("secret\n")
            (tmp_path / "stderr.log").symlink_to(tmp_path / "secret")
        assert read_log_end(tmp_path) is None


def test_numbers_of_charts_are_those_under_measured(scenario, tmp_path):
    receipt = scenario("h200-success").judge(tmp_path)
    plots = {plot.id: plot for plot in receipt.plots}
    values = values_in_window(receipt, plots["gpu-0-busy"])
    busy = dict(zip((line.name for line in plots["gpu-0-busy"].lines), values, strict=True))
    assert busy["utilisation"] == ("mean", receipt.measurements.gpus[0].utilization_mean_pct)
    assert values_in_window(receipt, plots["cpu"]) == [("mean", receipt.measurements.cpu_cores_mean)]
    assert values_in_window(receipt, plots["steps-loss"]) is None
    assert "Shaded: the training window, " in pages.render(receipt)
    measured = receipt.measurements.model_copy(update={"samples": 0, "window_start_s": 1e6, "window_s": 1.0})
    empty = receipt.model_copy(update={"measurements": measured})
    ((word, _),) = values_in_window(empty, plots["cpu"])
    assert word == "mean of the run" and "of the whole run" in window_note(empty)


def a_plot(*points):
    return Plot(id="p", title="p", unit="", x="step", lines=(Line(name="x", points=points),))


@pytest.mark.parametrize("count", range(1, 6))
def test_no_cell_of_the_plots_is_empty(scenario, tmp_path, count):
    receipt = scenario("cpu-success").judge(tmp_path)
    plots = (a_plot((0.0, 1.0), (1.0, 2.0)),) * count
    page = pages.render(receipt.model_copy(update={"plots": plots, "anatomy": ()}))
    wide = page.count('<div class="broad">')  # spans both columns
    assert (count + wide) % 2 == 0 and wide <= 1


def test_axis_title_is_below_its_ticks_and_close_ticks_differ():
    drawn = draw(a_plot((0.0, 1.0), (9.0, 2.0)))
    ys = {text: float(y) for y, text in re.findall(r'<text x="[\d.]+" y="([\d.]+)"[^>]*>([^<]*)</text>', drawn)}
    assert ys["step"] - ys["5"] >= 12 and ys["step"] < HEIGHT
    shown = re.findall(r'text-anchor="end">([\d.]+)</text>', draw(a_plot((0.0, 0.99966), (1.0, 1.0))))
    assert len(shown) >= 4 and len(set(shown)) == len(shown) and "0.9998" in shown


def test_no_tick_lies_between_two_trials() -> None:
    drawn = draw(a_plot((0.0, 62.0), (1.0, 66.0)))
    assert re.findall(r'text-anchor="(?:middle|end)">([\d.]+)</text>', drawn.partition("M")[2])[-2:] == ["0", "1"]
