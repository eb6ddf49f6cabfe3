"""Fit: the largest batch that the GPU's memory holds, and the fastest one, from a few trials.

Memory grows with the batch along a line, weights and optimizer at its beginning: two trials give it, each further one
is predicted first and then seen. A trial that runs out of memory is no failure here: it shows where the end is.
"""

from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

from seatrial.agent.tune import statistics
from seatrial.agent.tune.record import Row

#: A step up is at most this many times the largest batch that was seen: lines bend where cuDNN chooses other kernels.
_MOST_GROWTH = 4.0

#: Of the memory that is there, the allocator gets this much to work with; the rest goes into its gaps.
_USABLE = 0.97

#: The end is known well enough when the smallest batch that failed is at most this many times the largest that fitted.
_CLOSE = 1.07

#: Trials, at most.
_MOST_TRIALS = 10

#: Said wherever another batch size is shown.
TRAINS_DIFFERENTLY = (
    "another batch size trains differently: it makes fewer steps in an epoch, and the learning rate was chosen for the "
    "other one. So it is never kept unless you set it"
)


class Seen(NamedTuple):
    """One trial.

    Attributes:
        peak_bytes: what the allocator reserved at most; None where it ran out.
        why: the trial is of no use, in words; else None.
    """

    peak_bytes: Optional[int]
    examples_per_s: Optional[float]
    out_of_memory: bool = False
    why: Optional[str] = None


class Point(NamedTuple):
    """A batch size: what was predicted for it, and what was seen."""

    batch: int
    predicted_bytes: Optional[int]
    seen: Seen

    def as_dict(self) -> Dict[str, Any]:
        """Return it as a row of the table."""
        row: Dict[str, Any] = {"batch": self.batch, "predicted_bytes": self.predicted_bytes}
        row.update(peak_bytes=self.seen.peak_bytes, examples_per_s=self.seen.examples_per_s)
        if self.predicted_bytes and self.seen.peak_bytes:
            row["off_by"] = round(self.predicted_bytes / self.seen.peak_bytes - 1, 4)
        if self.seen.out_of_memory:
            row["words"] = "does not fit"
        elif self.seen.why:
            row["words"] = self.seen.why
        return {key: value for key, value in row.items() if value is not None}


class Fit(NamedTuple):
    """Attributes:

    points: in the order of the trials. largest, fastest: batch sizes.
    refusal: why nothing was found, in a sentence.
    """

    points: List[Point]
    largest: Optional[int] = None
    fastest: Optional[int] = None
    refusal: Optional[str] = None


def fit(batch: int, capacity_bytes: int, run: Callable[[int], Seen], more: Callable[[], bool] = lambda: True) -> Fit:
    """Look for the largest batch and the fastest.

    Args:
        batch: the script's own.
        capacity_bytes: of the GPU, or of --gpu-memory.
        run: a trial with a batch size.
        more: whether time is left for another.
    """
    points: List[Point] = []

    def go(size: int) -> Seen:
        points.append(Point(size, _predict(points, size), run(size)))
        return points[-1].seen

    first = go(batch)
    if first.why or first.out_of_memory or not first.peak_bytes:
        why = first.why or ("it runs out of memory as it is" if first.out_of_memory else "its memory was not reported")
        return Fit(points, refusal="the batch cannot be fitted: %s" % why)
    beyond: Optional[int] = None  # the smallest batch that did not fit
    while more() and len(points) < _MOST_TRIALS:
        size = _next(points, beyond, capacity_bytes)
        if size is None:
            break
        seen = go(size)
        if seen.out_of_memory:
            beyond = min(size, beyond or size)
        elif seen.why or not seen.peak_bytes:
            break  # the data set is smaller, or the script refuses it
    fitting = [point for point in points if point.seen.peak_bytes]
    timed = [point for point in fitting if point.seen.examples_per_s]
    fastest = max(timed, key=lambda point: point.seen.examples_per_s or 0.0).batch if timed else None
    return Fit(points, max(point.batch for point in fitting), fastest)


def seen_of(made: Any) -> Seen:
    """Return what a trial of the driver's (trial.Trial) shows of its batch."""
    refused = made.refused.get("batch_size", "")
    if refused and "already" not in refused:
        return Seen(None, None, why=refused)
    if any(word in made.output for word in _OUT_OF_MEMORY):
        return Seen(None, None, out_of_memory=True)
    peaks = [int(rank.get("reserved_bytes") or 0) for rank in made.ranks]
    if made.exit_code is None or not made.steps:
        return Seen(None, None, why="it took longer than a trial may" if made.exit_code is None else "no step was made")
    return Seen(max(peaks, default=0) or None, made.examples_per_s)


