"""Changes that the driver tries, keeps and removes, and its words, on made-up scripts whose truth is known."""

import random

import pytest

from seatrial.common import paired
from tables import cases, constant
from tune_worlds import SHARES, World

BF16 = ("precision", "bf16")


class TwoWorkers(World):
    """A script whose two workers give a batch in 9.9 ms at any speed of the GPU; six of them in 3.3."""

    def run(self, spec, number, changes, *rest, **more):
        made = super().run(spec, number, changes, *rest, **more)
        if made.report is None:  # it took longer than it may
            return made
        computes_s = 1 / made.report["steps_per_s"]
        data_s = 0.0198 / changes.get("workers", 2)
        step_s = max(computes_s, data_s)
        regions = {**SHARES, "data": SHARES["data"] + max(0.0, data_s / computes_s - 1)}
        rates = {"steps_per_s": 1 / step_s, "parts_s": [step_s] * 6, "regions": regions}
        return made._replace(report={**made.report, **rates})


def world_of(case):
    """The world of a case; TOML has no None, so what is absent has a name of its own."""
    options, made = dict(case.get("world", {})), TwoWorkers if case.get("two_workers") else World
    if made is TwoWorkers:
        options["workers"] = 2
    if options.pop("no_loader", False):
        options["workers"] = None
    if options.pop("no_autocast", False):
        options["autocast"] = None
    if "regions" in options:
        options["regions"] = {**SHARES, **options["regions"]}
    world = made(**options)
    for name, value in case.get("set", {}).items():
        setattr(world, "exit_code" if name == "no_exit_code" else name, None if name == "no_exit_code" else value)
    for name in ("factors", "shifts", "steady", "broken"):
        getattr(world, name).update({(key, value): effect for key, value, effect in case.get(name, ())})
    world.refused, world.crawls = case.get("refused", {}), case.get("crawls", [])
    if "first_wall_s" in case:
        world.walls_s = {1: case["first_wall_s"]}
    if "loader" in case:
        world.facts["loader"].update(case["loader"])
    return world


@pytest.mark.parametrize("case", constant(__file__, "test_tune"), ids=lambda case: case["id"])
def test_tune(tuned, case):
    world = world_of(case)
    code, reported, printed = tuned(world, **case.get("options", {}))
    rows, kept, whole = reported["rows"], reported["kept"], reported["combination"]
    named = {key: row for row in rows for key in (row["name"], row["words"])}
    ran = {key for changes in world.ran for key in changes}
    assert code == 0 and reported["done"] and world.clock_s <= case.get("options", {}).get("budget_s", float("inf"))
    assert kept == case.get("kept", kept) and case.get("keeps", {}).items() <= kept.items()
    assert not kept.keys() & set(case.get("not_kept", ())) and kept.get("workers", 99) >= case.get("kept_workers", 0)
    assert case.get("kept") != {} or whole is None
    assert {name: named[name]["verdict"] for name in case.get("rows", ())} == case.get("rows", {})
    assert "verdicts" not in case or {row["verdict"] for row in rows} == set(case["verdicts"])
    assert all(words in named[name]["why"] for name, words in case.get("why", {}).items())
    assert all(
        named[name]["loss_difference"] == pytest.approx(by) for name, by in case.get("loss_difference", {}).items()
    )
    assert all(words in reported["not_tried"][name] for name, words in case.get("not_tried", {}).items())
    assert case.get("first", "") in ("", rows[0]["words"] if rows else None)
    assert case.get("first_changes", {}).items() <= (rows[0]["changes"] if rows else {}).items()
    assert case.get("first_verdict") in (None, rows[0]["verdict"] if rows else None)
    assert [row["name"] for row in rows][: len(case.get("names", ()))] == case.get("names", [])
    assert not named.keys() & set(case.get("never_named", ()))
    assert "only_named" not in case or {row["name"] for row in rows} == set(case["only_named"])
    assert case.get("bundles") in (None, sum("+" in row["name"] for row in rows))
    assert "ran" not in case or ran == set(case["ran"])
    assert set(case.get("ran_too", ())) <= ran and not ran & set(case.get("never_ran", ()))
    assert printed.splitlines()[-1].find(case.get("printed", "")) >= 0
    speed_up = whole["steps_per_s"] / reported["baseline"]["steps_per_s"] if whole else 0
    assert speed_up == pytest.approx(case.get("speed_up", speed_up), rel=0.01) and speed_up >= case.get("at_least", 0)
    if "trials" in case:
        least, of_combination = case["trials"]
        assert reported["baseline"]["trials"] >= least and whole["trials"] == of_combination


@cases("id", "world", "set", "words")
def test_refusal(tuned, id, world, set, words):
    made = world_of({"world": world or {}, "set": set or {}})
    code, reported, printed = tuned(made)
    assert code == 1 and reported["refusal"]["id"] == id.split(",")[0] and words in reported["refusal"]["words"]
    assert reported["refusal"]["words"] not in printed and len(made.ran) == 1  # the receipt has it at its top


def test_trials_that_differ_by_five_percent_rarely_show_false_gains(tuned, monkeypatch):
    monkeypatch.setattr(paired, "_DRAWS", 400)
    false, found = 0, 0
    for seed in range(30):
        world, dice = World(), random.Random(seed)
        world.jitter = [dice.gauss(1, 0.05) for _ in range(40)]
        false += bool(tuned(world)[1]["kept"])
        world.factors = {BF16: 0.65}
        found += tuned(world)[1]["kept"].get("precision") == "bf16"
    assert false <= 3 and found >= 27, (false, found)


