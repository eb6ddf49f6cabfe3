"""Requests for a sweep: flags override the file, and an invalid one gets a clear sentence."""

from __future__ import annotations

import pytest

from seatrial.errors import UsageError
from seatrial.job.tables import SweepTable
from seatrial.search.request import Flags, make_request


def test_flags_win_over_the_file() -> None:
    table = SweepTable(search="random", metric="loss:min", trials=9, set={"lr": "0..1", "batch": [32, 64]})
    request = make_request(Flags(settings=["lr=1,2"], trials=3, prune="none"), table)
    assert request.space.typed() == ["lr=1,2", "batch=32,64"]
    assert (request.search, str(request.objective), request.trials, request.prune) == ("random", "loss:min", 3, "none")


def test_what_goes_without_saying() -> None:
    grid = make_request(Flags(settings=["a=1,2"]), SweepTable())
    assert (grid.search, grid.prune, grid.parallel, grid.objective) == ("grid", "none", 1, None)
    tpe = make_request(Flags(["a=0..1"], "tpe", "x:min", trials=4, parallel="auto"), SweepTable())
    assert (tpe.prune, tpe.parallel) == ("asha", None)


@pytest.mark.parametrize(
    "flags, prints",
    [
        (Flags(), "Nothing to sweep over"),
        (Flags(["lr=0..1"]), "A grid needs single values, and lr is a range without a step"),
        (Flags(["lr=int:1..500"]), "500 runs are too many for a grid"),
        (Flags(["lr=0..1"], "tpe"), "needs a metric to compare trials by"),
        (Flags(["lr=0,1"], prune="median"), "needs a metric to compare trials by"),
        (Flags(["lr=0..1"], "tpe", "accuracy"), "names no direction: max or min"),
        (Flags(["lr=0..1"], "random"), "needs a limit: --trials or --budget"),
        (Flags(["lr=0,1"], metric="a:max", metric_from="a: .*"), "expression with one group"),
        (Flags(["lr=0,1"], metric="a:max", metric_from="(a"), "not a regular expression"),
        (Flags(["lr=0,1"], metric_from="(a)"), "--metric-from needs --metric"),
        (Flags(["lr=0,1"], parallel="many"), "neither a number of trials"),
        (Flags(["lr=0,1"], parallel="0"), "neither a number of trials"),
        (Flags(["lr=0,1"], parallel=""), "neither a number of trials"),
        (Flags(["lr=0,1"], metric=""), "names no direction: max or min"),
        (Flags(["lr=0,1"], prune="best"), "Unknown pruner 'best'"),
        (Flags(["lr=0,1"], "tpee"), "Unknown search 'tpee'"),
    ],
)
def test_what_cannot_be_is_reported_and_how_it_could(flags: Flags, prints: str) -> None:
    with pytest.raises(UsageError) as caught:
        make_request(flags, SweepTable())
    assert prints in caught.value.message and "seatrial sweep" in str(caught.value.run)
