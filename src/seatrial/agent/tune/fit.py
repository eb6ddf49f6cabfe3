"""Fit: the largest batch that the GPU's memory holds, and the fastest one, from a few trials.

Memory grows with the batch along a line, weights and optimizer at its beginning: two trials give it, each further one
is predicted first and then seen. A trial that runs out of memory does not fail here: it shows where the end is.
"""

from typing import Any, Callable, List, NamedTuple, Optional, Tuple

from seatrial.agent.tune import statistics
from seatrial.agent.tune.record import TuneRow

#: A step up is at most this many times the largest batch that was seen: lines bend where cuDNN chooses other kernels.
_MOST_GROWTH = 4.0
#: Share of the free memory that the allocator can use; the rest is lost to gaps.
_USABLE = 0.97
#: The end is known well enough when the smallest batch that failed is at most this many times the largest that fitted.
_CLOSE = 1.07

_MOST_TRIALS = 10

#: Printed wherever another batch size is shown.
TRAINS_DIFFERENTLY = (
    "another batch size trains differently: it makes fewer steps in an epoch, and the learning rate was chosen for the "
    "other one. So it is never kept unless you set it"
)

#: Printed by torch then. Source: torch/csrc, c10/cuda/CUDACachingAllocator.cpp, and torch.OutOfMemoryError.
_OUT_OF_MEMORY = ("OutOfMemoryError", "CUDA out of memory", "HIP out of memory")


class SeenBatch(NamedTuple):
    """One trial's memory, None if it ran out, and speed; ``why``: reason why it is of no use, None if it is."""

    peak_bytes: Optional[int]
    examples_per_s: Optional[float]
    out_of_memory: bool = False
    why: Optional[str] = None


class Point(NamedTuple):
    """A batch size, the memory that was predicted for it, and its trial."""

    batch: int
    predicted_bytes: Optional[int]
    seen: SeenBatch

    def why(self) -> str:
        """Return the words of its row."""
        predicted, peak = self.predicted_bytes, self.seen.peak_bytes
        words = "does not fit" if self.seen.out_of_memory else self.seen.why or ""
        if predicted and peak:
            return "predicted %.2f GiB: off by %.1f %%" % (predicted / 2**30, 100 * abs(predicted / peak - 1))
        return "%s: predicted %.2f GiB" % (words, predicted / 2**30) if words and predicted else words


class Fit(NamedTuple):
    """``largest`` and ``fastest`` batch of the trials' ``points``, or the reason why nothing was found."""

    points: List[Point]
    largest: Optional[int] = None
    fastest: Optional[int] = None
    refusal: Optional[str] = None


def fit(
    batch: int, capacity_bytes: int, run: Callable[[int], SeenBatch], more: Callable[[], bool] = lambda: True
) -> Fit:
    """Look for the largest batch and the fastest.

    ``batch``: the script's own. ``capacity_bytes``: of the GPU, or of --gpu-memory. ``run``: makes a trial with a batch
    size. ``more``: returns whether time is left for another.
    """
    points = [Point(batch, None, run(batch))]
    first = points[0].seen
    if first.why or first.out_of_memory or not first.peak_bytes:
        why = first.why or ("it runs out of memory as it is" if first.out_of_memory else "its memory was not reported")
        return Fit(points, refusal="the batch cannot be fitted: %s" % why)
    while more() and len(points) < _MOST_TRIALS:
        if (size := _next(points, capacity_bytes)) is None:
            break
        line = _line(points)
        points.append(Point(size, int(line[0] + line[1] * size) if line else None, run(size)))
        seen = points[-1].seen
        if not seen.out_of_memory and (seen.why or not seen.peak_bytes):
            break  # the data set is smaller, or the script refuses it
    timed = [point for point in points if point.seen.peak_bytes and point.seen.examples_per_s]
    fastest = max(timed, key=lambda point: point.seen.examples_per_s or 0.0).batch if timed else None
    return Fit(points, max(point.batch for point in points if point.seen.peak_bytes), fastest)


