"""Two receipts side by side: what is shown, the arithmetic, pages that hold nothing a run could have made."""

import io
import json

import pytest
from rich.console import Console

from seatrial.cli.runs import print_comparison
from seatrial.errors import UsageError
from seatrial.monitor.compare import compare, to_html, to_json
from seatrial.receipt.model import Receipt
from seatrial.receipt.outcome import ExitCause
from seatrial.receipt.section import Line, Plot
from seatrial.receipt.sections.measured import Measurements, Metric
from seatrial.receipt.sections.steps import DiagnosisRecord
from seatrial.receipt.sections.what_ran import Header
from tables import cases


def a_receipt(run_id, name=None, wall_s=10.0, metrics=(), plots=(), cause="data-bound", end="finished", work=None,
              target="train.py", **header):  # fmt: skip
    return Receipt(
        header=Header(run_id=run_id, name=name, target=target, backend="docker", device="cpu", injection="none",
                      judged_at=1.0, **header),
        exit_cause=ExitCause(id=end, words=f"Finished in {wall_s:g} s"),
        exit_code=0 if end == "finished" else 1,
        criteria=(),
        diagnosis=DiagnosisRecord(cause=cause, words=cause),
        measurements=Measurements(wall_s=wall_s, metrics=tuple(metrics), planned_work=work),
        plots=tuple(plots),
    )  # fmt: skip


def a_plot(*values, id="steps-loss", x="step"):
    points = tuple((float(n), value) for n, value in enumerate(values))
    return Plot(id=id, title="loss", unit="", x=x, lines=(Line(name="loss", points=points),))


def a_metric(name, last, best=None, **more):
    return Metric(name=name, first=1.0, last=last, best=best, reports=3, **more)


def rows(found):
    """Label → both texts, and the second's change."""
    every = found.facts + found.numbers
    return {row.label: (*(cell.text for cell in row.cells), row.cells[1].change) for row in every}


def verdicts(found, label):
    (row,) = [row for row in found.numbers if row.label == label]
    return [(cell.verdict, cell.best) for cell in row.cells]


def printed(found, encoding="utf-8", width=100):
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    print_comparison(found, Console(file=file, width=width, highlight=False))
    file.flush()
    return file.buffer.getvalue().decode(encoding)


def receipt_of(run_id, metrics=(), **keys):
    return a_receipt(run_id, metrics=[a_metric(**metric) for metric in metrics], **keys)


@cases("a", "b", "shown", "not_shown")
def test_rows_have_both_values_and_the_change(a, b, shown, not_shown):
    found = rows(compare(receipt_of("r1", **a), receipt_of("r2", **b)))
    texts = {label: [text or "" for text in row] for label, row in found.items()}
    assert shown.items() <= texts.items() and not texts.keys() & set(not_shown or ())


def test_an_argument_is_not_taken_for_a_fact_of_the_run():
    found = rows(compare(*(a_receipt(f"r{n}", target=f"train.py -- --gpus {n} --lr 0.{n}") for n in (1, 2))))
    assert found["--gpus"][:2] == ("1", "2") and found["lr"][:2] == ("0.1", "0.2") and "gpus" not in found


def test_a_nan_is_neither_better_nor_worse():
    a, b = (receipt_of(run, [{"name": "loss", **last}]) for run, last in
            (("r1", {"last": 0.5}), ("r2", {"last": 0.4, "ended_as": "nan"})))  # fmt: skip
    assert verdicts(compare(a, b), "loss, last")[1] == (None, False)


def test_plots_of_both_share_an_axis_and_others_are_left_out():
    a = a_receipt("r1", plots=[a_plot(3.0, 2.0), a_plot(1.0, id="steps-other")])
    b = a_receipt("r2", plots=[a_plot(3.0, 1.0), a_plot(1.0, id="steps-loss", x="epoch")])
    plot = compare(a, b).overlays[0].plot
    assert [line.name for line in plot.lines] == ["r1", "r2"]


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_the_terminal_prints_a_table_without_markup_or_curves(encoding):
    found = compare(a_receipt("r1", name="[bold]x[/]", plots=[a_plot(1.0, 9.0)]), a_receipt("r2", wall_s=2.0))
    text = printed(found, encoding)
    assert "A: [bold]x[/]" in text and ("÷5" if encoding == "utf-8" else "/5") in text and "loss" not in text
    assert max(map(len, text.splitlines())) <= 100


def test_runs_are_named_in_a_terminal_as_they_are_listed():
    ids = ("20260101-000000-aaaa", "20260101-000000-bbbb", "20260101-000000-cccc")
    head = printed(compare(*(a_receipt(each) for each in ids)), width=60).splitlines()[0]
    assert head.split() == ["A:", "aaaa", "B:", "bbbb", "C:", "cccc"]


