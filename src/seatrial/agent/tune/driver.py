"""Tune a script: baseline, then one change at a time on top of the kept ones, then baseline and combination again."""

import os
import signal
import sys
import time
from statistics import median_high
from typing import Any, Dict, List, Optional, Sequence, Set, Tuple

from seatrial.agent import tune
from seatrial.agent.target import become_subreaper
from seatrial.agent.tune import Spec, statistics, trial
from seatrial.agent.tune.candidates import BESIDE, TrialAnatomy, TuneCandidate, candidates, with_workers
from seatrial.agent.tune.fit import fit_batch
from seatrial.agent.tune.record import TuneLog, TuneRow, append_report, last_line, refusal
from seatrial.agent.tune.statistics import TuneState
from seatrial.agent.tune.trial import TuneTrial
from seatrial.common.paired import Interval
from seatrial.common.tunables import GROUPS, in_words
from seatrial.probe.container import Cgroup

#: Additional time for a trial that compiles, as a share of the budget; and the seconds assumed for it until one was
#: seen. Source: mingpt on an H200, 26 s; BERT with batches of varying length never ended.
_COMPILE_SHARE, _COMPILES_S = 0.25, 20.0

EXIT_CANNOT = 1
#: Verdicts of changes that another bottleneck may have kept from being faster.
NOT_FASTER = ("slower", "no-faster", "unclear")
#: The first trial may take this share of the budget: more would not be tuning.
_FIRST_SHARE = 0.6
#: A change that makes steps this much faster may move the limit: changes that gained nothing before get another trial.
_MOVES_THE_BOUND = 1.3
#: Keys that are not tried again once they were refused.
_ONE_KEY = ("precision", "tf32", "channels_last", "cudnn_benchmark", "fused_optimizer")
#: Trials after which their reference is measured again: machines drift, and pairs need neighbours.
_REFERENCE_EVERY = 3


class Budget:
    """The seconds that a tune may take from now on, and those that its trials which compile took (``compiled_s``)."""

    def __init__(self, wanted: Spec, standing: TuneState) -> None:
        self._spec, self._standing = wanted, standing
        self._began_s = time.monotonic()
        self.compiled_s: List[float] = []

    @property
    def spent_s(self) -> float:
        return time.monotonic() - self._began_s

    @property
    def left_s(self) -> float:
        return self._spec.budget_s - self.spent_s

    def limit_s(self, slow: bool = False) -> float:
        """Limit one trial: twice what the reference took, and never what the end still needs."""
        trials = self._standing.reference or self._standing.baselines
        longest_s = max([each.wall_s for each in trials] or [self._spec.seconds])
        end_s = self.end_s() if slow and self._standing.kept else 0.0
        compile_s = _COMPILE_SHARE * self._spec.budget_s if slow else 0.0
        return max(1.0, min(self.left_s - end_s, 2 * longest_s + 10 + compile_s))

    def end_s(self) -> float:
        """Return the seconds for the combination once more, and for the baseline if the budget is not small."""
        base_s = usual_s(self._standing.baselines)
        return 1.1 * usual_s(self._standing.reference) + (1.1 * base_s if self._spec.budget_s > 10 * base_s else 0.0)

    def needed_s(self, slow: bool) -> float:
        """Return the seconds for one more trial, and for the trials at the end."""
        trial_s = usual_s(self._standing.reference)
        if slow and "compile" not in self._standing.kept:
            trial_s = max(trial_s, *self.compiled_s) if self.compiled_s else trial_s + _COMPILES_S
        return 1.15 * trial_s + self.end_s()


def usual_s(trials: List[TuneTrial]) -> float:
    """Return the median seconds of these trials, without the very first one, whose files came from the disk."""
    return median_high([each.wall_s for each in trials if each.number > 1 or len(trials) == 1] or [0.0])


class TuneStopped(BaseException):
    """The run is being stopped."""


def main(path: str) -> int:
    """Tune as the spec at ``path`` has it; returns the exit code."""
    wanted = tune.read(path)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _stop)
    become_subreaper()
    driver = TuneDriver(wanted)
    try:
        return driver.run()
    except TuneStopped:
        print_line("stopped after %d trials" % driver.record.trials)
        return 128 + signal.SIGTERM
    finally:
        driver.record.seconds = driver.budget.spent_s
        driver.record.report()


