"""Whether the target has said anything lately: output and reports, counted. The watchdog looks at it for hangs."""


class Activity:
    """Counts what happens; safe beside threads that only ask whether it has moved."""

    def __init__(self) -> None:
        self._count = 0
        self._seen = 0

    def happened(self) -> None:
        """The target printed or reported something."""
        self._count += 1

    def new(self) -> bool:
        """Whether anything has happened since the last call."""
        seen, self._seen = self._seen, self._count
        return self._count != seen
