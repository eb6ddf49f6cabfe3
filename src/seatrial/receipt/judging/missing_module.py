"""A module that was not found: one of the project's own is not a package to install."""

from __future__ import annotations

import re

from seatrial.findings.catalogue import by_id
from seatrial.findings.finding import Finding
from seatrial.job.plan import CONTAINER_PROJECT, Plan
from seatrial.job.reading.modules import folder_of

_NAMED = re.compile(r"No module named '([\w.]+)'")


def about_the_project(finding: Finding, plan: Plan) -> Finding:
    """The finding itself, unless the missing module lies in the project: then where it lies, as the target sees it."""
    if finding.id not in ("python-module-missing", "python-part-missing"):
        return finding
    named = next((match for line in finding.evidence if (match := _NAMED.search(line))), None)
    folder = folder_of(named[1].partition(".")[0], plan.job.project) if named else None
    if named is None or folder is None:
        return finding
    root = str(plan.job.project) if plan.on_the_host else CONTAINER_PROJECT
    seen = root if str(folder) == "." else f"{root}/{folder}"
    known, have = by_id("project-module-not-on-path"), plan.job.env.get("PYTHONPATH")
    return known.finding(
        finding.evidence,
        values={"module": named[1], "folder": seen},
        fix=f'in seatrial.toml: [env] PYTHONPATH = "{have}:{seen}"' if have else None,
    )
