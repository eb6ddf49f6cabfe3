"""Findings: known failures of this run, as its own plan explains them, with the command to run next."""

from __future__ import annotations

import os
import posixpath
import re
import shlex
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from seatrial.events import FilesOutside, is_result
from seatrial.findings.catalogue import by_id, entry_of, mount_of
from seatrial.findings.finding import Finding, with_own_words
from seatrial.findings.match import match_text
from seatrial.job.flags import FLAGS
from seatrial.job.in_container import CONTAINER_DATA, CONTAINER_HOME, CONTAINER_RUN
from seatrial.job.units import format_bytes
from seatrial.receipt.section import Block, Log, Notices, Section
from seatrial.receipt.sections.criteria import CLOCK_SLACK_S
from seatrial.receipt.sections.quiet_failure import did_nothing, failed_quietly, went_to_background
from seatrial.receipt.values import clean, count, items, mapping, whole
from seatrial.system.project_files import shown_path
from seatrial.system.text import as_typed

if TYPE_CHECKING:
    from seatrial.job.plan import Plan
    from seatrial.receipt.evidence import RunEvidence
    from seatrial.receipt.model import Receipt

#: An argument as argparse or Click names it. argparse lists the choices: ``{train,eval}``.
_ARGUMENT = re.compile(r"(?:\{[^}]*\}|[^,])+")
_CHOICES = re.compile(r"\{([^,{}]+)[^{}]*\}")

_MODULE = re.compile(r"No module named '([\w.]+)'")
#: Warnings of a plan about an argument that the script does not have, or whose file is missing, with the right one.
_MEANT = re.compile(r" rejects (--[\w-]+): unknown option; did you mean (--[\w-]+)\?$")
_LIES_AT = re.compile(r" reads (\S+), which is missing, but the project has .+: -- (--?[\w-]+) (.+)$")

#: As Python prints it, and as NumPy does.
_NOT_FOUND = re.compile(
    r"(?:FileNotFound|NotADirectory)Error: (?:\[Errno 20?\] No(?: such file or|t a) directory: '([^'\x00]+)'"
    r"|([^\s:]*[./][^\s:\x00]*) not found\.$)"
)
#: The function of Python's subprocess that starts a program.
_STARTS_A_PROGRAM = "_execute_child"
#: Longest path (Linux's PATH_MAX).
_MAX_PATH = 4096
#: Findings about the host's memory that have advice of their own.
_OUT_OF_MEMORY = {"host-out-of-memory", "k8s-oom-killed"}
#: Files that a sentence names.
_MOST_NAMED = 5

_RUN = re.compile(r"\b(seatrial runs \w+) RUN\b")
#: ``--gpus 1 ``, which follows the verb of a run that was typed as another: ``tune``.
_OPTIONS = r"((?:-\S+ (?:[^-\s]\S* )??)*)"
#: Failures of a network on its inputs. Export advises itself: what mends a script would not fit the saved weights.
_OF_A_MODEL = {"linear-features", "shapes-do-not-fit"}


class FindingsSection(Section):
    title = "Findings"

    def findings(self, run: RunEvidence) -> list[Finding]:
        """Return the findings of the agent, the engine, the output and the logs."""
        found = [*run.evidence.findings, *run.engine_findings]
        exports = (run.plan.job.target.kind, run.plan.job.target.value) == ("recipe", "export")
        found += [_of_this_run(each, run) for each in run.output.findings if not exports or each.id not in _OF_A_MODEL]
        if run.cause.id == "agent-lost":
            found += match_text(run.cause.words)
        if (memory := run.measurements.gpu_memory) and memory.failed is not None:
            found.append(by_id("gpu-memory-not-held").finding([memory.failed]))
        looks = (_missing_file, _lost_files, _out_of_memory, did_nothing, failed_quietly, went_to_background)
        found += [finding for look in looks if (finding := look(run))]
        return [_as_warned(finding, run.plan) for finding in found]

    def blocks(self, receipt: Receipt) -> list[Block]:
        return [Notices(receipt.shown_findings)] if receipt.findings else []


