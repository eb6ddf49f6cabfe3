"""The grammar behind --set: what it reads, and one clear sentence for what it does not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as some

from seatrial.errors import UsageError
from seatrial.search.space import (
    OneOf,
    Range,
    Space,
    as_text,
    as_value,
    distributions,
    from_table,
    parse_dimension,
    parse_space,
)


def test_what_it_reads() -> None:
    assert parse_dimension("batch=32,64") == OneOf("batch", ("32", "64"))
    assert parse_dimension("lr=0.1") == OneOf("lr", ("0.1",))
    assert parse_dimension("path=../a,../b") == OneOf("path", ("../a", "../b"))
    lr = parse_dimension("lr=log:1e-5..1e-1")
    assert isinstance(lr, Range) and (lr.low, lr.high, lr.log, lr.whole) == (1e-5, 0.1, True, False)
    assert parse_dimension("layers=int:1..8").points() == ["1", "2", "3", "4", "5", "6", "7", "8"]
    assert parse_dimension("width=int:8..64:8").points()[-1] == "64"
    assert parse_dimension("p=0..0.5:0.1").points() == ["0", "0.1", "0.2", "0.3", "0.4", "0.5"]
    width = parse_dimension("width=int:log:1..1024")
    assert isinstance(width, Range) and width.log and width.whole


def test_what_is_typed_is_read_back_the_same() -> None:
    typed = ["lr=log:1e-5..1e-1", "batch=32,64", "layers=int:1..8", "p=0..0.5:0.1"]
    space = parse_space(typed)
    assert space.typed() == typed and parse_space(space.typed()) == space


@pytest.mark.parametrize("text", ["batch", "=1", "a=", "a=1,,2", "a=1,1", "1a=2", "a=log:3", "a=int:x..y", "a=log:1,2"])
def test_what_is_no_setting(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_dimension(text)
    assert caught.value.run is not None and "--set" in caught.value.run


def test_an_empty_range_reports_how_it_would_be_right() -> None:
    with pytest.raises(UsageError, match=r"empty range: 0\.1 is above 1e-05") as caught:
        parse_dimension("lr=log:1e-1..1e-5")
    assert caught.value.run == "seatrial sweep … --set lr=log:1e-5..1e-1"
    with pytest.raises(UsageError, match="both ends are the same"):
        parse_dimension("lr=0.1..0.1")


@pytest.mark.parametrize("text", ["lr=log:0..1", "lr=log:-1..1", "n=int:log:0..8"])
def test_the_logarithm_of_zero(text: str) -> None:
    with pytest.raises(UsageError, match="begins above zero") as caught:
        parse_dimension(text)
    parse_dimension(str(caught.value.run).rpartition(" ")[2])  # the next command is right


@pytest.mark.parametrize(
    "text", ["n=int:1..2.5", "n=int:0.5..3", "n=0..1:2", "n=0..1:-1", "n=log:1..10:2", "n=0..1e999"]
)
def test_ranges_that_cannot_be(text: str) -> None:
    with pytest.raises(UsageError):
        parse_dimension(text)


def test_a_name_is_given_once() -> None:
    with pytest.raises(UsageError, match="batch_size twice"):
        parse_space(["batch-size=1,2", "batch_size=3"])


def test_the_files_form() -> None:
    table = {"lr": "log:1e-5..1e-1", "batch": [32, 64], "bf16": [True, False], "seed": 3}
    assert from_table(table) == ["lr=log:1e-5..1e-1", "batch=32,64", "bf16=true,false", "seed=3"]


@given(some.integers(-50, 50), some.integers(1, 60), some.integers(1, 9))
def test_every_point_is_a_value_of_its_distribution_and_comes_back_as_text(low: int, span: int, step: int) -> None:
    found = Range("x", low, low + span, float(step) if step <= span else None, whole=True)
    every = distributions(Space((found,)))["x"]
    for text in found.points():
        value = as_value(found, text)
        assert every._contains(every.to_internal_repr(value)) and as_text(found, value) == text


@pytest.mark.parametrize("text", ["lr=a..b", "lr=0..1..2", "lr=1e-5...1e-1", "lr=1..b"])
def test_what_is_nearly_a_range_is_no_choice_of_one_value(text: str) -> None:
    with pytest.raises(UsageError, match="not a range"):
        parse_dimension(text)


def test_paths_with_two_dots_are_values() -> None:
    assert parse_dimension("data=../small,../large") == OneOf("data", ("../small", "../large"))
    assert parse_dimension("data=a/../b") == OneOf("data", ("a/../b",))
