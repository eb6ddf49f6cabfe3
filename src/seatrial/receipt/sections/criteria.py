"""Criteria: pass, fail or not judged, each with a reason.

"Not judged" stands for missing evidence, or a question that does not apply. It never stands for "probably". A
criterion that was requested explicitly and has no evidence fails.
"""

from __future__ import annotations

import glob
import re
import stat
from collections.abc import Callable, Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from seatrial.events import MODEL_SUFFIXES, FilesOutside, HostLaunched, ModelsSaved
from seatrial.job.in_container import CONTAINER_HOME, CONTAINER_RUN
from seatrial.job.keys import holds
from seatrial.job.units import format_bytes, format_seconds
from seatrial.receipt.reported import ReportedSteps
from seatrial.receipt.section import Block, Criterion, Section, Verdict, Verdicts
from seatrial.receipt.values import clean, count, figure, quote
from seatrial.system.files import status_of
from seatrial.system.text import nearest

if TYPE_CHECKING:
    from seatrial.receipt.evidence import RunEvidence
    from seatrial.receipt.model import Receipt

#: Fewer samples than this in the training window make no mean.
MIN_SAMPLES = 3
#: Most files examined: os.walk over the 125 000 of a /usr took 1.2 s from a warm cache, 6 s from a cold one.
MAX_FILES = 200_000
#: File times come from the kernel's coarse clock, which is up to one tick (10 ms at HZ=100) behind.
CLOCK_SLACK_S = 0.01
#: Layers of known failures without any relation to the GPU, unless an entry has ``of_cuda``.
_NOT_OF_CUDA = ("disk", "training", "script")
#: ``--gpus`` requests these, also ``auto`` that found some.
GPU_CONTRACT = ("gpus-visible", "ran-on-gpu")
#: Criterion → its key in [criteria], if it has a default.
_KEYS = {"gpu-busy": "mean_utilization_pct", "image-size": "max_image_bytes", "model-saved": "model"}
#: Criteria of training: a tune and a server have none (a server waits, ends when stopped and saves nothing).
_OF_TRAINING = ("gpu-busy", "in-time", "model-saved", "trained-on-gpu")
#: Reports one number, wherever the script runs.
_REPORT = """import os; print('{"KEY": %g}' % VALUE, file=open(os.getenv("SEATRIAL_EVENTS", os.devnull), "a"))"""
#: Judged only of a run with GPUs.
_OF_GPUS = (*GPU_CONTRACT, "gpu-busy", "clean-output", "trained-on-gpu")


class Judgement(NamedTuple):
    """A verdict and its reason; ``expected`` and ``measured`` are its two sides in words, if it has two."""

    verdict: Verdict
    evidence: str
    expected: str | None = None
    measured: str | None = None


Judge = Callable[["RunEvidence"], Judgement]


class CriteriaSection(Section):
    title = "Criteria"

    def judge(self, run: RunEvidence) -> list[Criterion]:
        judges: list[tuple[str, str, Judge]] = [
            ("in-time", "Finished within the time limit", _in_time),
            ("model-saved", "Model saved", judge_saved_model),
            ("clean-output", "No CUDA error or warning in the output", _clean_output),
            ("image-size", "Image small enough", _image_size),
        ]
        if run.plan.job.target.kind == "recipe" and run.plan.job.target.value == "export":
            judges.append(("export-agrees", "Exported model agrees", _exported_model))
        metrics = run.plan.job.criteria.metrics.items()
        judges += [(f"metric-{name}", f"Metric {name}", _metric(name, condition)) for name, condition in metrics]
        return [as_criterion(run, *each) for each in judges]

    def blocks(self, receipt: Receipt) -> list[Block]:
        return [Verdicts(receipt.criteria)] if receipt.criteria else []


def as_criterion(run: RunEvidence, id: str, title: str, judge: Judge) -> Criterion:
    """Judge a criterion, unless it does not apply to this kind of run."""
    why = _trains_nothing(run) if id in _OF_TRAINING else None
    if why is None and id in _OF_GPUS and not run.gpus_required:
        fell_back = run.plan.agent.gpu_mode == "auto-cpu"
        why = "no GPU was found, so --gpus auto ran on the CPU" if fell_back else "no GPU was requested"
    judgement = judge(run) if why is None else Judgement("not judged", why)
    return Criterion(id=id, title=title, **judgement._asdict(), asked=_is_asked(run, id, judgement.verdict))


def _is_asked(run: RunEvidence, id: str, verdict: Verdict) -> bool:
    """Return whether the run requested it; --strict requests all that could be judged.

    A question that does not apply, as a GPU's on a CPU run, was not requested, nor was one that is switched off.
    """
    if run.plan.job.strict and verdict != "not judged":
        return True
    if id == "clean-output":
        return False
    key, criteria = _KEYS.get(id), run.plan.job.criteria
    if key is not None and (key not in criteria.model_fields_set or getattr(criteria, key) is None):
        return False
    if id in (*GPU_CONTRACT, "gpu-busy"):
        return run.gpus_required and not (id in _OF_TRAINING and _trains_nothing(run))
    return id not in ("in-time", "image-size", "model-saved", "trained-on-gpu") or verdict != "not judged"