def test_the_page_escapes_and_the_json_is_complete():
    found = compare(a_receipt("r1", name="<script>x</script>", plots=[a_plot(1.0, 2.0)]), a_receipt("r1"))
    page = to_html(compare(found.runs[0], a_receipt("r2", plots=[a_plot(1.0)])))
    assert (
        "<script" not in page and "&lt;script&gt;" in page and 'class="curve' in page and "default-src 'none'" in page
    )
    assert set(json.loads(json.dumps(to_json(found)))) == {"runs", "facts", "numbers", "plots"}


def test_plots_of_one_id_in_an_older_receipt_are_paired_in_order():
    first, second = (a_receipt(run, plots=[a_plot(1, 2), a_plot(3, 4)]) for run in ("r1", "r2"))
    plots = [each.plot for each in compare(first, second).overlays]
    assert [[p[1] for line in plot.lines for p in line.points] for plot in plots] == [
        [1, 2, 1, 2],
        [3, 4, 3, 4],
    ]


def test_better_and_worse_need_a_good_direction():
    a = a_receipt("r1", wall_s=10.0, metrics=[a_metric("loss", 0.5, 0.5), a_metric("lr", 0.1)])
    b = a_receipt("r2", wall_s=10.05, metrics=[a_metric("loss", 0.499, 0.499), a_metric("lr", 0.2)])
    c = a_receipt("r3", wall_s=20.0, metrics=[a_metric("loss", 0.7, 0.6), a_metric("lr", 0.3)])
    found = compare(a, b, c)
    assert verdicts(found, "wall time") == [(None, True), (None, False), ("worse", False)]  # 0.5 % is noise
    assert verdicts(found, "loss, last") == [(None, False), ("better", True), ("worse", False)]
    assert verdicts(found, "lr, last") == [(None, False)] * 3
    assert "×2 worse" in to_html(found)


def test_a_short_run_makes_no_noise_of_two_longer_ones():
    found = compare(a_receipt("a", wall_s=9.0), a_receipt("b", wall_s=2.9), a_receipt("c", wall_s=0.5))
    (row,) = [row for row in found.numbers if row.label == "wall time"]
    assert [cell.change for cell in row.cells] == [None, "÷3.1", "÷18"]


def test_short_runs_of_equal_work_differ_by_noise():
    found = compare(a_receipt("r1", wall_s=2.14), a_receipt("r2", wall_s=1.98))
    assert rows(found)["wall time"] == ("2.14 s", "1.98 s", "within noise")
    assert verdicts(found, "wall time") == [(None, False), (None, False)]
    assert rows(compare(a_receipt("r1", wall_s=214), a_receipt("r2", wall_s=198)))["wall time"][2] == "-7.5 %"


def test_a_run_has_one_colour_in_every_plot():
    a = a_receipt("r1", name="one", plots=[a_plot(1, 2), a_plot(1, 2, id="gpu")])
    b = a_receipt("r2", name="one", plots=[a_plot(3, 4)])
    two = Line(name="val_loss", points=((0.0, 1.0), (1.0, 2.0)))
    plot = a_plot(5, 6)
    c = a_receipt("r3", plots=[plot.model_copy(update={"lines": (*plot.lines, two)}), a_plot(5, 6, id="gpu")])
    first, second = compare(a, b, c).overlays
    assert first.styles == ("line0", "line1", "line2", "line2 dash1") and second.styles == ("line0", "line2")
    assert [line.name for line in first.plot.lines] == ["one (r1) loss", "one (r2) loss", "r3 loss", "r3 val_loss"]


def test_repeated_numbers_are_shown_once():
    metrics = [a_metric("test_accuracy", 0.9, 0.9), a_metric("end_accuracy", 0.9), a_metric("end_images", 0.9)]
    a, b = (a_receipt(run, metrics=metrics) for run in ("r1", "r2"))
    found = compare(a, b, a)
    assert [receipt.header.run_id for receipt in found.runs] == ["r1", "r2"]
    labels = [row.label for row in found.numbers]
    assert labels == ["test_accuracy, last", "end_images, last", "wall time"]


def test_more_runs_than_colours_are_refused():
    with pytest.raises(UsageError, match="9 runs are too many"):
        compare(*(a_receipt(f"r{n}") for n in range(9)))


def test_a_crashed_run_is_shown_and_not_ranked():
    good, crashed = a_receipt("r1"), a_receipt("r2", wall_s=3.0, end="error")
    found = compare(good, crashed)
    assert verdicts(found, "wall time") == [(None, False), (None, False)]
    assert rows(found)["wall time"] == ("10 s", "3 s", "÷3.3")
    assert rows(found)["ranked"] == ("yes", "no: failed", None)
    assert verdicts(compare(crashed, good), "wall time") == [(None, False), (None, False)]


@cases("first", "second", "ranked")
def test_only_runs_of_equal_work_are_ranked(first, second, ranked):
    found = compare(a_receipt("r1", **first), a_receipt("r2", wall_s=4.0, **second))
    assert verdicts(found, "wall time") == [(None, False), ("better" if ranked else None, ranked)]
    assert ("ranked" in rows(found)) is not ranked