class WhyItFailed(Section):
    title = "Why it failed"
    embedded = False

    def blocks(self, receipt: Receipt) -> list[Block]:
        if (end := receipt.ending) is None:
            return []
        stdout = Log("Last lines of stdout", end.stdout)
        if not end.traceback:
            return [Log("Last lines of stderr", end.stderr), stdout]
        folded = Log(f"Last {len(end.stderr)} lines of stderr", end.stderr, folded=True)
        return [Log("Traceback", end.traceback), stdout, folded]


def without_expected(found: list[Finding], run: RunEvidence) -> list[Finding]:
    """Leave out expected findings of a run that finished: a CPU run without a GPU, any run without a terminal."""
    if run.cause.id != "finished":
        return found
    lacks = ("terminal",) if run.gpus_required else ("terminal", "gpu")
    return [each for each in found if (entry := entry_of(each)) is None or entry.expected_without not in lacks]


def _of_this_run(finding: Finding, run: RunEvidence) -> Finding:
    """Return a more specific finding if the plan explains it, else the finding itself."""
    if finding.id in ("torch-cpu-only", "no-cuda-device") and run.plan.agent.gpu_mode != "required":
        return by_id("gpu-taken-for-granted").finding(finding.evidence)
    if finding.id == "arguments-missing" and run.plan.job.serve is None:
        return _with_each_argument(finding, run.plan)
    if run.output.hides and finding.id in ("torch-lacks-name", "name-of-another-release"):
        values = {"file": run.output.hides, "package": run.output.hides.removesuffix(".py")}
        return by_id("package-hidden").finding(finding.evidence, values=values)
    if finding.id in ("python-module-missing", "python-part-missing"):
        return _module_of_project(finding, run)
    return finding


def _as_warned(finding: Finding, plan: Plan) -> Finding:
    """Return the finding with the command that the plan's warnings advise for it, or itself."""
    words, arguments = _run_again(plan)
    before = [*arguments]
    for warning in plan.warnings:
        if (corrected := _MEANT.search(warning)) and finding.id == "arguments-unknown":
            arguments = [re.sub(rf"^{corrected[1]}(?==|$)", corrected[2], each) for each in arguments]
        elif (lies := _LIES_AT.search(warning)) and finding.id == "file-missing" and lies[1] in finding.message:
            option, value = lies[2], shlex.split(lies[3])
            given = next((each for each in arguments if each.partition("=")[0] == option), "")
            at = arguments.index(given) if given else len(arguments)
            arguments[at : at + 1 + (given == option)] = [*([] if arguments else ["--"]), option, *value]
    command = shlex.join(["seatrial", *([] if plan.job.tuning else ["run"]), *words, *arguments])
    return finding if arguments == before else _with_fix(finding, command)


def _with_each_argument(finding: Finding, plan: Plan) -> Finding:
    """Add a value for each missing argument to the command: ``a, -l/--lr`` are two; of several choices, the first."""
    given: list[str] = []
    for named in _ARGUMENT.findall(finding.message.partition("not given ")[2]):
        choices, name = _CHOICES.fullmatch(named.strip()), named.strip("'[] ").split("/")[-1].strip("' ")
        if choices is None and (not name or re.search(r"[\s{}]", name)):
            return finding
        given += [choices[1]] if choices else [name, "VALUE"] if name.startswith("-") else [name.upper()]
    if not given:
        return finding
    words, arguments = _run_again(plan)
    verb = [] if plan.job.tuning else ["run"]  # tune is in the line
    command = shlex.join(["seatrial", *verb, *words, *(arguments or ["--"]), *given])
    return _with_fix(finding, f"{command}   # the script's --help lists them")