def _trains_nothing(run: RunEvidence) -> str | None:
    """Return why a run has no training to be judged, or None."""
    if run.plan.job.serve is not None:
        return "it serves"
    return "it tries changes" if run.plan.job.tuning is not None else None


def _in_time(run: RunEvidence) -> Judgement:
    limit = run.plan.job.criteria.finished_within_s or run.plan.job.timeout_s
    wall_s = run.measurements.wall_s
    if limit is None:
        return Judgement("not judged", "no time limit was set")
    expected = f"within {format_seconds(limit)}"
    if wall_s is None:
        return Judgement("fail", "the target never ran", expected, None)
    measured = format_seconds(wall_s)
    if run.cause.id not in ("finished", "gpu-not-used"):
        return Judgement("fail", f"it ended after {measured}, unfinished", expected, measured)
    return Judgement(("pass" if wall_s <= limit else "fail"), f"finished in {measured}", expected, measured)


def _clean_output(run: RunEvidence) -> Judgement:
    from seatrial.findings.catalogue import by_id, entries

    if run.evidence.target_started is None:
        return Judgement("not judged", "the target was not started")
    others = {entry.id for entry in entries(_NOT_OF_CUDA)}
    found = ((f, by_id(f.id).of_cuda) for f in run.output.findings if f.severity != "info")
    if trouble := [f for f, of_cuda in found if (f.id not in others if of_cuda is None else of_cuda)]:
        shown = f" ({quote(trouble[0].evidence[0])})" if trouble[0].evidence else ""
        return Judgement("fail", f"{', '.join(f.id for f in trouble)}{shown}")
    return Judgement("pass", "no known CUDA failure in stdout or stderr")


def _image_size(run: RunEvidence) -> Judgement:
    from seatrial.images.build.size import python_mount

    limit, size = run.plan.job.criteria.max_image_bytes, run.image_bytes
    if run.plan.on_the_host:
        return Judgement("not judged", "a local run has no image")
    if limit is None:
        return Judgement("not judged", "disabled in [criteria]")
    if run.evidence.first(HostLaunched) is None:
        return Judgement("not judged", "the container was not started")
    if (mount := python_mount(run.plan)) is not None:
        return Judgement("not judged", f"Python comes from the mount {mount}, not from the image")
    if size is None:
        return Judgement("not judged", "the image's files were not counted")
    verdict: Verdict = "pass" if size <= limit else "fail"
    words = format_bytes(size)
    return Judgement(verdict, f"the image is {words}", f"at most {format_bytes(limit)}", words)


def _metric(name: str, condition: str) -> Judge:
    """Judge a condition on the last value reported or printed under a name; without any it fails."""

    def judge(run: RunEvidence) -> Judgement:
        if holds(condition, 0.0) is None:
            return Judgement("fail", f"the condition {clean(condition)!r} is invalid; write, for example, '>= 0.985'")
        steps = run.evidence.steps
        printed = run.output.printed.complement(steps, own=bool(run.evidence.written))
        found = steps.find(name) or ReportedSteps(series={key: each.points for key, each in printed.items()}).find(name)
        if found is None:
            known = [*steps.series, *printed]
            close = nearest(name, known)
            words = f"no {name} was reported or printed; found: {', '.join(known[:8]) or 'no number'}"
            fix = _REPORT.replace("KEY", name).replace("VALUE", re.sub(r"\W+", "_", name))
            words += f"; did you mean {close}?" if close else f"; fix: {fix}   # the script's own value"
            return Judgement("fail", words, condition, None)
        known_as, points = found
        shown = None if known_as in steps.series else printed[known_as]
        last, place = points[-1][1], f", {shown.stream} line {shown.line}" if shown else ""
        words = (shown and shown.ended_as) or figure(last)
        if shown and shown.unit == "%" and abs(float(condition.strip("<>=! "))) <= 1:
            also = f"{words} % was printed{place}; the condition is of a fraction: write, for example, '>= 98.5'"
            return Judgement("fail", also, condition, words)
        verdict: Verdict = "pass" if holds(condition, float(words if shown and shown.ended_as else last)) else "fail"
        return Judgement(verdict, f"last {known_as}: {words}{place}", condition, words)

    return judge


def _exported_model(run: RunEvidence) -> Judgement:
    """Judge by the export program's own word: it computes both sides in the container."""
    found, allowed = (run.evidence.steps.find(name) for name in ("largest_difference", "tolerance"))
    if found is None or allowed is None:
        return Judgement("fail", "the two models were not compared", "a comparison", None)
    difference, tolerance = found[1][-1][1], allowed[1][-1][1]
    verdict: Verdict = "pass" if difference <= tolerance else "fail"
    words, most = figure(difference), figure(tolerance)
    evidence = f"largest difference {words}, tolerance {most}, as the export program measured"
    return Judgement(verdict, evidence, f"at most {most}", words)


