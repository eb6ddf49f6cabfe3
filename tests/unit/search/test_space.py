"""--set: its grammar, how a setting reaches the target, and the request of a sweep."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from seatrial.errors import UsageError
from seatrial.job.model import Job, Target
from seatrial.job.tables import SweepTable
from seatrial.search.request import define, parse_parallel
from seatrial.search.space import (
    OneOf,
    Range,
    from_table,
    parse_dimension,
    parse_space,
)
from seatrial.search.trial import check_switches, no_settings, varied, ways_in
from tables import cases


@cases("text", "values", "low", "high", "log", "whole")
def test_what_it_reads(
    text: str, values: tuple[str, ...] | None, low: float | None, high: float, log: bool | None, whole: bool | None
) -> None:
    found = parse_dimension(text)
    if isinstance(found, OneOf):
        assert low is None and found == OneOf(text.partition("=")[0], values or ())
    elif values is not None:
        assert tuple(found.points()) == values
    else:
        assert (found.low, found.high, found.log, found.whole) == (low, high, bool(log), bool(whole))


@cases("text", "words", "run")
def test_what_is_no_setting_is_refused_with_the_next_command(text: str, words: str | None, run: str | None) -> None:
    with pytest.raises(UsageError, match=words or "") as caught:
        parse_dimension(text)
    assert caught.value.run is not None and "--set" in caught.value.run and run in (None, caught.value.run)
    if words == "begins above zero":
        parse_dimension(caught.value.run.rpartition(" ")[2])  # the next command is right


def test_a_name_is_given_once() -> None:
    with pytest.raises(UsageError, match="batch_size twice") as caught:
        parse_space(["batch-size=1,2", "batch_size=2,3"])
    assert caught.value.run == "seatrial sweep … --set batch_size=1,2,3"


def test_what_is_typed_is_read_back_the_same() -> None:
    typed = ["lr=log:1e-5..1e-1", "batch=32,64", "layers=int:1..8", "p=0..0.5:0.1"]
    space = parse_space(typed)
    assert space.typed() == typed and parse_space(space.typed()) == space


def test_the_files_form() -> None:
    table = {"lr": "log:1e-5..1e-1", "batch": [32, 64], "bf16": [True, False], "seed": 3}
    assert from_table(table) == ["lr=log:1e-5..1e-1", "batch=32,64", "bf16=true,false", "seed=3"]


@given(some.integers(-50, 50), some.integers(1, 60), some.integers(1, 9))
def test_every_point_is_a_value_of_its_distribution_and_comes_back_as_text(low: int, span: int, step: int) -> None:
    found = Range("x", low, low + span, float(step) if step <= span else None, whole=True)
    every = found.distribution()
    for text in found.points():
        value = found.value(text)
        assert every._contains(every.to_internal_repr(value)) and found.text(value) == text


def _job(folder: Path, text: str) -> Job:
    (folder / "train.py").write_text(text)
    return Job(project=folder, target=Target(kind="script", value="train.py"), name="base")


def _variants(job: Job, *settings: str) -> list[Job]:
    space = parse_space(settings)
    ways = ways_in(job, space.names)
    return [varied(job, chosen, ways) for chosen in space.combinations()]


@cases("text", "settings", "args", "env", "names")
def test_way_into_the_script(
    tmp_path: Path,
    text: str,
    settings: tuple[str, ...],
    args: tuple[tuple[str, ...], ...],
    env: dict[str, str] | None,
    names: tuple[str, ...] | None,
) -> None:
    made = _variants(_job(tmp_path, text), *settings)
    assert tuple(job.target.args for job in made) == args and made[0].env == (env or {})
    assert names is None or tuple(job.name for job in made) == names


@cases("text", "name", "cause", "run")
def test_setting_without_a_way_in_is_refused(
    tmp_path: Path, text: str, name: str, cause: str | None, run: str | None
) -> None:
    with pytest.raises(UsageError, match=f"no way to set {name}") as caught:
        _variants(_job(tmp_path, text), f"{name}=1")
    assert (cause or "") in str(caught.value.cause) and (run or "") in str(caught.value.run)


@pytest.mark.parametrize(
    ("source", "run"),
    [
        ("p.add_argument('--data', default='d')\np.add_argument('--epochs', type=int, default=3)\n", "epochs=3,6"),
        ("p.add_argument('--epochs', default=3)\np.add_argument('--lr', type=float, default=1e-3)\n", "lr=1e-3,0.002"),
        ("p.add_argument('--lr')\n", "NAME=V1,V2"),
    ],
)
def test_a_search_without_settings_proposes_one_that_the_script_has(tmp_path: Path, source: str, run: str) -> None:
    assert no_settings(_job(tmp_path, source)).run == f"seatrial sweep … --set {run}"


def test_the_initials_of_a_setting_are_its_option(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="did you mean lr"):
        _variants(_job(tmp_path, "p.add_argument('--lr')\n"), "learning_rate=1")


def test_recipes_know_their_settings(tmp_path: Path) -> None:
    job = Job(project=tmp_path, target=Target(kind="recipe", value="digits"))
    made = _variants(job, "batch_size=32", "mixed_precision=true,false")
    assert [job.target.args for job in made] == [
        ("--batch", "32", "--precision", "bf16"),
        ("--batch", "32", "--precision", "fp32"),
    ]


def test_a_flag_of_a_module_that_the_script_imports(tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "__init__.py").write_text("")
    (tmp_path / "lib" / "options.py").write_text('import train\np.add_argument("--lr")')
    [job] = _variants(_job(tmp_path, "import os, sys\nfrom lib import options as o"), "lr=0.1")
    assert job.target.args == ("--lr", "0.1")


def test_a_switch_takes_no_value(tmp_path: Path) -> None:
    job, space = _job(tmp_path, 'p.add_argument("--amp", action="store_true")'), parse_space(["amp=fp16,bf16"])
    with pytest.raises(UsageError, match="--amp takes no value"):
        check_switches(ways_in(job, space.names), space.values())
    for typed in ("amp=0..5", "amp=int:1..3"):
        with pytest.raises(UsageError, match="--amp takes no value"):
            check_switches({"amp": "--amp?"}, parse_space([typed]).values())
    space = parse_space(["amp=yes,off", "lr=0.1..1"])
    check_switches({"amp": "--amp?", "lr": "--lr"}, space.values())


def test_settings_that_are_typed_win_over_the_file() -> None:
    table = SweepTable(search="random", metric="loss:min", trials=9, set={"lr": "0..1", "batch": [32, 64]})
    made = define(table.changed(trials=3, prune="none"), ["lr=1,2"])
    assert made.space == ("lr=1,2", "batch=32,64")
    assert (made.search, made.objective, made.trials, made.prune) == ("random", "loss:min", 3, "none")


def test_what_goes_without_saying() -> None:
    grid = define(SweepTable(), ["a=1,2"])
    assert (grid.search, grid.prune, grid.objective) == ("grid", "none", None)
    assert define(SweepTable(search="tpe", metric="x:min", trials=4), ["a=0..1"]).prune == "asha"
    assert (parse_parallel(None), parse_parallel("auto")) == (1, None)


@cases("flags", "prints")
def test_what_cannot_be_is_reported_and_how_it_could(flags: dict[str, Any], prints: str) -> None:
    with pytest.raises(UsageError) as caught:
        table = SweepTable(**{key: flags[key] for key in flags.keys() - {"settings"}})
        define(table, flags.get("settings", ()))
        parse_parallel(table.parallel)
    assert prints in caught.value.message and "seatrial sweep" in str(caught.value.run)
