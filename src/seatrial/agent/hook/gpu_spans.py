"""GpuSpans: what the GPU's own clock says of the phases of a step, by CUDA events that nobody waits for."""

from typing import Any, Dict, List, Tuple

#: Phase that a mark begins → its name in the evidence. ``end`` begins the time until the next batch is there.
PHASES = {"forward": "forward", "backward": "backward", "optimizer": "optimizer", "communication": "communication",
          "end": "data"}  # fmt: skip

#: Marks kept; a step with thousands of backward passes is measured by its first ones.
_MOST_MARKS = 1024


class GpuSpans:
    """Marks of some steps, and the time between them on the stream of the thread that trains.

    Attributes:
        spans: phase → seconds of the stream. An idle GPU waits in the phase in which it idles.
        caught_up: at so many marks the GPU had already done all before the mark ahead: it waits for the host.
        marks: so many were looked at. last: the phase that the last one began.
    """

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._open: List[Tuple[str, Any]] = []
        self._closed: List[List[Tuple[str, Any]]] = []
        self.spans: Dict[str, float] = {}
        self.caught_up = self.marks = 0
        self.last = ""

    def mark(self, phase: str) -> None:
        """The host is here; the stream will be. CUDA runs, and no graph is being captured."""
        if len(self._open) >= _MOST_MARKS:
            return
        if self._open:
            self.marks += 1
            self.caught_up += bool(self._open[-1][1].query())
        event = self._torch.cuda.Event(enable_timing=True)
        event.record()
        self._open.append((phase, event))
        self.last = phase

    def close(self) -> None:
        """No more marks of this window."""
        if len(self._open) > 1:
            self._closed.append(self._open)
        self._open = []
        self.last = ""

    def drop(self) -> None:
        """No more marks of this window, and none of those that were set."""
        self._open = []
        self.last = ""

    def collect(self) -> None:
        """Take up windows whose last event the GPU has passed."""
        while self._closed and self._closed[0][-1][1].query():
            marks = self._closed.pop(0)
            for (phase, event), (_, following) in zip(marks, marks[1:]):  # noqa: RUF007  pairwise is newer than Python 3.8
                name = PHASES[phase]
                self.spans[name] = self.spans.get(name, 0.0) + event.elapsed_time(following) / 1000