def _module_of_project(finding: Finding, run: RunEvidence) -> Finding:
    """Return where a missing module lies in the project, as the target sees it; it is not a package to install."""
    from seatrial.job.reading.modules import folder_of

    named = next((match for line in finding.evidence if (match := _MODULE.search(line))), None)
    root = named[1].partition(".")[0] if named else ""
    if named and any(f" imports {root}: not in the project" in each for each in run.plan.warnings):
        return by_id("project-module-absent").finding(finding.evidence, values={"module": named[1]})
    folder = folder_of(root, run.plan.job.project) if named else None
    if (ready := run.plan.job.image.ready) and folder is None and run.plan.job.target.kind != "image":
        cause = f"{ready} lacks it, and nothing is installed into an image that --image names"
        fix = "leave out --image: the image that is built has the project's packages"
        return Finding(finding.id, finding.severity, finding.message, cause, fix, finding.evidence)
    if named is None or folder is None:
        return finding
    seen = run.project if str(folder) == "." else f"{run.project}/{folder}"
    have = run.plan.job.env.get("PYTHONPATH")
    values = {"module": named[1], "folder": seen}
    line = f'in seatrial.toml: [env] PYTHONPATH = "{have}:{seen}"' if have else None
    return by_id("project-module-not-on-path").finding(finding.evidence, values=values, fix=line)


def _missing_file(run: RunEvidence) -> Finding | None:
    """Return the finding for a target that ended with FileNotFoundError: where it looked, and where the file lies."""
    missing = _NOT_FOUND.search(run.output.exception or "") if run.cause.target_exit_code else None
    path = (missing[1] or missing[2]) if missing else ""
    if missing is None or len(path) > _MAX_PATH:
        return None
    if any(f"'{path}'" in line for finding in run.output.findings for line in finding.evidence):
        return None
    if run.output.raised_in == _STARTS_A_PROGRAM and "/" not in path:
        install = f"sudo apt-get install {shlex.quote(path)}   # or the package that has it"
        fix = install if run.plan.on_the_host else None
        evidence = [f"subprocess found no program {path}"]
        return by_id("program-missing").finding(evidence, values={"program": path}, fix=fix)
    root, job = os.path.normpath(run.project), run.plan.job
    start = posixpath.join(root, ((job.target.kind == "image" and run.plan.container) or job).workdir or "")
    target = posixpath.normpath(posixpath.join(start, path))
    cause, fix = _place_of_file(path, target, start.rstrip("/"), root, run.plan)
    if missing[0].startswith("NotA"):  # a file of the project is read as a folder; of one elsewhere nothing is known
        parents = [each for each in PurePosixPath(target).parents if each.is_relative_to(root)]
        file = next((each for each in parents if (run.plan.job.project / each.relative_to(root)).is_file()), None)
        if file is None:
            return None
        cause, fix = f"{file} is a file", f"pass the script its folder, {file.parent}"
    values = {"path": path, "mount": mount_of("FOLDER", posixpath.dirname(target))}
    return by_id("file-missing").finding([missing[0]], values=values, cause=cause, fix=fix)