def judge_saved_model(run: RunEvidence) -> Judgement:
    """Require a matching file that is not empty and newer than the target's start.

    The models folder is searched, then the project, HOME, and the files copied out of the container, without
    ``criteria.model`` for the usual suffixes. A job that names neither a model nor a models folder, and leaves nothing,
    is not judged: not every script saves a model.
    """
    if (started := run.files_since) is None:
        return Judgement("not judged", "the target was not started")
    plan, patterns = run.plan, run.plan.job.criteria.model
    if not plan.on_this_host:
        return _saved_in_pods(run, patterns)
    outputs, copied = run.host_folder(CONTAINER_RUN), run.evidence.all(FilesOutside)
    looked = [run.models_folder, plan.job.project, run.host_folder(CONTAINER_HOME)]
    looked += [outputs / Path(str(event.keys.get("folder"))).name for event in copied if outputs is not None]
    folders = [folder for folder in looked if folder is not None]
    found = list(dict.fromkeys(file for folder in folders for file in _candidates(folder, patterns, run.run_dir)))
    new = [(path, size) for path, size, modified in found if modified >= started - CLOCK_SLACK_S]
    if saved := [(path, size) for path, size in new if size]:
        path, size = max(saved, key=lambda file: file[1])
        more = f" and {count(len(saved) - 1, 'more file')}" if len(saved) > 1 else ""
        return Judgement("pass", f"{_shown(path, folders)}, {format_bytes(size)}{more}, written by this run")
    wanted = ", ".join(patterns) or "a new model file"
    if new:
        return Judgement("fail", f"{_shown(new[0][0], folders)} was written but is empty", wanted, "0 B")
    if found and (patterns or run.promises_a_model):
        path = max(found, key=lambda file: file[2])[0]
        return Judgement("fail", f"{_shown(path, folders)} exists, but is older than this run", wanted, "no new file")
    if plan.agent.node_rank is not None:
        return Judgement("not judged", "nothing was written here: rank 0 saves, and it may be on another host")
    if patterns or run.promises_a_model:
        where = f"in {_shown(run.models_folder, folders[1:])} or " if run.models_folder else ""
        return Judgement("fail", f"no matching file was written {where}in the project", wanted, "no new file")
    unnamed = "the job names no models folder (--models) or [criteria] model"
    return Judgement("not judged", f"no model file was written, and {unnamed}")


def _saved_in_pods(run: RunEvidence, patterns: tuple[str, ...]) -> Judgement:
    """Judge by the agents' reports: on a cluster they look at the end of each attempt."""
    if not (reports := run.evidence.all(ModelsSaved)):
        return Judgement("not judged", "no agent reported saved models")
    files = {
        str(file["path"]): int(file["bytes"])
        for event in reports
        for file in event.keys.get("files") or []
        if not patterns or any(fnmatch(str(file["path"]), pattern.removeprefix("/models/")) for pattern in patterns)
    }
    volume = run.plan.job.kubernetes.models
    where = str(volume or "the pod")
    wanted = ", ".join(patterns) or "a new model file"
    if not files and (patterns or volume is not None):
        return Judgement("fail", f"no matching file was written to {where}", wanted, "no new file")
    if not files:
        return Judgement("not judged", "no model file was written, and the job names no volume for models (--models)")
    path, size = max(files.items(), key=lambda file: file[1])
    if not size:
        return Judgement("fail", f"{clean(path)} was written to {where} but is empty", wanted, "0 B")
    more = f" and {count(len(files) - 1, 'more file')}" if len(files) > 1 else ""
    kept = "" if volume is not None else ", which was deleted with it"
    return Judgement("pass", f"{clean(path)}, {format_bytes(size)}{more}, on {where}{kept}, written by this run")


def _candidates(folder: Path, patterns: tuple[str, ...], run_dir: Path) -> Iterator[tuple[Path, int, float]]:
    """Yield (path, bytes, modification time) of files that match or are models: through no link, and capped."""
    from seatrial.system.nofollow import NO_RESULTS, files_below

    if not patterns:
        entries = files_below(folder, most_entries=MAX_FILES, skip=NO_RESULTS)
        named = (Path(entry.path) for entry in entries if entry.name.lower().endswith(MODEL_SUFFIXES))
        names = (path for path in named if not path.is_relative_to(run_dir))
    else:  # glob, unlike Path.glob, takes absolute patterns too
        names = (folder / name for p in patterns for name in glob.iglob(p, root_dir=folder, recursive=True))  # noqa: PTH207
    for path in names:
        status = status_of(path)  # None: gone since
        if status and stat.S_ISREG(status.st_mode):  # a link leads to a file that is not this run's
            yield path, status.st_size, status.st_mtime


def _shown(path: Path, folders: list[Path]) -> str:
    """Return the path with the name of the folder it is in: ``models/mnist.pth``."""
    folder = next((f for f in folders if path.is_relative_to(f)), None)
    return clean(str(Path(folder.name, path.relative_to(folder)) if folder else path))
