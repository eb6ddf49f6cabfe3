"""`tune --fit` in the driver: a trial for each batch size, and its row of the table."""

from typing import Any, Dict, Optional

from seatrial.agent.tune import judging
from seatrial.agent.tune.fit import TRAINS_DIFFERENTLY, Fit, Seen, fit, seen_of
from seatrial.agent.tune.record import Row


class Fitting:
    """Runs the search with a driver's trials.

    Args:
        driver: its baseline has been measured (driver.Driver).
    """

    def __init__(self, driver: Any) -> None:
        self._driver = driver
        self._trials: Dict[int, Any] = {}

    def run(self) -> str:
        """Search, tell the rows, and return the conclusion in a sentence."""
        driver = self._driver
        baselines = driver.standing.baselines
        loader = baselines[0].facts.get("loader") if baselines else None
        batch = loader.get("batch_size") if isinstance(loader, dict) else None
        if not isinstance(batch, int) or batch < 1:
            return "the batch cannot be fitted: no DataLoader with a batch size gives the batches"
        self._try(batch)  # tells how much memory there is
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
        told = self._trials[batch].places.get("gpu_bytes")
        word = told[0] if isinstance(told, list) and told else ""
        return int(word) if isinstance(word, str) and word.isdigit() else None

    def _time_is_left(self) -> bool:
        return bool(self._driver.budget.left_s > 1.5 * max(made.wall_s for made in self._trials.values()))

    def _row(self, batch: int, told: Dict[str, Any]) -> Row:
        made = self._trials[batch]
        rates = judging.rates([made]) if made.measured else None
        why = str(told.get("words", ""))
        if "off_by" in told:
            why = "predicted %.2f GiB: off by %.1f %%" % (told["predicted_bytes"] / 2**30, 100 * abs(told["off_by"]))
        elif told.get("words") and told.get("predicted_bytes"):
            why += ": predicted %.2f GiB" % (told["predicted_bytes"] / 2**30)
        changes = {"batch_size": batch}
        return Row("batch", changes, rates, None, "", why, told.get("examples_per_s"), told.get("peak_bytes"))

    def _conclusion(self, found: Fit, batch: int) -> str:
        if found.refusal is not None:
            return found.refusal
        words = "the largest batch that was seen to fit is %d, the fastest %s (now %d)"
        return (words + "; %s") % (found.largest, found.fastest or "is not known", batch, TRAINS_DIFFERENTLY)
