"""Scripts that import Horovod: what takes its place where it is not installed, and which parts of it nothing does."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from seatrial.backends.base import Traits
from seatrial.errors import TargetError
from seatrial.images.plan import further_lines
from seatrial.images.requirements.pip_format import canonical_name
from seatrial.job.model import Job
from seatrial.job.plan import Choice
from seatrial.job.script import HOROVOD, ScriptFacts, telling_part
from seatrial.planning.process import missing_in
from seatrial.planning.site import Parts
from seatrial.system.project_files import own_table

_WHY_NOT = "its last release, 0.28.1 of 2023, has no wheels and does not build against current torch"


class HorovodParts(NamedTuple):
    """Holds a plan's choices about Horovod; ``starts_ranks``: it, or its stand-in, takes a rank per GPU."""

    starts_ranks: bool = True
    stand_ins: tuple[str, ...] = ()
    choices: tuple[Choice, ...] = ()
    warnings: tuple[str, ...] = ()


def horovod_parts(job: Job, script: ScriptFacts, parts: Parts) -> HorovodParts:
    """Plan a stand-in for Horovod where the script imports it. Raises TargetError: a part that it needs has none."""
    if not script.horovod:
        return HorovodParts()
    name = telling_part(script.horovod)
    imports = f"{script.horovod[name]} imports {name}"
    if parts.image is None and parts.venv is None and parts.python and not missing_in(Path(parts.python), (HOROVOD,)):
        choice = Choice(what="horovod", value="as installed", reason=f"{imports}, and {parts.python} has it")
        return HorovodParts(stand_ins=(HOROVOD,), choices=(choice,))
    if brought := _brought_by(job, parts):
        without = f"{imports}; where {brought} has no Horovod, "
        if _refused(name):
            reason = warning = f"{without}the script fails there: seatrial has no stand-in for that part"
        else:
            reason = f"{without}seatrial's stand-in on torch.distributed is used"
            warning = f"{reason}, and the log's first line repeats it: it is not Horovod"
        choice = Choice(what="horovod", value=f"as {brought} has it", reason=reason)
        return HorovodParts(stand_ins=(HOROVOD,), choices=(choice,), warnings=(warning,))
    refuse_parts(job, script)
    if refused := _refused(name):
        return _where_it_is_reached(f"{script.horovod[name]} may import {name}", refused[1])
    reason = f"{imports}; Horovod is not installed: {_WHY_NOT}"
    choice = Choice(what="horovod", value="seatrial's stand-in on torch.distributed", reason=reason)
    warning = (
        f"This is not Horovod: {imports}, and seatrial's stand-in on torch.distributed takes its place; "
        "to leave Horovod: torch.distributed.init_process_group(), torch.cuda.set_device(LOCAL_RANK), and "
        "DistributedDataParallel(model) in place of hvd.DistributedOptimizer"
    )
    return HorovodParts(stand_ins=(HOROVOD,), choices=(choice,), warnings=(warning,))


def _where_it_is_reached(may_import: str, instead: str) -> HorovodParts:
    """Describe a part without a stand-in that the script can do without."""
    reason = f"{may_import}, for which seatrial has no stand-in, and Horovod cannot be installed: {_WHY_NOT}"
    fails = f"a run that reaches it fails; instead: {instead}"
    warning = f"{may_import}, and seatrial has no stand-in for that part of Horovod: {fails}"
    choice = Choice(what="horovod", value="none", reason=reason)
    return HorovodParts(starts_ranks=False, stand_ins=(HOROVOD,), choices=(choice,), warnings=(warning,))


def _refused(needed: str) -> tuple[str, str] | None:
    """Return the part that nothing stands in for, with what to do instead; None for one with a stand-in."""
    refused = own_table(Path(__file__).with_suffix(".toml")).items()
    return next((each for each in refused if f"{needed}.".startswith(f"{each[0]}.")), None)


def refuse_first(job: Job, script: ScriptFacts, traits: Traits) -> None:
    """Refuse as ``refuse_parts``, before anything is resolved, if the image will be ours."""
    if script.horovod and traits.isolates and not job.image.ready and not _is_required(job):
        refuse_parts(job, script)


def _brought_by(job: Job, parts: Parts) -> str | None:
    """Return the option or file that may bring the user's own Horovod; None if nothing does."""
    if parts.image is not None and not parts.image.build:
        return parts.image.tag
    return "image.requirements" if parts.image is not None and _is_required(job) else None


def _is_required(job: Job) -> bool:
    """Return True if the user's own requirements name it."""
    return any(canonical_name(line) == HOROVOD for line in further_lines(job))


def refuse_parts(job: Job, script: ScriptFacts) -> None:
    """Refuse a script that cannot do without a part of Horovod that nothing stands in for. Raises TargetError."""
    for needed in (*script.needs_horovod, *(["horovod.torch.elastic"] if script.horovod_elastic else [])):
        if refused := _refused(needed):
            part, instead = refused
            where = script.horovod.get(needed) or (script.horovod_elastic or job.target.value).partition(" ")[0]
            message = f"{where} needs {part}, and seatrial has no stand-in for that part of Horovod"
            cause = f"Horovod cannot be installed: {_WHY_NOT}; in its place seatrial has horovod.torch alone"
            again = f"seatrial run {job.target.value} --gpus {job.gpus.count or 2}"
            run = f"{instead}; then: {again}   # or name an image that has Horovod: --image IMAGE"
            raise TargetError(message, cause=cause, run=run)