def _stop(number: int, frame: Any) -> None:
    for each in (signal.SIGTERM, signal.SIGINT):
        signal.signal(each, signal.SIG_IGN)
    raise TuneStopped


def print_line(line: str) -> None:
    """Print a progress line at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


class TuneDriver:
    """Attributes:

    tried: every change that was; no_faster: of them those that were none. hopeless: keys of changes not to try again.
    newest: the first trial of the newest change.
    """

    def __init__(self, wanted: Spec) -> None:
        self.spec = wanted
        self.record = TuneLog()
        self.standing = TuneState()
        self.budget = Budget(wanted, self.standing)
        self.tried: List[Dict[str, Any]] = []
        self.no_faster: List[Dict[str, Any]] = []
        self.hopeless: Set[str] = set()
        self.seeds = 0
        self.newest: Optional[TuneTrial] = None
        self.since_reference = 0

    def run(self) -> int:
        limit_s = self.spec.budget_s * _FIRST_SHARE
        first = self.baseline("the script as it is", limit_s)
        self.record.refusal = refusal(first, self.spec, limit_s)
        if self.record.refusal is not None:
            sys.stderr.write(first.output[-8000:])  # the reason is the receipt's headline
            return EXIT_CANNOT
        for line in first.lines:  # the receipt's anatomy is the baseline's
            for key in ("anatomy", "training"):
                if key in line:
                    append_report(key, line[key])
        if self.spec.fit:
            words = fit_batch(self)
            self.record.combination = TuneRow("fit", {}, why=words)
            self.record.done = True
            print_line(words)
            return 0
        if self.budget.left_s > 1.5 * first.wall_s:
            self.baseline("as it is, another seed", self.budget.limit_s())
        self.standing.reference = self.standing.baselines
        self._greedy()
        self._finally()
        self.record.done = True
        whole = self.record.combination
        if whole is None or whole.rates is None:
            print_line("nothing that was tried makes it faster beyond the noise and trains the same")
        else:
            print_line("%s: %s (%s)" % (in_words(self.standing.kept), whole.why, _rate(whole.rates)))
        return 0

    def baseline(self, words: str, limit_s: float) -> TuneTrial:
        """Run the script unchanged, under a new seed, and report the rate of all baselines."""
        made = self.trial({}, words, limit_s, seed_offset=self.seeds)
        self.seeds += 1
        if made.measured:
            self.standing.add_baseline(made)
        band = self.standing.band
        if (rates := statistics.rates(self.standing.warm(self.standing.baselines))) is not None:
            self.record.baseline = TuneRow.of(self.standing.baselines[-1], "baseline", {}, rates)
            if len(band.curves) > 1:
                self.record.band, self.record.margin = band.width, statistics.BAND * band.width
            self.record.level = band.level
            self.record.report()
            print_line("    %s" % _rate(rates))
        return made

    def trial(
        self, changes: Dict[str, Any], words: str, limit_s: float, seed_offset: int = 0, tried: Sequence[str] = ()
    ) -> TuneTrial:
        """Run one trial. ``tried``: keys that it is about, of which it needs one."""
        self.record.trials += 1
        print_line("trial %d, %.0f s left: %s" % (self.record.trials, max(0.0, self.budget.left_s), words))
        made = trial.run(self.spec, self.record.trials, changes, seed_offset, limit_s, tried)
        self.record.add_files(made)
        if "compile" in changes:
            self.budget.compiled_s.append(made.wall_s)
        self.record.seconds = self.budget.spent_s
        return made

    # one change at a time

    def _greedy(self) -> None:
        cpus = _cpus() // max(1, self.spec.ranks)
        while True:
            found = TrialAnatomy(self.standing.reference[-1])
            trial_s = max(0.1, usual_s(self.standing.reference))
            able, self.record.not_tried = candidates(
                found,
                self.standing.kept,
                self.tried,
                cpus,
                self.spec.only,
                slow_costs=max(1.0, (self.budget.needed_s(True) - self.budget.end_s()) / (1.15 * trial_s)),
                trials_left=(self.budget.left_s - self.budget.end_s()) / (1.15 * trial_s),
            )
            able = [each for each in able if not self.hopeless & set(each.changes)]
            fits = [each for each in able if self.budget.needed_s(each.slow) < self.budget.left_s]
            if not fits:
                tried = {name for row in self.record.rows for name in row.name.split(BESIDE)}
                late = (each.name for each in able if each.name not in tried)
                self.record.not_tried.update(dict.fromkeys(late, "no time was left for it (--budget)"))
                return
            self._try(fits[0])
            self._try_with_workers(fits[0], cpus)

    def _try_with_workers(self, candidate: TuneCandidate, cpus: int) -> None:
        """Try a change once more with more workers if it was no faster because the loader gave no more batches."""
        if self.spec.only and "workers" not in self.spec.only:
            return
        if self.record.rows[-1].verdict not in NOT_FASTER or self.newest is None:
            return
        found = TrialAnatomy(self.newest)
        joined = with_workers(candidate, found, self.standing.kept, self.tried, cpus) if self.newest.measured else None
        if joined is not None and self.budget.needed_s(joined.slow) < self.budget.left_s:
            self._try(joined)

    def _try(self, candidate: TuneCandidate) -> None:
        if self.since_reference >= _REFERENCE_EVERY and self.budget.needed_s(candidate.slow) * 1.5 < self.budget.left_s:
            self._measure_reference()
        self.tried.append(candidate.changes)
        self.since_reference += 1
        changes = {**self.standing.kept, **candidate.changes}
        keys = tuple(candidate.changes)
        made = [self.trial(changes, in_words(candidate.changes), self.budget.limit_s(candidate.slow), tried=keys)]
        self.newest = made[0]
        row = self._judged(candidate, made)
        while row.verdict == "again":
            self._measure_reference()
            words = in_words(candidate.changes) + ", again"
            made.append(self.trial(changes, words, self.budget.limit_s(candidate.slow)))
            row = self._judged(candidate, made)
        self.record.rows.append(row)
        self.hopeless |= {key for key in made[-1].refused if key in _ONE_KEY}
        if row.verdict in NOT_FASTER:
            self.no_faster.append(candidate.changes)
            if row.verdict == "no-faster" and BESIDE in candidate.name:  # then none of it alone
                alone = [GROUPS[name] for name in candidate.name.split(BESIDE) if name != "workers"]
                parts = [{key: candidate.changes[key] for key in keys if key in candidate.changes} for keys in alone]
                self.tried += parts
                self.no_faster += parts
            if candidate.name == "workers":
                self.hopeless.add("workers")  # another number of them is for where this one failed
        if candidate.name == "compile" and row.verdict in ("refused", "failed"):
            self.hopeless.add("compile")  # the other mode compiles the same code
        if row.verdict == "kept":
            if row.faster and row.faster.middle > _MOVES_THE_BOUND:
                self.tried = [each for each in self.tried if each not in self.no_faster]
                self.no_faster = []
                self.hopeless.discard("workers")
            applied = {key: value for key, value in candidate.changes.items() if key not in made[-1].refused}
            self.standing.keep(candidate.name, applied, made)
            self.since_reference = 0
            self.record.places.update(made[-1].places)
        self.record.kept = self.standing.kept
        self.record.report()
        print_line("    %s%s" % ("%s; " % _rate(row.rates) if row.rates else "", row.why))

    def _measure_reference(self) -> None:
        if not self.standing.kept:
            self.baseline("as it is, again", self.budget.limit_s())
            self.standing.reference = self.standing.baselines
        else:
            self._measure_kept(0)
        self.since_reference = 0

    def _measure_kept(self, seed_offset: int) -> List[TuneTrial]:
        """Measure the kept changes once more; return the trial, or None if it was not measured."""
        words = in_words(self.standing.kept) + ", again"
        made = self.trial(self.standing.kept, words, self.budget.limit_s(), seed_offset)
        self.standing.reference += [made] if made.measured else []
        return [made] if made.measured else []

    def _judged(self, candidate: TuneCandidate, made: List[TuneTrial]) -> TuneRow:
        """Return the row of a change after one or more pairs of trials; the verdict ``again`` requests another."""
        newest, standing = made[-1], self.standing
        faster = statistics.faster(standing.warm(standing.reference), made, standing.repeats())
        row = TuneRow.of(newest, candidate.name, candidate.changes, statistics.rates([t for t in made if t.measured]))
        verdict, why = self._verdict(candidate, made, faster)
        row = row._replace(loss_difference=standing.band.distance(newest), loss_off=standing.band.off(made))
        places = {key: newest.places[key] for key in candidate.changes if key in newest.places}
        return row._replace(faster=faster, places=places, verdict=verdict, why=why)

    def _verdict(self, candidate: TuneCandidate, made: List[TuneTrial], faster: Optional[Interval]) -> Tuple[str, str]:
        newest = made[-1]
        refused = [newest.refused[key] for key in candidate.changes if key in newest.refused]
        if len(refused) == len(candidate.changes):
            return "refused", "could not be applied: %s" % refused[0]
        if faster is None or not newest.measured:
            if newest.exit_code is None or newest.ended == "seconds":
                return "failed", "took longer than a trial may"
            return "failed", "failed: %s" % last_line(newest.output)
        if faster.high < 1:
            return "slower", "%s times as fast" % faster.words
        is_faster = faster.low > 1 and faster.middle >= statistics.WORTH
        if is_faster and (why := self.standing.why_different(candidate.name, made)):
            return "different", why
        time_for_more = self.budget.left_s > 2 * self.budget.needed_s(candidate.slow)
        sure = statistics.SURE if len(made) == 1 else 1.0
        if len(made) < statistics.PAIRS and time_for_more and statistics.is_open(faster, sure):
            return "again", ""
        if is_faster:
            return "kept", "%s times as fast: kept" % faster.words
        if faster.high <= statistics.SURE:
            return "no-faster", "%s times as fast: no faster" % faster.words
        return "unclear", "%s times as fast: not distinguishable; measure longer" % faster.words

    # the combination

    def _finally(self) -> None:
        """Measure the script as it is and the result in turn, each pair under its own seed; if that fails,
        remove the change that came last."""
        standing = self.standing
        bases: List[TuneTrial] = []
        while standing.kept:
            fresh = []
            for at in range(statistics.LAST_PAIRS):
                pair_s = 1.2 * (standing.baselines[-1].wall_s + standing.reference[-1].wall_s)
                if at == len(bases) and self.budget.left_s > pair_s:
                    bases.append(self.baseline("as it is, at the end", self.budget.limit_s()))
                if self.budget.left_s > 1.1 * standing.reference[-1].wall_s:
                    fresh += self._measure_kept(bases[at].seed_offset if at < len(bases) else 0)
            fresh = fresh or standing.reference
            faster = statistics.faster(standing.warm(standing.baselines), fresh, standing.repeats())
            rates, newest = statistics.rates(fresh), standing.reference[-1]
            assert rates is not None and faster is not None
            why = standing.why_different(standing.kept_order[-1][0], fresh)
            if faster.low <= 1:
                why = why or "a second measurement gave %s times as fast: not distinguishable" % faster.words
            if not why:
                whole = TuneRow.of(newest, "combination", dict(standing.kept), rates)
                off, why = standing.band.off(fresh), "%.2f times as fast as the script as it is" % faster.middle
                whole = whole._replace(loss_difference=standing.band.distance(newest), loss_off=off)
                self.record.combination = whole._replace(faster=faster, verdict="kept", why=why, places={})
                self.record.kept, self.record.places = dict(standing.kept), newest.places
                return
            self._remove_last(why)
        self.record.kept, self.record.places = {}, {}

    def _remove_last(self, why: str) -> None:
        name, applied = self.standing.remove_last()
        self.record.rows = [
            row._replace(verdict="removed", why=why)
            if row.name == name and row.verdict == "kept" and applied.items() <= row.changes.items()
            else row
            for row in self.record.rows
        ]


def _rate(rates: statistics.Rates) -> str:
    return "%.4g steps/s ± %.1f %%" % (rates.median, 100 * rates.spread)


def _cpus() -> int:
    """Return the cores that the container may use."""
    quota = Cgroup().cpu_quota_cores()
    cores = len(os.sched_getaffinity(0))
    return max(1, int(min(cores, quota) if quota else cores))