@pytest.mark.parametrize(
    ("now", "data", "next_count"), [(1, 0.63, 6), (1, 0.3, 4), (4, 0.48, 12), (4, 0.66, 16), (2, 0.1, 4), (8, 0.4, 16)]
)
def test_workers_are_as_many_as_the_rest_of_the_step_leaves_them_time_for(tuned, now, data, next_count):
    world = World(regions={"data": data, "other": 1 - data}, workers=now)
    _, reported, _ = tuned(world, only=["workers"], budget_s=60.0)
    assert reported["rows"][0]["changes"]["workers"] == next_count


def changing(world, change):
    """Let ``change(made, spec's number of this trial, changes, seed offset)`` decide what a trial returns."""
    original = world.run

    def run(spec, number, changes, seed_offset, *more):
        return change(lambda: original(spec, number, changes, seed_offset, *more), changes, seed_offset)

    world.run = run
    return world


def test_a_combination_that_fails_at_the_end_loses_the_last_change_that_went_in(tuned):
    world, seen = World(), []
    world.factors = {BF16: 0.5, ("fused_optimizer", True): 0.85}

    def later_not_finite(run, changes, _):
        made = run()
        seen.append(changes)
        if "fused_optimizer" in changes and seen.count(changes) > 1 and made.report:
            made.report["losses"][30:] = [float("nan")] * 40
        return made

    _, reported, _ = tuned(changing(world, later_not_finite))
    assert reported["kept"] == {"precision": "bf16"} and reported["combination"]["changes"] == {"precision": "bf16"}
    assert [row["verdict"] for row in reported["rows"] if row["name"] == "fused_optimizer"] == ["removed"]


def test_what_was_no_faster_is_tried_again_when_something_else_bounds_the_steps(tuned):
    world = World(regions={**SHARES, "data": 2.0})

    def while_the_gpu_is_waited_for(run, changes, _):
        world.factors = {BF16: 0.5, ("workers", 8): 0.4 if "precision" in changes else 1.0}
        return run()

    _, reported, _ = tuned(changing(world, while_the_gpu_is_waited_for))
    assert [row["verdict"] for row in reported["rows"] if row["name"] == "workers"][:2] == ["no-faster", "kept"]
    assert reported["kept"]["workers"] == 8 and reported["kept"]["precision"] == "bf16"


def test_what_goes_out_of_the_combination_reports_what_it_made(tuned):
    world = World(wall_s=5.0)
    world.factors = {("fused_optimizer", True): 0.8}

    def slower_later(run, changes, _):
        if "fused_optimizer" in changes and {"fused_optimizer": True} in world.ran:
            world.factors = {}
        return run()

    _, reported, _ = tuned(changing(world, slower_later))
    [row] = [row for row in reported["rows"] if row["name"] == "fused_optimizer"]
    assert row["verdict"] == "removed" and "1.00 (" in row["why"] and "not distinguishable" in row["why"]


class Wild(World):
    """A script whose compiled steps take 59 ± 84 % of the time, measured from the parts of each trial."""

    def run(self, spec, number, changes, *rest, **more):
        made = super().run(spec, number, changes, *rest, **more)
        if "compile" in changes and made.report:
            rate = made.report["steps_per_s"] * next(self.rates)
            parts_s = [0.002, 0.05, 0.001, 0.03, 0.002, 0.02]
            made = made._replace(report={**made.report, "steps_per_s": rate, "parts_s": parts_s})
        return made


@pytest.mark.parametrize(("budget_s", "pairs"), [(60.0, 1), (90.0, 2), (180.0, 4)])
def test_a_compile_that_cannot_be_distinguished_is_measured_longer_and_not_refused_as_slower(tuned, budget_s, pairs):
    world = Wild()
    world.rates = iter([0.59, 1.3, 0.5, 1.2])
    _, reported, _ = tuned(world, only=("compile",), budget_s=budget_s)
    [row] = reported["rows"]
    assert (row["verdict"], row["trials"]) == ("unclear", pairs) and reported["kept"] == {}
    assert row["faster_low"] < row["faster"] < 1 < row["faster_high"]
    assert row["steps_per_s"] / row["against"] == pytest.approx(row["faster"], rel=1e-3)
    assert "not distinguishable; measure longer" in row["why"]


def test_pairs_of_the_result_are_of_one_seed_and_in_turn(tuned):
    world, seeds = World(), []
    world.factors = {BF16: 0.5}

    def noted(run, changes, seed_offset):
        seeds.append((bool(changes), seed_offset))
        return run()

    _, reported, _ = tuned(changing(world, noted), only=("bf16",))
    assert seeds == [(False, 0), (False, 1), (True, 0), (False, 2), (True, 2), (False, 3), (True, 3)]
    whole = reported["combination"]
    assert whole["faster"] == pytest.approx(2, rel=0.01) == whole["steps_per_s"] / whole["against"]
    assert -reported["margin"] < whole["loss_off_low"] <= whole["loss_off_high"] < reported["margin"]


@pytest.mark.parametrize(("shift", "verdict"), [(0.07, "kept"), (0.15, "different"), (3.0, "different")])
def test_margin_of_losses_is_that_of_two_seeds_and_no_further_seed_widens_it(tuned, shift, verdict):
    world = World(workers=0)
    world.factors, world.shifts = {BF16: 0.3}, {BF16: shift}

    def far(run, _, seed_offset):
        made = run()
        if seed_offset >= 2:
            made = made._replace(report={**made.report, "losses": [loss + 0.15 for loss in made.report["losses"]]})
        return made

    _, reported, _ = tuned(changing(world, far), only=("bf16",))
    assert [row["verdict"] for row in reported["rows"]] == [verdict]
