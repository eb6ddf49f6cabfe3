"""Findings of one run: missing files, modules and arguments as its plan explains them, and the command to run next."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fakes import a_container, a_plan
from seatrial.findings.finding import Finding
from seatrial.findings.match import match_text
from seatrial.job.gpu_request import GpuRequest
from seatrial.job.model import ImageOptions, Job, Target
from seatrial.job.plan import Mount, Plan
from seatrial.job.tables import Serving, Tuning
from seatrial.receipt.evidence import RunEvidence, gather
from seatrial.receipt.logs import Output
from seatrial.receipt.outcome import ExitCause
from seatrial.receipt.sections.findings import FindingsSection, pasteable
from seatrial.receipt.sections.measured import measure
from tables import cases

REQUIRED = "t.py: error: the following arguments are required: "
NO_CUDA = "AssertionError: Torch not compiled with CUDA enabled"
SAVED_ON_A_GPU = (
    "RuntimeError: Attempting to deserialize object on a CUDA device but torch.cuda.is_available() is False. If you"
)


def found(plan: Plan, printed: str, *, code: int = 1, cause: str = "script-error", **output: Any) -> list[Finding]:
    """Return the findings of a run that ended after it had printed this."""
    evidence = gather([], 0)
    run = RunEvidence(
        plan=plan,
        evidence=evidence,
        output=Output(findings=tuple(match_text(printed)), **output),
        measurements=measure(evidence, [], None),
        state=None,
        engine_findings=(),
        run_dir=plan.job.project,
        image=None,
        cause=ExitCause(id=cause, words="x", target_exit_code=code),
    )
    return FindingsSection().findings(run)


def missing_file(plan: Plan, path: str, **output: Any) -> Finding:
    printed = f"FileNotFoundError: [Errno 2] No such file or directory: '{path}'"
    return found(plan, printed, exception=printed, **output)[-1]


def script_plan(project: Path, value: str = "a b.py", *args: str, gpu_mode: str = "none", **job: Any) -> Plan:
    plan = a_plan(job=Job(project=project, target=Target(kind="script", value=value, args=args), **job))
    return plan.model_copy(update={"agent": plan.agent._replace(gpu_mode=gpu_mode)})


def lab(project: Path, *, backend: str = "docker", module: str = "") -> Plan:
    """``lab/`` with code, and data inside and outside."""
    for name in ("lab/code/fit.py", "lab/code/words.txt", "lab/sets/a/points.csv", "outside/more.csv"):
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).touch()
    target = Target(kind="module", value=module) if module else Target(kind="script", value="code/fit.py")
    plan = a_plan(job=Job(project=project / "lab", target=target), backend=backend)
    return plan if backend == "docker" else plan.model_copy(update={"image": None})


def test_missing_file_of_a_compose_service_is_named_where_its_container_has_it(tmp_path: Path) -> None:
    mounts = ({"source": tmp_path, "target": "/w"},)
    job = Job(project=tmp_path, target=Target(kind="image", value=""))
    plan = a_plan(job=job, container=a_container(workdir="/w/sub", mounts=mounts))
    assert str(missing_file(plan, "data.csv").cause).startswith("/w/sub/data.csv is not there")


def test_a_missing_file_that_a_script_may_make_has_that_script_as_its_fix(tmp_path: Path) -> None:
    warning = "code/fit.py:2 reads sets/x.csv, which the project does not have; make sets.py:4 may create it"
    plan = lab(tmp_path).model_copy(update={"warnings": (warning.replace("make sets", "make_sets"),)})
    made = "seatrial run make_sets.py   # may make it; or put it into sets/ of the project, or pass the script its path"
    assert missing_file(plan, "sets/x.csv").fix == made
    assert str(missing_file(plan, "sets/y.csv").fix).startswith("put it into sets/")


@cases("path", "place", "fix")
def test_missing_file_names_the_option_that_brings_it(tmp_path: Path, path: str, place: Any, fix: str) -> None:
    finding = missing_file(lab(tmp_path, **place), path)
    assert (finding.id, finding.fix, finding.message) == ("file-missing", fix, f"The script found no file {path}")


@pytest.mark.parametrize(
    ("path", "fix"),
    [
        ("code/words.txt/x.csv", ["pass the script its folder, /workspace/code"]),
        ("/workspace/code/words.txt/x.csv", ["pass the script its folder, /workspace/code"]),
        ("/workspace/code/words.txt", []),
        ("/data/points.csv", []),
    ],
)
def test_a_file_of_the_project_that_is_read_as_a_folder_is_named_and_no_other(
    tmp_path: Path, path: str, fix: list[str]
) -> None:
    exception = f"NotADirectoryError: [Errno 20] Not a directory: '{path}'"
    assert [each.fix for each in found(lab(tmp_path), "", exception=exception)] == fix


@pytest.mark.parametrize(
    ("warning", "printed", "given", "arguments"),
    [
        (
            "rejects --epohcs: unknown option; did you mean --epochs?",
            "unrecognized arguments: --epohcs 4",
            "",
            "--epochs",
        ),
        (
            "reads d/x.csv, which is missing, but the project has e f/x.csv: -- --data 'e f'",
            "",
            "--data=d",
            "--data 'e f'",
        ),
        ("reads d/x.csv, which is missing, but the project has e/x.csv: -- --data e", "", "--data d", "--data e"),
        ("reads d/x.csv, which is missing, but the project has e/x.csv: -- --data e", "", "", "--data e"),
    ],
)
def test_what_a_warning_advised_is_the_fix_of_the_failure(
    tmp_path: Path, warning: str, printed: str, given: str, arguments: str
) -> None:
    words = printed.split()[2:] or given.split()
    plan = script_plan(tmp_path, "a.py", *words).model_copy(update={"warnings": (f"a.py:8 {warning}",)})
    finding = found(plan, f"a.py: error: {printed}")[0] if printed else missing_file(plan, "d/x.csv")
    assert finding.fix == f"seatrial run a.py -- {arguments}{' 4' * bool(printed)}"


def test_out_of_memory_before_the_first_sample_names_the_limit_that_was_requested(tmp_path: Path) -> None:
    (finding,) = found(script_plan(tmp_path, memory_bytes=10_000_000), "", cause="host-oom")
    assert finding.cause == "The limit of 10 MB is too small for the data and its workers"
    assert (finding.fix or "").startswith("seatrial run --memory 20MB ")


def test_a_module_that_an_existing_image_lacks_is_not_a_matter_of_requirements(tmp_path: Path) -> None:
    printed = "ModuleNotFoundError: No module named 'numpy'"
    (built,) = found(script_plan(tmp_path), printed)
    (ready,) = found(script_plan(tmp_path, image=ImageOptions(ready="debian:12")), printed)
    assert "requirements.txt" in (built.fix or "") and (ready.cause or "").startswith("debian:12 lacks it")
    assert (ready.fix or "").startswith("leave out --image")


def test_a_file_that_numpy_does_not_find_has_the_advice_of_the_warning(tmp_path: Path) -> None:
    warning = "a.py:8 reads d/x.csv, which is missing, but the project has e/x.csv: -- --data e"
    plan = script_plan(tmp_path, "a.py", "--data", "d").model_copy(update={"warnings": (warning,)})
    [finding] = found(plan, "", exception="FileNotFoundError: d/x.csv not found.")
    assert (finding.id, finding.fix) == ("file-missing", "seatrial run a.py -- --data e")
    assert found(plan, "", exception="FileNotFoundError: https://h/x.csv not found.") == []


@pytest.mark.parametrize(
    ("backend", "fix"), [("local", "sudo apt-get install"), ("docker", "in seatrial.toml: [image]")]
)
def test_missing_program_is_no_file_of_the_project(tmp_path: Path, backend: str, fix: str) -> None:
    finding = missing_file(lab(tmp_path, backend=backend), "blender", raised_in="_execute_child")
    assert finding.id == "program-missing" and "blender" in finding.message and finding.fix.startswith(fix)
    script = missing_file(lab(tmp_path, backend=backend), "./tools/fetch.sh", raised_in="_execute_child")
    assert script.id == "file-missing"


@pytest.mark.parametrize(
    ("exception", "code"),
    [("FileNotFoundError: [Errno 2] No such file or directory: 'x.csv'", 0), ("ValueError: x", 1), (None, 1)],
)
def test_other_ends_have_no_missing_file(tmp_path: Path, exception: str | None, code: int) -> None:
    assert not found(lab(tmp_path), "", code=code, exception=exception)


@cases("printed", "gpu_mode", "id", "fix")
def test_cpu_run_does_not_blame_its_torch(tmp_path: Path, printed: str, gpu_mode: str, id: str, fix: str) -> None:
    [finding] = found(script_plan(tmp_path, gpu_mode=gpu_mode), printed)
    assert finding.id == (id or finding.id) and fix in (finding.fix or "")


@cases("printed", "given", "fix")
def test_each_missing_argument_has_a_value(tmp_path: Path, printed: str, given: tuple[str, ...], fix: str) -> None:
    [finding] = found(script_plan(tmp_path, "a b.py", *given), printed)
    assert (finding.fix or "").startswith(f"seatrial run 'a b.py' {fix}")


def test_arguments_of_a_server_are_not_guessed(tmp_path: Path) -> None:
    serve = Serving(kind="recipe", model="digits", name="digits", typed="digits")
    printed = f"{REQUIRED}--lr"
    [finding] = found(script_plan(tmp_path, serve=serve), printed)
    assert finding.fix == match_text(printed)[0].fix


@pytest.mark.parametrize(
    ("file", "module", "fix"),
    [
        ("mingpt/__init__.py", "mingpt", '[env] PYTHONPATH = "/workspace"'),
        ("code/model/net.py", "net", '[env] PYTHONPATH = "/workspace/code/model"'),
        ("code/lib/__init__.py", "lib.data", '[env] PYTHONPATH = "/workspace/code"'),
        ("other.py", "einops", "add the package that has it to requirements.txt"),
        ("a/b/c/d/e/deep.py", "deep", "add the package that has it to requirements.txt"),
        ("torch/_six.py", "torch._six", "pin torch<1.13"),
    ],
)
@pytest.mark.parametrize("variable", [None, "/workspace/other"])
def test_module_of_the_project_is_put_on_the_path(
    tmp_path: Path, file: str, module: str, fix: str, variable: str | None
) -> None:
    (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / file).touch()
    plan = script_plan(tmp_path, "train.py", env={"PYTHONPATH": variable} if variable else {})
    [finding] = found(plan, f"ModuleNotFoundError: No module named '{module}'")
    assert (fix.replace('= "', f'= "{variable}:') if variable else fix) in (finding.fix or "")


def fixed(plan: Plan, fix: str) -> str | None:
    return pasteable(Finding("some", "error", "m", fix=fix), plan).fix


def test_fix_keeps_the_mounts(tmp_path: Path) -> None:
    plan = script_plan(tmp_path, "a.py")
    job = plan.job.model_copy(update={"mounts": (Mount(source=Path("out"), target="/o", read_only=True),)})
    fix = fixed(plan.model_copy(update={"job": job}), "seatrial run --writable …")
    assert fix == "seatrial run --writable a.py --mount out:/o:ro"


@cases("typed", "fix", "command")
def test_fix_repeats_the_typed_verb(tmp_path: Path, typed: str, fix: str, command: str) -> None:
    plan = a_plan(job=Job(project=tmp_path, target=Target(kind="script", value="net.py", typed=typed)))
    made = fixed(plan, fix) or ""
    assert command in made and "run tune" not in made and made.count("--on") == typed.count("--on")


@cases("fix", "command")
def test_fix_repeats_place_and_gpus_but_no_variables(tmp_path: Path, fix: str, command: str) -> None:
    options = {"backend": "podman", "gpus": GpuRequest.parse("device=1"), "env": {"TOKEN": "private"}}
    assert fixed(script_plan(tmp_path, "net.py", "--lr", "1", **options), fix) == command


@pytest.mark.parametrize(
    ("fix", "left"),
    [
        ("seatrial run --memory 32g …   # or fewer workers", "fewer workers"),
        ("seatrial run --network host …   # if it runs on this machine", None),
        ("seatrial run --env A=1 …   # or --ulimit", "seatrial run --env A=1 net.py   # or --ulimit"),
    ],
)
def test_fix_of_a_process_has_no_option_of_a_container(tmp_path: Path, fix: str, left: str | None) -> None:
    assert fixed(script_plan(tmp_path, "net.py").model_copy(update={"image": None}), fix) == left


def test_missing_argument_of_a_tune_is_added_to_the_tune(tmp_path: Path) -> None:
    [finding] = found(script_plan(tmp_path, "net.py", backend="local", tuning=Tuning()), f"{REQUIRED}--lr")
    assert (finding.fix or "").startswith("seatrial tune net.py --on local -- --lr VALUE")


@pytest.mark.parametrize(
    ("fix", "words"),
    [
        (
            "seatrial run --memory 32g …   # or fewer workers",
            "the equivalent of --memory 32g; then: seatrial up   # or",
        ),
        ("seatrial run … --mount FOLDER:/d", "the equivalent of --mount FOLDER:/d; then: seatrial up"),
    ],
)
def test_the_fix_of_a_compose_service_names_its_file(tmp_path: Path, fix: str, words: str) -> None:
    target = Target(kind="image", value="", args=("python", "a.py"), command="python a.py")
    plan = a_plan(job=Job(project=tmp_path, name="fit", target=target))
    found = pasteable(Finding("some", "error", "m", fix=fix), plan).fix
    assert found is not None and found.startswith(f"in the Compose file, service fit: {words}")
    other = pasteable(Finding("some", "error", "m", fix="seatrial run … -- --help"), plan).fix
    assert other is not None and "Compose" not in other
    long = f"seatrial run --mount DIR:/a{'--a' * 200} …\n"  # read in no time, though it does not match
    assert pasteable(Finding("some", "error", "m", fix=long), plan).fix is not None