#: What torch prints then. Source: torch/csrc, c10/cuda/CUDACachingAllocator.cpp, and torch.OutOfMemoryError.
_OUT_OF_MEMORY = ("OutOfMemoryError", "CUDA out of memory", "HIP out of memory")


def line(points: List[Point]) -> Optional[Tuple[float, float]]:
    """Through the two largest batches that were seen: (bytes at none, bytes an example)."""
    seen = sorted({point.batch: point.seen.peak_bytes for point in points if point.seen.peak_bytes}.items())
    if len(seen) < 2:
        return None
    (low, low_bytes), (high, high_bytes) = seen[-2:]
    assert low_bytes is not None and high_bytes is not None
    slope = (high_bytes - low_bytes) / (high - low)
    return (high_bytes - slope * high, slope) if slope > 0 else None


def _predict(points: List[Point], size: int) -> Optional[int]:
    found = line(points)
    return int(found[0] + found[1] * size) if found is not None else None


def _next(points: List[Point], beyond: Optional[int], capacity_bytes: int) -> Optional[int]:
    """The batch to try; None where the end is known."""
    fitting = [point.batch for point in points if point.seen.peak_bytes]
    largest = max(fitting)
    tried = {point.batch for point in points}
    if beyond is not None and beyond <= _CLOSE * largest:
        return None
    found = line(points)
    if found is None:  # no line yet: twice, or between what fits and what does not
        size = 2 * largest if beyond is None else (largest + beyond) // 2
    else:
        size = int(min((_USABLE * capacity_bytes - found[0]) / found[1], _MOST_GROWTH * largest))
        if beyond is not None and size >= beyond:
            size = (largest + beyond) // 2
    size = _even(size)
    return size if size > largest and size not in tried and (beyond is None or size < beyond) else None


def _even(size: int) -> int:
    """A multiple of eight, which tensor cores want, where the batch is large enough for that to be little."""
    for unit in (64, 32, 16, 8):
        if size >= 16 * unit:
            return size // unit * unit
    return size


class Fitting:
    """Runs the search with a driver's trials.

    Args:
        driver: its baseline has been measured (driver.Driver).
    """

    def __init__(self, driver: Any) -> None:
        self._driver = driver
        self._trials: Dict[int, Any] = {}

    def run(self) -> str:
        """Search, record the rows, and return the conclusion in a sentence."""
        driver = self._driver
        baselines = driver.standing.baselines
        loader = baselines[0].facts.get("loader") if baselines else None
        batch = loader.get("batch_size") if isinstance(loader, dict) else None
        if not isinstance(batch, int) or batch < 1:
            return "the batch cannot be fitted: no DataLoader with a batch size gives the batches"
        self._try(batch)  # shows how much memory there is
        capacity = self._capacity(batch)
        if capacity is None:
            return "the batch cannot be fitted: training is not on a GPU"
        found = fit(batch, capacity, self._seen, self._time_is_left)
        for point in found.points:
            driver.record.rows.append(self._row(point.batch, point.as_dict()))
        return self._conclusion(found, batch)

    def _try(self, batch: int) -> Any:
        if batch not in self._trials:
            driver = self._driver
            self._trials[batch] = driver.trial(
                {"batch_size": batch}, "batches of %d" % batch, driver.budget.limit_s(slow=True)
            )
        return self._trials[batch]

    def _seen(self, batch: int) -> Seen:
        return seen_of(self._try(batch))

    def _capacity(self, batch: int) -> Optional[int]:
        row = self._trials[batch].places.get("gpu_bytes")
        word = row[0] if isinstance(row, list) and row else ""
        return int(word) if isinstance(word, str) and word.isdigit() else None

    def _time_is_left(self) -> bool:
        return bool(self._driver.budget.left_s > 1.5 * max(made.wall_s for made in self._trials.values()))

    def _row(self, batch: int, row: Dict[str, Any]) -> Row:
        made = self._trials[batch]
        rates = statistics.rates([made]) if made.measured else None
        why = str(row.get("words", ""))
        if "off_by" in row:
            why = "predicted %.2f GiB: off by %.1f %%" % (row["predicted_bytes"] / 2**30, 100 * abs(row["off_by"]))
        elif row.get("words") and row.get("predicted_bytes"):
            why += ": predicted %.2f GiB" % (row["predicted_bytes"] / 2**30)
        changes = {"batch_size": batch}
        return Row("batch", changes, rates, None, "", why, row.get("examples_per_s"), row.get("peak_bytes"))

    def _conclusion(self, found: Fit, batch: int) -> str:
        if found.refusal is not None:
            return found.refusal
        words = "the largest batch that was seen to fit is %d, the fastest %s (now %d)"
        return (words + "; %s") % (found.largest, found.fastest or "is not known", batch, TRAINS_DIFFERENTLY)
