"""What is told of a search when it has ended: how many trials, the best, those that failed."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence

from seatrial.errors import EXIT_DONE
from seatrial.job.notify import Notify
from seatrial.runs import notify
from seatrial.search import page
from seatrial.search.opening import place_of
from seatrial.search.search import Search
from seatrial.search.standing import best_of
from seatrial.search.trial import Trial
from seatrial.system.files import make_folder
from seatrial.system.names import Names


def tell_end(
    search: Search,
    trials: Sequence[Trial],
    told: Notify,
    names: Names,
    environ: Mapping[str, str],
    *,
    exit_code: int,
    seconds: float,
) -> None:
    """Tell those who asked to be told, without waiting for it. Another terminal of the study tells its own.

    Raises DiskError.
    """
    if not told.asked:
        return
    folder = search.study.path.parent / "told" / str(os.getpid())
    make_folder(folder)
    notify.keep_request(folder, search.job.project, told)
    notify.begin(folder, ended_sweep(search, trials, names, exit_code, seconds), environ)


def ended_sweep(search: Search, trials: Sequence[Trial], names: Names, exit_code: int, seconds: float) -> notify.Ended:
    """``sweep mnist-1b0af5: 12 trials, best accuracy 0.991 (trial 7), 2 failed``."""
    name = search.study.definition.name
    outcome = "failed" if search.problem is not None or exit_code != EXIT_DONE else "done"
    outcome = "stopped" if search.interrupted else outcome
    headline = names.text(in_words(search, trials))
    return notify.Ended(
        kind="sweep",
        id=name,
        name=name,
        target=names.text(search.study.definition.title),
        outcome=outcome,
        level={"done": "good", "failed": "bad"}.get(outcome, "warning"),
        exit_code=exit_code,
        headline=headline,
        seconds=seconds,
        text=f"seatrial: sweep {names.text(name)}: {headline}",
        receipt=place_of(search.job.project, name) / page.RESULTS,
    )


def in_words(search: Search, trials: Sequence[Trial]) -> str:
    """``12 trials, best accuracy 0.991 (trial 7), 2 failed``; of one that ended early, that first."""
    counted = Counter(trial.state for trial in trials)
    ended = sum(trial.ending is not None and trial.state != "stopped" for trial in trials)
    of = f" of {search.expected}" if search.expected is not None and ended < search.expected else ""
    parts = [f"{ended}{of} trial{'s' * ((search.expected if of else ended) != 1)}"]
    best = best_of(trials, search.objective)
    if best is not None and search.objective is not None:
        parts.append(f"best {search.objective.metric} {best.value:.4g} (trial {best.number})")
    parts += [f"{counted[state]} {state}" for state in ("failed", "pruned") if counted[state]]
    words = ", ".join(parts)
    if search.problem is not None:
        return f"failed: {search.problem.message}; {words}"
    return f"stopped by the user; {words}" if search.interrupted else words
