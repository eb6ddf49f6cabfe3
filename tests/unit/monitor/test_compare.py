"""Two receipts side by side: what is shown, the arithmetic, pages that hold nothing a run could have made."""

import io
import json

import pytest
from rich.console import Console

from seatrial.errors import UsageError
from seatrial.monitor.compare import compare, print_table, to_html, to_json
from seatrial.receipt.model import Receipt
from seatrial.receipt.outcome import ExitCause
from seatrial.receipt.section import Line, Plot
from seatrial.receipt.sections.measured import Measurements, Metric
from seatrial.receipt.sections.steps import DiagnosisRecord
from seatrial.receipt.sections.what_ran import Header


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
    print_table(found, Console(file=file, width=width, highlight=False))
    file.flush()
    return file.buffer.getvalue().decode(encoding)


def test_numbers_and_their_change():
    a = a_receipt("r1", wall_s=10.0, metrics=[a_metric("loss", 0.5, 0.4), a_metric("only_a", 1.0)])
    b = a_receipt("r2", wall_s=4.0, metrics=[a_metric("loss", 0.45, 0.4), a_metric("zero", 0.0)], cause="compute-bound")
    found = rows(compare(a, b))
    assert found["wall time"] == ("10 s", "4 s", "×0.4") and found["loss, last"] == ("0.5", "0.45", "-10.0 %")
    assert found["loss, best"] == ("0.4", "0.4", "same") and found["only_a, last"] == ("1", None, None)
    assert found["bound by"] == ("data-bound", "compute-bound", None)


def test_facts_only_where_they_differ():
    found = rows(compare(a_receipt("r1", python="3.11", driver="1"), a_receipt("r2", python="3.11", driver="2")))
    assert found["driver"] == ("1", "2", None) and "Python" not in found and found["target"][0] == "train.py"


def test_a_change_of_sign_or_from_zero_has_no_ratio():
    a, b = (a_receipt(id, metrics=[a_metric("reward", last)]) for id, last in (("r1", -1.0), ("r2", 2.0)))
    assert rows(compare(a, b))["reward, last"] == ("-1", "2", None)
    zero = a_receipt("r3", metrics=[a_metric("reward", 0.0)])
    assert rows(compare(zero, b))["reward, last"][2] is None


def test_plots_of_both_share_an_axis_and_others_are_left_out():
    a = a_receipt("r1", plots=[a_plot(3.0, 2.0), a_plot(1.0, id="steps-other")])
    b = a_receipt("r2", plots=[a_plot(3.0, 1.0), a_plot(1.0, id="steps-loss", x="epoch")])
    plot = compare(a, b).overlays[0].plot
    assert [line.name for line in plot.lines] == ["r1", "r2"]


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_the_terminal_prints_a_table_without_markup_or_curves(encoding):
    found = compare(a_receipt("r1", name="[bold]x[/]", plots=[a_plot(1.0, 9.0)]), a_receipt("r2", wall_s=2.0))
    text = printed(found, encoding)
    assert "A: [bold]x[/]" in text and ("×0.2" if encoding == "utf-8" else "x0.2") in text and "loss" not in text
    assert max(map(len, text.splitlines())) <= 100


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
    assert rows(found)["wall time"] == ("10 s", "3 s", "×0.3")
    assert rows(found)["ranked"] == ("yes", "no: failed", None)
    assert verdicts(compare(crashed, good), "wall time") == [(None, False), (None, False)]


@pytest.mark.parametrize(
    ("first", "second", "ranked"),
    [
        ({"work": "3 epochs"}, {"work": "6 epochs"}, False),
        ({"work": "3 epochs"}, {"work": "3 epochs"}, True),
        ({"work": "3 epochs"}, {}, True),
        ({"target": "train.py -- --epochs 3"}, {"target": "train.py -- --epochs=6"}, False),
        ({"target": "train.py -- --epochs 3"}, {"target": "train.py"}, False),
        ({"target": "train.py -- --epochs 3", "work": "3 epochs"}, {"target": "train.py", "work": "3 epochs"}, True),
        ({"target": "train.py -- --lr 0.1 --amp"}, {"target": "train.py -- --lr -1e-3"}, True),
        ({"target": "train.py -- batch_size=8"}, {"target": "train.py -- batch_size=16"}, False),
        ({"target": "prep.py"}, {"target": "train.py", "work": "3 epochs"}, False),
        ({"target": "a.py", "work": "3 epochs"}, {"target": "b.py", "work": "3 epochs"}, True),
    ],
)
def test_only_runs_of_equal_work_are_ranked(first, second, ranked):
    found = compare(a_receipt("r1", **first), a_receipt("r2", wall_s=4.0, **second))
    assert verdicts(found, "wall time") == [(None, False), ("better" if ranked else None, ranked)]
    assert ("ranked" in rows(found)) is not ranked


def test_arguments_that_differ_are_rows():
    a = a_receipt("r1", target="train.py -- --lr 0.1 --seed 3 -e 2 --amp data=./x")
    b = a_receipt("r2", target="train.py -- --lr=-1e-3 --seed 3 -e 4 data=./y")
    found = rows(compare(a, b))
    assert found["lr"] == ("0.1", "-1e-3", None) and found["e"] == ("2", "4", None) and "seed" not in found
    assert found["amp"] == ("yes", None, None) and found["data"] == ("./x", "./y", None)


def test_shares_are_compared_in_points_and_a_nan_is_neither_better_nor_worse():
    a = a_receipt("r1", metrics=[a_metric("acc", 90.0, unit="%"), a_metric("loss", 0.5)])
    b = a_receipt("r2", metrics=[a_metric("acc", 93.5, unit="%"), a_metric("loss", 0.4, ended_as="nan")])
    found = compare(a, b)
    assert rows(found)["acc, last"] == ("90 %", "93.5 %", "+3.5 points")
    assert rows(found)["loss, last"] == ("0.5", "nan", None) and verdicts(found, "loss, last")[1] == (None, False)
