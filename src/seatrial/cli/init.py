"""``seatrial init``: write seatrial.toml with what was found in the project, and why; or a development container."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated, Any

import typer

from seatrial.cli.screens.run import Screen
from seatrial.errors import EXIT_DONE
from seatrial.planning.new_project import FILE, project_file, write_project_file

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command(context_settings={"help_option_names": ["-h", "--help"]})
def init(
    script: Annotated[
        str | None, typer.Argument(metavar="SCRIPT", help="The training script; detected by default.")
    ] = None,
    project: Annotated[Path | None, typer.Option("--project", "-C", help="The project folder; default: here.")] = None,
    show: Annotated[bool, typer.Option("--show", help="Print the file; write nothing.")] = False,
    devcontainer: Annotated[
        bool, typer.Option("--devcontainer", help="Write .devcontainer: the project's image for VS Code, Codespaces.")
    ] = False,
    target: Annotated[
        str | None,
        typer.Option("--target", metavar="MACHINE", help="With --devcontainer: build for h100; default: this machine."),
    ] = None,
    schema: Annotated[
        bool, typer.Option("--schema", help="Print the JSON Schema of seatrial.toml: every key.")
    ] = False,
) -> int:
    """Write seatrial.toml from what was found in the project, with the reasons."""
    if schema:
        from seatrial.job.config import json_schema

        print(json.dumps(json_schema(), indent=1))
        return EXIT_DONE
    folder = (project or Path.cwd()).resolve()
    if devcontainer:
        return _devcontainer(folder, script, target, show=show)
    if show:
        print(project_file(folder, script), end="")
        return EXIT_DONE
    write_project_file(folder, script)
    Screen().say(f"{FILE} written; seatrial plan shows the resulting plan")
    return EXIT_DONE


def _devcontainer(folder: Path, script: str | None, machine: str | None, *, show: bool) -> int:
    from seatrial.cli.typed_job import read_job
    from seatrial.job.loading import project_table
    from seatrial.planning.new_project import find_script
    from seatrial.planning.portable import FOLDER, devcontainer, write_devcontainer
    from seatrial.runs.launch import plan_only

    flags: dict[str, Any] = {"project": folder}
    if machine is not None:
        flags["image"] = {"target": machine}
    named = {"target", "module"} & project_table(folder).keys()
    words = [script] if script else [] if named else [find_script(folder)]
    plan = plan_only(read_job(words, [], flags), dict(os.environ))
    if show:
        print(json.dumps(devcontainer(plan), indent=2))
        return EXIT_DONE
    written = write_devcontainer(plan)
    screen = Screen()
    screen.say(f"{FOLDER} written: {', '.join(written)}")
    if machine is None and plan.job.gpus.kind == "auto" and not plan.gpus:
        screen.say("its packages are those of a machine without a GPU, as this one is; for another: --target h100")
    screen.say("open the folder in VS Code and choose Reopen in Container, or: devcontainer up --workspace-folder .")
    return EXIT_DONE
