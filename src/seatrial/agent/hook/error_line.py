"""An error, said in a line."""


def in_short(error: BaseException) -> str:
    """An error's line that says most, for a reason: its first; a worker's error ends with what it was."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [""]
    if lines[0].startswith("Caught ") and len(lines) > 1:
        return lines[-1][:200]
    return ("%s: %s" % (type(error).__name__, lines[0]))[:200]
