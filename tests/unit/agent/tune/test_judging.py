import pytest

from seatrial.agent.tune import Spec, statistics, trial
from seatrial.agent.tune.candidates import TrialAnatomy
from seatrial.agent.tune.record import last_line
from seatrial.common import paired
from tune_worlds import World


def trials(*step_s, seeds=(0,), shift=0.0):
    made = []
    for number, (base_s, seed) in enumerate(zip(step_s, seeds * len(step_s), strict=False), 1):
        world = World(base_s=base_s)
        world.shifts = {("x", 1): shift}
        made.append(world.run(None, number, {"x": 1}, seed, 99))
    return made


def test_the_rate_of_several_trials_is_their_median_and_of_one_its_parts_report_the_spread():
    rates = statistics.rates(trials(0.01, 0.0125, 0.008))
    assert rates.median == pytest.approx(100) and rates.spread == pytest.approx(0.225) and rates.trials == 3
    assert 0 < statistics.rates(trials(0.01)).spread < 0.01
    assert statistics.rates([]) is None


def test_a_trial_whose_own_steps_vary_is_neither_slower_nor_faster():
    steady, wild = trials(0.01, 0.017)
    wild.report["parts_s"] = [0.002, 0.05, 0.001, 0.03, 0.002, 0.02]
    steadily, wildly = (statistics.faster([steady], [each], paired.deviation([])) for each in (trials(0.017)[0], wild))
    assert wildly.middle == pytest.approx(0.01 / 0.017) and steadily.high < 1 < wildly.high
    steady.report["parts_s"] = [float("inf"), float("nan")]  # of a clock that jumped: as none
    assert statistics.faster([steady], trials(0.017), paired.deviation([])).high < 1


def test_each_trial_is_compared_with_the_reference_that_is_nearest_in_time():
    early, late = trials(0.01)[0], trials(0.02)[0]._replace(number=5)
    [made] = trials(0.005)
    for number, times in ((2, 2), (4, 4), (9, 4)):
        found = statistics.faster([early, late], [made._replace(number=number)], paired.deviation([]))
        assert found.middle == pytest.approx(times)
    assert statistics.faster([], [made], paired.deviation([])) is None


def test_losses_are_compared_over_the_steps_that_both_have_and_single_batches_do_not_count():
    rough = [1.0 + 0.2 * (-1) ** at for at in range(60)]
    assert statistics.windows(rough, [1.0] * 40) == pytest.approx([0] * 4, abs=1e-9)
    assert statistics.windows([1.0] * 60, [1.0] * 30 + [2.0] * 30) == pytest.approx([0] * 3 + [-1] * 3)
    assert statistics.windows([], [1.0]) == []
    assert statistics.windows([None, 1.0, None], [3.0, 1.0, 2.0]) == [0.0]


def band_of(*made):
    band = statistics.Band()
    for each in made:
        band.add(each)
    return band


def test_curves_that_never_differ_by_seed_may_differ_by_rounding():
    band = band_of(*trials(0.01, 0.01))
    close, far = (band.off(trials(0.01, shift=shift)) for shift in (0.005, 0.05))
    assert close.within(statistics.BAND * band.width) and not far.within(statistics.BAND * band.width)


def test_losses_that_are_all_zero_are_the_same():
    made, standing = trials(0.01)[0], statistics.TuneState()
    made.report["losses"] = [0.0] * 60
    standing.add_baseline(made)
    assert standing.why_different("precision", [made]) is None


def test_losses_are_compared_with_the_baseline_of_the_same_seed_and_without_one_not_at_all():
    band = band_of(*trials(0.01, 0.01, seeds=(0, 1)))
    assert band.off(trials(0.01, 0.01, seeds=(0, 1), shift=0.03)).middle == pytest.approx(0.03)
    assert band.off(trials(0.01, seeds=(7,))) is None


@pytest.mark.parametrize(("step_s", "wanted"), [(0.0096, True), (0.0102, False), (0.0125, False), (0.005, False)])
def test_another_pair_is_made_where_it_could_change_the_verdict(step_s, wanted):
    found = statistics.faster(trials(0.01), trials(step_s), paired.deviation([[1.0, 1.01, 0.99, 1.0, 1.0]]))
    assert statistics.is_open(found, statistics.SURE) is wanted


def test_forward_pass_of_the_windows_takes_nothing_from_the_other_parts():
    [made] = trials(0.01)
    window = {"regions": {"forward": 5.0, "backward": 4.0, "optimizer": 1.0}}
    report = {**made.report, "regions": {"other": 10.0, "evaluation": 30.0}}
    seen = TrialAnatomy(made._replace(report=report, anatomy={"window": window}))
    assert (seen.optimizer, seen.computing) == (pytest.approx(0.1), pytest.approx(1))


def test_the_last_words_of_a_failure_are_its_exception():
    torchrun = "Traceback …\nValueError: bad shape\n[rank0] exiting\nE1122 failed (exitcode: 1)\n"
    assert last_line(torchrun) == "ValueError: bad shape"
    assert last_line("Killed\n") == "Killed" and last_line("") == "it printed nothing"


@pytest.mark.parametrize(("budget_s", "seconds"), [(50.0, 7.5), (180.0, 20.0)])
def test_steps_of_a_trial_take_a_share_of_the_budget_and_leave_time_for_its_start(
    tmp_path, monkeypatch, budget_s, seconds
):
    given = []

    def start(spec, folder, options, changes):
        given.append(options)
        raise OSError("not now")

    monkeypatch.setattr(trial, "_start", start)
    with pytest.raises(OSError, match="not now"):
        trial.run(Spec(argv=["python"], folder=str(tmp_path), budget_s=budget_s), 1, {}, 0, 0.6 * budget_s)
    assert given[0]["seconds"] == seconds <= 0.6 * budget_s / 3