def _place_of_file(path: str, target: str, start: str, root: str, plan: Plan) -> tuple[str, str | None]:
    """Return the cause and, if it is known, the fix for a file that is missing at ``target``."""
    if "\\" in path:
        return "Only Windows separates folders with \\; here it is part of a name", "use / in the script's paths"
    folder = None if path.startswith("/") else _started_from(path, plan)
    if folder is not None:
        workdir = folder if plan.on_the_host else f"{root}/{folder}"
        cause = f"The target starts in {start}; the file is there when it starts in {folder}/"
        return cause, f"seatrial run … --workdir {shlex.quote(workdir)}"
    if PurePosixPath(target).is_relative_to(root) or plan.on_the_host:
        lacks = f"{posixpath.dirname(path) or '.'}/ of the project"
        if path.startswith("/"):
            folder = posixpath.dirname(target)
            lacks = f"{folder}/" if plan.on_the_host else f"{posixpath.relpath(folder, root)}/ of the project"
        cause = f"{target} is not there: it is data to download or make first, or a path to change"
        makers = (re.search(rf" {re.escape(path)}, .*; (\S+):\d+ may create it", each) for each in plan.warnings)
        makes = next((f"seatrial run {shlex.quote(each[1])}   # may make it; or " for each in makers if each), "")
        return cause, f"{makes}put it into {lacks}, or pass the script its path"
    lies = _lies_at(path, target, Path(os.path.normpath(plan.job.project)))
    cause = f"In the container that is {target}, outside of the project's folder {root}"
    data = plan.job.data
    if data is not None and PurePosixPath(target).is_relative_to(CONTAINER_DATA):
        source = as_typed(data.source)
        return f"--data {source} is {CONTAINER_DATA}, and has no such file", f"ls {source}"
    return cause, None if lies is None else f"seatrial run … {mount_of(*map(shlex.quote, lies))}"


def _started_from(path: str, plan: Plan) -> str | None:
    """Return the script's own folder if the path is right from there; None if the target starts there already."""
    from seatrial.job.reading.modules import is_file

    target = plan.job.target
    if plan.job.workdir or target.kind != "script":
        return None
    folder = posixpath.dirname(target.value)
    there = posixpath.normpath(posixpath.join(folder, path))
    if not folder or there.startswith("../"):
        return None
    return folder if is_file(plan.job.project / there) else None


def _lies_at(path: str, target: str, project: Path) -> tuple[str, str] | None:
    """Return (source, target) of a mount of the file: by its last folders in the project, or as seen from there."""
    from seatrial.job.reading.modules import is_file

    parts = PurePosixPath(target).parts[1:]
    for at in range(len(parts) - 1):
        if is_file(project.joinpath(*parts[at:])):
            return f"./{parts[at]}", f"/{posixpath.join(*parts[: at + 1])}"
    relative = Path(os.path.normpath(project / path))
    if not is_file(relative):
        return None
    return os.path.relpath(relative.parent, project), posixpath.dirname(target)


def _out_of_memory(run: RunEvidence) -> Finding | None:
    """Return the finding for a target that the kernel's OOM killer ended, with the limit to run it with next."""
    others = (*run.evidence.findings, *run.output.findings)
    if run.cause.id != "host-oom" or any(finding.id in _OUT_OF_MEMORY for finding in others):
        return None
    limit = run.measurements.memory_limit_bytes or run.plan.job.memory_bytes  # killed before the first sample
    cause = "The machine's memory is too small for the data and its workers"
    command = "free -h   # then fewer"
    if limit and not run.plan.on_the_host:
        cause = f"The limit of {format_bytes(limit)} is too small for the data and its workers"
        command = f"seatrial run --memory {format_bytes(2 * limit).replace(' ', '')} …   # or fewer"
    fix = f"{command} DataLoader workers, or read the data in chunks"
    return by_id("host-out-of-memory").finding([run.cause.words], cause=cause, fix=fix)


def files_outside(run: RunEvidence) -> list[str]:
    """Return a sentence each for results that were copied out of the container, and for those in the run's HOME."""
    from seatrial.system.nofollow import NO_RESULTS, files_below

    sentences = []
    outputs, home, started = run.host_folder(CONTAINER_RUN), run.host_folder(CONTAINER_HOME), run.files_since
    project = run.plan.job.project
    for event in run.evidence.all(FilesOutside):
        copied, number = items(event.keys.get("copied")), whole(event.keys.get("copied_files")) or 0
        if copied and number and outputs is not None:
            where = shown_path(outputs / clean(str(event.keys.get("folder"))), project)
            names = _named(copied, number)
            sentences.append(f"{_written(number)} outside of the kept folders and copied to {where}: {names}")
    if home is not None and started is not None:
        found = []
        for entry in files_below(home, skip=NO_RESULTS):
            status = entry.stat(follow_symlinks=False)
            if is_result(entry.name) and status.st_size and status.st_mtime >= started - CLOCK_SLACK_S:
                found.append({"path": str(Path(entry.path).relative_to(home)), "bytes": status.st_size})
        if found:
            names, link = _named(found, len(found)), home if outputs is None else outputs.with_name("home")
            sentences.append(f"{_written(len(found))} to HOME, which is {shown_path(link, project)}: {names}")
    return sentences


