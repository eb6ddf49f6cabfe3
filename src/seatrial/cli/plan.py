"""``seatrial plan``, ``build`` and ``init``: what a run would be, its image, and the file that describes it."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from seatrial.cli import options as cli
from seatrial.cli import terminal
from seatrial.errors import EXIT_DONE, EXIT_TARGET_FAILED, UsageError
from seatrial.findings.finding import FIX
from seatrial.system.host import Host

if TYPE_CHECKING:
    from rich.console import Console

    from seatrial.backends.kubernetes.pod import Manifest
    from seatrial.images.lint.dockerfile import Remark
    from seatrial.job.plan import Plan
    from seatrial.runs.build import Built

_ROWS, _LEAST = 14, 500_001  # fewer bytes would be 0 MB


@cli.command(examples=("seatrial plan train.py --gpus 2", "seatrial plan train.py --target h100 --as compose"))
@cli.takes_job
@cli.WORDS
@cli.option("as_json", "--json", is_flag=True, help="Print the whole plan as JSON.")
@cli.option("form", "--manifests", flag_value="manifests", help="As --as manifests: complete, for kubectl.")
@cli.option(
    "form",
    "--as",
    metavar="FORM",
    type=click.Choice(("docker", "compose", "manifests")),
    help="Print it as docker run or a compose file, without seatrial; or as manifests: docker, compose, manifests.",
)
@cli.option(
    "--verbose", is_flag=True, help="Also the choices that are as usual, and the engine's command or the manifests."
)
def plan(words: tuple[str, ...], as_json: bool, form: str | None, verbose: bool, flags: dict[str, Any]) -> int:
    """Show what run would do and why; changes nothing."""
    with cli.importing():
        from seatrial.cli.job import read_job
        from seatrial.planning import launcher, secrets
        from seatrial.runs import launch

    if as_json and form:
        raise UsageError("--json and --as exclude each other", run="seatrial plan --help   # choose one of them")
    host = cli.this_host()
    job = launcher.join(read_job(words, flags), None, host)
    secrets.check_secrets(job, host)
    made = launch.plan_only(job, host)
    if form in ("docker", "compose"):
        from seatrial.planning.portable import as_compose, as_docker

        print({"docker": as_docker, "compose": as_compose}[form](made), end="")
        return EXIT_DONE
    if made.on_this_host and form:
        raise UsageError("Only a Kubernetes run has manifests", run="seatrial plan … --on k8s")
    rendered = launch.manifests(made, host) if not made.on_this_host else []
    if form:
        from seatrial.backends.kubernetes.manifests import as_yaml

        print(as_yaml(rendered), end="")
    else:
        _show(made, rendered, [ask.words for ask in job.asks], host, as_json=as_json, verbose=verbose)
    return EXIT_DONE


def _show(made: Plan, rendered: list[Manifest], asks: list[str], host: Host, *, as_json: bool, verbose: bool) -> None:
    """Print the plan as people read it, or as JSON."""
    with cli.importing():
        from seatrial.backends import table
        from seatrial.cli.screen import Screen  # with rich, which YAML and Compose files do without

    screen = Screen(json=as_json, whole=verbose)
    if made.on_this_host:
        backend = table.backend(made.backend, host)
        built = bool(made.image and made.image.build and backend.images and backend.images.image(made.image.tag))
        screen.plan(made, backend.compile(made), asks, built=built)
        return
    screen.plan(made, [], asks)
    if not as_json:
        screen.manifests(rendered)


@cli.command(examples=("seatrial build train.py --explain", "seatrial build --check Dockerfile"))
@cli.takes_job
@cli.WORDS
@cli.option("--explain", is_flag=True, help="Show size by package and kind, and what slimming saves.")
@cli.option("--lock", is_flag=True, help="Write every version to seatrial.lock.")
@cli.option(
    "--check", metavar="DOCKERFILE", type=click.Path(path_type=Path), help="Check your own Dockerfile; builds nothing."
)
@cli.AS_JSON
@cli.option("--verbose", is_flag=True, help="Print every line of the build.")
def build(
    words: tuple[str, ...],
    explain: bool,
    lock: bool,
    check: Path | None,
    as_json: bool,
    verbose: bool,
    flags: dict[str, Any],
) -> int:
    """Build the image that run would use, verify it, and report its contents."""
    with cli.importing():
        from seatrial.cli.job import read_allowed_job
        from seatrial.cli.screen import Screen
        from seatrial.images.lint.check import check_dockerfile
        from seatrial.runs.build import build_image
        from seatrial.runs.launch import plan_only

    screen = Screen(json=as_json, whole=verbose)
    if check is not None:
        findings = check_dockerfile(check)
        print_findings(check, findings, as_json=as_json)
        return EXIT_TARGET_FAILED if any(each.severity == "error" for each in findings) else EXIT_DONE
    job = read_allowed_job(words, flags, screen, building=True)
    with screen.working("reading the image"), screen.building() as progress:
        planned = plan_only(job, cli.this_host(), builds=True)
        built = build_image(planned, cli.this_host(), progress, explain=explain, lock=lock)
    print_built(built, as_json=as_json)
    return EXIT_DONE


@cli.command(
    examples=(
        "seatrial init",
        "seatrial init train.py",
        "seatrial init digit-reader",
        "seatrial init --devcontainer --target h100",
    )
)
@cli.argument("script", required=False, metavar="[SCRIPT|NAME]")
@cli.project_option("The project folder; default: here.")
@cli.option("--show", is_flag=True, help="Print the file; write nothing.")
@cli.option("--devcontainer", is_flag=True, help="Write .devcontainer: the project's image for VS Code, Codespaces.")
@cli.option("--target", metavar="MACHINE", help="With --devcontainer: build for h100; default: this machine.")
@cli.option("--schema", is_flag=True, help="Print the JSON Schema of seatrial.toml: every key.")
def init(
    script: str | None, project: Path | None, show: bool, devcontainer: bool, target: str | None, schema: bool
) -> int:
    """Write seatrial.toml from what was found in the project, with the reasons.

    SCRIPT is the training script, detected by default. A NAME without .py makes a new project in a folder of
    that name: a script that trains, a data loader with tests, seatrial.toml.
    """
    if schema:
        from seatrial.job.model import json_schema

        print(json.dumps(json_schema(), indent=1))
        return EXIT_DONE
    from seatrial.cli.screen import Screen
    from seatrial.planning.new_project import FILE, project_file, write_project_file
    from seatrial.system.project_files import real_project

    folder = real_project(project or Path.cwd())
    if script is not None and not devcontainer and not script.endswith(".py") and not (folder / script).is_file():
        from seatrial.planning.new_project import new_project
        from seatrial.system.text import as_typed

        made, screen = Path(os.path.normpath(folder / script if project else Path(script))), Screen()
        screen.note(f"made {made} with {', '.join(new_project(made))}")
        cpu = "seatrial run --gpus none   # or without --gpus none, where there is a GPU"
        screen.note(f"now: cd {as_typed(made)} && {cpu}")
        return EXIT_DONE
    if devcontainer:
        return _devcontainer(folder, script, target, show=show)
    if show:
        print(project_file(folder, script), end="")
        return EXIT_DONE
    write_project_file(folder, script)
    Screen().note(f"{FILE} written; seatrial plan shows the resulting plan")
    return EXIT_DONE


def _devcontainer(folder: Path, script: str | None, machine: str | None, *, show: bool) -> int:
    from seatrial.cli.job import read_job
    from seatrial.cli.screen import Screen
    from seatrial.job.loading import project_table
    from seatrial.planning.new_project import find_script
    from seatrial.planning.portable import FOLDER, devcontainer, write_devcontainer
    from seatrial.runs.launch import plan_only

    flags: dict[str, Any] = {"project": folder}
    if machine is not None:
        flags["image"] = {"target": machine}
    named = {"target", "module"} & project_table(folder).keys()
    words = [script] if script else [] if named else [find_script(folder)]
    plan = plan_only(read_job(words, flags, arguments=[]), cli.this_host())
    if show:
        print(json.dumps(devcontainer(plan), indent=2))
        return EXIT_DONE
    written = write_devcontainer(plan)
    screen = Screen()
    screen.note(f"{FOLDER} written: {', '.join(written)}")
    if machine is None and plan.job.gpus.kind == "auto" and not plan.gpus:
        screen.note("Built for CPU because this machine has no GPU; for a GPU machine, add --target h100")
    screen.note("open the folder in VS Code and choose Reopen in Container, or: devcontainer up --workspace-folder .")
    return EXIT_DONE


def print_built(built: Built, *, as_json: bool) -> None:
    """Print the image, its verification and contents."""
    image = built.plan.image
    assert image is not None
    if as_json:
        print(json.dumps(_as_data(built), indent=1))
        return
    from rich.text import Text

    out = terminal.console()
    size = ""
    if built.size_bytes is not None:
        above = f", {_size(built.size_bytes - built.base_bytes)} above its base" if built.base_bytes else ""
        size = f": {_size(built.size_bytes)}{above}"
    how = "already existed" if built.result.cached else f"built in {built.result.seconds:.0f} s"
    out.print(Text(image.tag, style="bold").append(f" {how}{size}", style="not bold"), soft_wrap=True)
    verification = built.verification
    versions = ", ".join(f"{name} {version}" for name, version in verification.versions.items())
    imports = ", ".join(f"{name} in {seconds:.1f} s" for name, seconds in verification.import_s.items())
    untested = not verification.on_gpu and image.stack.get("build", "cpu") != "cpu"
    lines = [
        f"Python {verification.python}" + (f", {versions}" if versions else ""),
        f"imports {imports}" * bool(imports),
        f"code for {' '.join(verification.architectures)}" * bool(verification.architectures),
        *(f"{device} ran kernels in {', '.join(formats)}" for device, formats in verification.kernels.items()),
        "no kernel was tested on a GPU: no target GPU is present" * untested,
    ]
    if built.compressed_bytes is not None:
        lines.append(f"{_size(built.compressed_bytes)} in compressed layers, base included")
    for line in filter(None, lines):
        out.print(f"  {line}", style="dim")
    if built.contents:
        _print_contents(built, out)


def _print_contents(built: Built, out: Console) -> None:
    from rich.table import Table
    from rich.text import Text

    contents = built.contents
    for title, key in (("Packages", "packages"), ("Kinds of files", "kinds"), ("Device code", "device_code")):
        rows = sorted(contents[key].items(), key=lambda row: -row[1])
        if not (shown := [row for row in rows[:_ROWS] if row[1] >= _LEAST]):
            continue
        table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
        table.add_column(no_wrap=True)
        table.add_column(justify="right", no_wrap=True)
        table.add_column(no_wrap=True)
        for name, size in shown:
            table.add_row(name, _size(size), Text("━" * max(1, round(30 * size / shown[0][1])), style="cyan"))
        if (rest := sum(size for _, size in rows[len(shown) :])) >= _LEAST:
            table.add_row(f"{len(rows) - len(shown)} more", _size(rest), "")
        out.print(f"\n{title}", style="bold")
        out.print(table)
    _print_copies(contents["twice"], out)
    saved, total = contents["saved"], 0
    out.print("\nSlimming would save" + " nothing" * (max(saved.values()) < _LEAST), style="bold")
    for level in ("files", "unused", "arch"):
        total += saved[level]
        if saved[level] >= _LEAST:
            out.print(f"  --slim {level:<7} {_size(total):>9}" + ("  at most" if level != "files" else ""))


def _print_copies(twice: dict[str, dict[str, int]], out: Console) -> None:
    """Print each library that is installed more than once with its places; the largest copy is not waste."""
    from rich.text import Text

    if not twice:
        return
    spare = sum(sum(copies.values()) - max(copies.values()) for copies in twice.values())
    out.print(Text("\nCUDA is installed twice", style="bold").append(f": {_size(spare)} wasted", style="not bold"))
    for name, copies in sorted(twice.items(), key=lambda row: -sum(row[1].values()))[:_ROWS]:
        out.print(f"  lib{name}", *(f"    {_size(size):>7}  {path}" for path, size in copies.items()), sep="\n")


def print_findings(path: Path, findings: Sequence[Remark], *, as_json: bool) -> None:
    """Print each remark with its line and its fix."""
    if as_json:
        print(json.dumps([asdict(each) for each in findings], indent=1))
        return
    from rich.text import Text

    out = terminal.console(soft_wrap=True)
    for each in findings:
        colour = {"error": "red", "warning": "yellow"}.get(each.severity, "cyan")
        place = f"{path}:{each.line}: "
        line = Text(terminal.at_words(f"{place}{each.severity} {each.message}", out))
        line.stylize(f"bold {colour}", len(place), len(place) + len(each.severity))
        out.print(line, Text(terminal.at_comment(f"    {FIX}: {each.fix}", out), style="dim"), sep="\n")
    out.print(f"{path}: {len(findings) or 'no'} remark{'s' * (len(findings) != 1)}")


def _as_data(built: Built) -> dict[str, object]:
    image, verification = built.plan.image, built.verification
    assert image is not None
    return {
        "tag": image.tag,
        "image_id": built.result.image_id,
        "size_bytes": built.size_bytes,
        "base_bytes": built.base_bytes,
        "compressed_bytes": built.compressed_bytes,
        "seconds": round(built.result.seconds, 1),
        "cached": built.result.cached,
        "stack": image.stack,
        "architectures": list(image.architectures),
        "verification": {name: value for name, value in asdict(verification).items() if name != "wrong"},
        **({"contents": built.contents} if built.contents else {}),
    }


def _size(size: int) -> str:
    return f"{size / 1e9:.2f} GB" if size >= 1e9 else f"{size / 1e6:.0f} MB"