def _line(points: List[Point]) -> Optional[Tuple[float, float]]:
    """Return the line through the two largest batches that were seen: (bytes at none, bytes an example)."""
    seen = sorted({point.batch: point.seen.peak_bytes or 0 for point in points if point.seen.peak_bytes}.items())
    if len(seen) < 2:
        return None
    (low, low_bytes), (high, high_bytes) = seen[-2:]
    slope = (high_bytes - low_bytes) / (high - low)
    return (high_bytes - slope * high, slope) if slope > 0 else None


def _next(points: List[Point], capacity_bytes: int) -> Optional[int]:
    """Return the batch to try; None if the end is known."""
    largest = max(point.batch for point in points if point.seen.peak_bytes)
    beyond = min((point.batch for point in points if point.seen.out_of_memory), default=None)
    if beyond is not None and beyond <= _CLOSE * largest:
        return None
    line = _line(points)
    if line is None:  # twice, or between the one that fits and the one that does not
        size = 2 * largest if beyond is None else (largest + beyond) // 2
    else:
        size = int(min((_USABLE * capacity_bytes - line[0]) / line[1], _MOST_GROWTH * largest))
        if beyond is not None and size >= beyond:
            size = (largest + beyond) // 2
    # A multiple of eight, which tensor cores want, if the batch is large enough for that to be little.
    unit = next((unit for unit in (64, 32, 16, 8) if size >= 16 * unit), 1)
    size = size // unit * unit
    tried = {point.batch for point in points}
    return size if size > largest and size not in tried and (beyond is None or size < beyond) else None


def seen_of(made: Any) -> SeenBatch:
    """Return the memory and speed of a trial of the driver's (trial.Trial)."""
    refused = made.refused.get("batch_size", "")
    if refused and "already" not in refused:
        return SeenBatch(None, None, why=refused)
    if any(word in made.output for word in _OUT_OF_MEMORY):
        return SeenBatch(None, None, out_of_memory=True)
    if made.exit_code is None or not made.steps:
        return SeenBatch(
            None, None, why="it took longer than a trial may" if made.exit_code is None else "no step was made"
        )
    peaks = [int(rank.get("reserved_bytes") or 0) for rank in made.ranks]
    return SeenBatch(max(peaks, default=0) or None, made.examples_per_s)


def fit_batch(driver: Any) -> str:
    """Search with a driver's trials, once its baseline is measured; record the rows and return the conclusion."""
    baselines = driver.standing.baselines
    loader = baselines[0].facts.get("loader") if baselines else None
    batch = loader.get("batch_size") if isinstance(loader, dict) else None
    if not isinstance(batch, int) or batch < 1:
        return "the batch cannot be fitted: no DataLoader with a batch size gives the batches"
    trials = {}

    def run(size: int) -> SeenBatch:
        if size not in trials:
            limit_s = driver.budget.limit_s(slow=True)
            trials[size] = driver.trial({"batch_size": size}, "batches of %d" % size, limit_s)
        return seen_of(trials[size])

    run(batch)  # shows how much memory there is
    words = trials[batch].places.get("gpu_bytes")
    word = words[0] if isinstance(words, list) and words else ""
    if not isinstance(word, str) or not word.isdigit():
        return "the batch cannot be fitted: training is not on a GPU"

    found = fit(
        batch, int(word), run, lambda: driver.budget.left_s > 1.5 * max(each.wall_s for each in trials.values())
    )
    for point in found.points:
        made = trials[point.batch]
        rates = statistics.rates([made]) if made.measured else None
        row = TuneRow.of(made, "batch", {"batch_size": point.batch}, rates)._replace(
            why=point.why(), examples_per_s=point.seen.examples_per_s, peak_bytes=point.seen.peak_bytes, places={}
        )
        driver.record.rows.append(row)
    if found.refusal is not None:
        return found.refusal
    conclusion = "the largest batch that was seen to fit is %d, the fastest %s (now %d); %s"
    return conclusion % (found.largest, found.fastest or "is not known", batch, TRAINS_DIFFERENTLY)
