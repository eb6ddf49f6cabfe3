"""Check a manifest by the rules of the operators' validating webhooks, before anything is made (admission.toml)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from seatrial.errors import UsageError
from seatrial.system.project_files import own_table

_TABLE = Path(__file__).with_suffix(".toml")

#: Names in the table → RFC 1035, RFC 1123, and Kubernetes' domain-prefixed path.
_LABEL = "[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?"
_SUBDOMAIN = r"(?=.{1,253}$)[a-z0-9](?:[-a-z0-9]*[a-z0-9])?(?:\.[a-z0-9](?:[-a-z0-9]*[a-z0-9])?)*"
_PATTERNS = {"LABEL": _LABEL, "SUBDOMAIN": _SUBDOMAIN, "MANAGER": _SUBDOMAIN.replace("$", "/", 1) + r"/[\w/%.~:@+-]+"}


def check(manifest: Mapping[str, Any], file: str | None) -> None:
    """Check the operator's rules. ``file``: where the user wrote it. Raises UsageError for the first broken rule."""
    for operator, table in own_table(_TABLE).items():
        for rule in table["rules"] if manifest["kind"] in table["kinds"] else ():
            values = [str(value) for value in _values(manifest, rule["at"].split("|"))]
            wrong = [value for value in values if not re.fullmatch(_PATTERNS.get(rule["fits"], rule["fits"]), value)]
            applies = "when" not in rule or any(True for _ in _values(manifest, rule["when"].split("|")))
            if applies and (len(wrong) == len(values) if rule.get("any") else wrong):
                got = f", got {wrong[0]}" if wrong else ""
                raise UsageError(
                    f"{file or manifest['kind']}: {rule['field']} must be {rule['must']}{got}",
                    cause=f"the webhook of {operator} refuses it ({table['source']})",
                    run=f"${{EDITOR:-vi}} {file}" if file else "seatrial run … --kind job",
                )


def _values(value: Any, steps: Sequence[str]) -> Iterator[Any]:
    if not steps:
        yield value
    elif steps[0] == "names":
        yield from _names(value)
    elif steps[0] == "~":
        yield from value or ()
    elif steps[0] == "*":
        for each in value or ():
            yield from _values(each, steps[1:])
    elif isinstance(value, Mapping) and value.get(steps[0]) is not None:
        yield from _values(value[steps[0]], steps[1:])


def _names(manifest: Any) -> Iterator[str]:
    """Yield the longest name of each Job of a JobSet, and of its pods with the suffix of theirs."""
    for job in manifest["spec"].get("replicatedJobs") or ():
        name = f"{manifest['metadata']['name']}-{job['name']}-{int(job.get('replicas', 1)) - 1}"
        yield from (name, f"{name}-{int(job['template']['spec'].get('completions') or 1) - 1}-abcde")
