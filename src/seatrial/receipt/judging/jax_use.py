"""JAX in a receipt: what its functions were compiled for and how often the script called them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from seatrial.diagnosis.anatomy import FACTS
from seatrial.events import Step
from seatrial.receipt.evidence.facts import Evidence
from seatrial.receipt.evidence.fields import mapping, number, text
from seatrial.receipt.model import JaxCalls, JaxUse

#: No process has so many functions in a line of the hook's.
_MOST = 8


def jax_use(evidence: Evidence) -> JaxUse | None:
    """From the hook's line, which the target could write, too; of several processes, the one with the most calls."""
    found: JaxUse | None = None
    for moment in evidence.all(Step):
        facts = mapping(moment.keys.get(FACTS))
        version = text(facts.get("jax"))
        if version and (found is None or _calls(facts) >= sum(each.calls for each in found.functions)):
            found = JaxUse(
                version=version[:40],
                backends=tuple(str(each)[:20] for each in _items(facts.get("jax_backends"))),
                compiled=int(number(facts.get("jax_compiled")) or 0),
                compile_s=number(facts.get("jax_compile_s")) or 0.0,
                functions=tuple(_functions(facts)),
            )
    return found


def _calls(facts: Mapping[str, Any]) -> int:
    return sum(each.calls for each in _functions(facts))


def _functions(facts: Mapping[str, Any]) -> list[JaxCalls]:
    made = []
    for each in map(mapping, _items(facts.get("jax_calls"))):
        name, calls, seconds = text(each.get("name")), number(each.get("calls")), number(each.get("seconds"))
        if name and calls and calls > 0 and seconds is not None and seconds >= 0:
            per_s = (calls - 1) / seconds if calls > 1 and seconds > 0 else None
            made.append(JaxCalls(name=name[:100], calls=int(calls), calls_per_s=per_s))
    return made


def _items(value: object) -> list[Any]:
    return value[:_MOST] if isinstance(value, list) else []
