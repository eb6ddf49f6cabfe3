"""What ``up`` shows of a Compose file: its plan and its remarks."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Sequence

from seatrial.findings.finding import FIX
from seatrial.job.plan import Plan
from seatrial.pipelines.compose.remark import Remark
from seatrial.pipelines.compose.start import Planned


def plan_text(planned: Planned, remarks: Iterable[Remark]) -> str:
    """Each service and what is done with it, the order, the remarks, the override."""
    file, lines = planned.file, []
    lines.append(f"# {file.path.name}, project {file.name}")
    for name, service in file.services.items():
        kind = f"service ({service.why_service})" if service.why_service else "task: it ends by itself"
        lines.append(f"# {name}: {kind}")
        if name in planned.plans:
            lines += [f"#   {line}" for line in _of_plan(planned.plans[name])]
        else:
            lines.append("#   as Compose runs it: no run of seatrial's")
    for wait in planned.waits:
        lines.append(f"# {wait.why}: {wait.reader} waits for its successful end (--as-written leaves it)")
    lines += [f"# {line}" for line in remark_lines(remarks)]
    return "\n".join(lines) + "\n" + planned.text


def _of_plan(plan: Plan) -> Iterator[str]:
    gpus = ", ".join(f"GPU {gpu.mig or gpu.index} ({gpu.name}, {gpu.uuid})" for gpu in plan.gpus)
    yield f"a run on {gpus or 'the CPU'}: {_one_line(plan.agent.argv)}"
    yield from (f"{each.what}: {each.value} ({each.reason})" for each in plan.choices if each.what == "GPU injection")
    yield from (f"warning: {warning}" for warning in plan.warnings)


def _one_line(argv: Sequence[str]) -> str:
    """A command as it would be typed, in one line: what is shown is YAML, in which this is a comment."""
    words = [shlex.quote(word) for word in argv] if len(argv) > 1 else argv  # one may be a sentence in its place
    return " ".join(words).replace("\n", "\\n")


def remark_lines(remarks: Iterable[Remark]) -> Iterator[str]:
    """``compose.yaml:12: warning: … ; fix: …``"""
    for each in remarks:
        yield f"{each.place}: {each.severity}: {each.message}; {FIX}: {each.fix}"
