"""The two words that stand before a cause and a remedy, wherever one is shown: errors, findings, receipts, pages.

The training library, which a script may use by itself, and the dashboard's page have the same two; a test compares.
"""

from typing import Optional

CAUSE = "cause"
FIX = "fix"


def in_one_line(message: str, cause: Optional[str], fix: Optional[str]) -> str:
    """``GPU missing; cause: …; fix: …``, for logs."""
    labelled = [(CAUSE, cause), (FIX, fix)]
    return "; ".join([message] + ["%s: %s" % (label, words) for label, words in labelled if words])