def _lost_files(run: RunEvidence) -> Finding | None:
    """Return the finding of results that ended with the container, too many or too large to be copied out of it."""
    for event in reversed(run.evidence.all(FilesOutside)):
        if number := whole(event.keys.get("lost_files")) or 0:
            names = _named(items(event.keys.get("lost")), number)
            return by_id("files-lost").finding([f"{count(number, 'file')}: {names}"])
    return None


def _written(number: int) -> str:
    return f"{count(number, 'file')} {'was' if number == 1 else 'were'} written"


def _named(files: list[Any], number: int) -> str:
    entries = [mapping(each) for each in files[:_MOST_NAMED]]
    named = [f"{clean(str(each.get('path')))} ({format_bytes(whole(each.get('bytes')) or 0)})" for each in entries]
    more = number - len(named)
    return ", ".join(named) + (f" and {more} more" if more > 0 else "")


def pasteable(finding: Finding, plan: Plan) -> Finding:
    """Return the finding with a fix to paste: its own target and ID in it, and for a process no container's options."""
    if finding.fix is None or "seatrial " not in finding.fix:
        return finding
    command, _, comment = finding.fix.partition("   # ")
    if plan.on_the_host and {flag.name for flag in FLAGS if flag.needs} & {*command.split()}:
        return _with_fix(finding, comment.removeprefix("or ") if comment.startswith("or ") else None)
    words, arguments = _run_again(plan)
    given = re.fullmatch(r"seatrial run (?:… )?((?:--\S+(?: [^-\s…#]\S*)?(?: |$))+)…?(.*)", finding.fix)
    if plan.job.target.command and given:  # a service has its options in the Compose file
        as_of_run = f"the equivalent of {given[1].strip()}; then: seatrial up"
        return _with_fix(finding, f"in the Compose file, service {plan.job.name}: {as_of_run}{given[2]}")
    leads_back = plan.job.tuning and "seatrial tune " in comment
    advice = command if leads_back else finding.fix
    fix = with_own_words(advice, words[plan.job.tuning is not None :], arguments)  # tune is in the line
    if plan.job.serve is not None or plan.job.target.typed:
        fix = re.sub(rf"\bseatrial run {_OPTIONS}{re.escape(words[0])} ", rf"seatrial {words[0]} \1", fix)
    if finding.id == "disk-full" and plan.job.models:
        fix = fix.replace("df -h .", f"df -h . {as_typed(plan.job.models.source)}")
    return _with_fix(finding, _RUN.sub(lambda call: f"{call[1]} {plan.run_id}", fix))


def _with_fix(finding: Finding, fix: str | None) -> Finding:
    return Finding(finding.id, finding.severity, finding.message, finding.cause, fix, finding.evidence)


def _run_again(plan: Plan) -> tuple[list[str], list[str]]:
    """Return the words behind ``seatrial run`` before ``--``, and ``--`` with the rest, to run it again.

    Place and GPUs are as they were requested. ``--env`` is left out: a value may be private.
    """
    words = shlex.split(plan.target_line)
    end = words.index("--") if "--" in words else len(words)
    before, job = words[:end], plan.job
    if job.serve is None and not job.target.typed:  # a typed line has its options
        before += ["--on", job.backend] if job.backend != "auto" else []
        before += ["--gpus", str(job.gpus)] if job.gpus.kind != "auto" else []
        before += [word for each in job.mounts for word in ("--mount", str(each))]
    return before, words[end:]
