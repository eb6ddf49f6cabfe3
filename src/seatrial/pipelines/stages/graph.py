"""The stages of a project's file, what each needs, and what is wrong with them in one sentence each."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path, PurePosixPath
from typing import Any

from seatrial.errors import ConfigError, UsageError
from seatrial.job.loading import make_job, read_stages
from seatrial.job.model import Job
from seatrial.pipelines.stages.export_stage import PREFIX, Export, is_export, read_export
from seatrial.pipelines.stages.served import problems as served_problems
from seatrial.pipelines.stages.served import server_job
from seatrial.system.typed_path import as_typed

#: What a stage says beyond a job.
_OF_STAGES = ("needs", "inputs", "outputs", "serve", "port")

_ANY_RECIPE = "digits"


@dataclass(frozen=True)
class Stage:
    """One stage.

    Attributes:
        needs: stages that must have ended well before. inputs, outputs: paths below the project.
        table: what holds for its job, validated, under a Job's names.
        export: of a stage that exports a model.
        serve: the stage whose model it serves; it then has no target, and ends when it is stopped. port: for that.
    """

    name: str
    needs: tuple[str, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    table: Mapping[str, Any]
    export: Export | None = None
    serve: str | None = None
    port: int | None = None

    @property
    def target(self) -> str:
        """As people would call it in a list."""
        if self.export is not None:
            return f"{PREFIX}{self.export.to}"
        if self.serve is not None:
            return f"serve {self.serve}"
        module = self.table.get("module")
        image = self.table.get("image", {}).get("ready")
        return f"-m {module}" if module else str(self.table.get("target") or f"--image {image}")


@dataclass(frozen=True)
class Graph:
    """All stages of a project, in an order in which they can run; equals in the order of the file.

    Attributes:
        flags: what holds for every stage, from the command line, in place of the file.
    """

    project: Path
    stages: Mapping[str, Stage]
    flags: Mapping[str, Any]
    without_container: Callable[[str], bool]
    recipes: Collection[str]

    def job(self, stage: Stage, *, planning: bool = False) -> Job:
        """The stage's run.

        Args:
            planning: what stages are still to write need not be there yet.

        Raises SeatrialError naming the stage.
        """
        if stage.serve is not None:
            return self._server(stage, planning=planning)
        to_come = [self.project / path for each in self.stages.values() for path in each.outputs] if planning else []
        try:
            job = make_job(
                self.project, Path.cwd(), stage.table, self.flags, self.without_container, self.recipes, to_come=to_come
            )
        except UsageError as error:
            raise type(error)(f"stages.{stage.name}: {error.message}", cause=error.cause, run=error.run) from None
        if stage.export is not None:
            job = stage.export.job(job, planning=planning)
        return job.model_copy(update={"outputs": stage.outputs})

    def _server(self, stage: Stage, *, planning: bool) -> Job:
        served = self.stages[stage.serve or ""]
        trained = self.job(served, planning=True)
        table = {**stage.table, "target": "matmul"}  # in its place comes the server
        try:
            base = make_job(
                self.project, Path.cwd(), table, self.flags, self.without_container, ("matmul",),
                to_come=[self.project / path for each in self.stages.values() for path in each.outputs],
            )  # fmt: skip
        except UsageError as error:
            raise type(error)(f"stages.{stage.name}: {error.message}", cause=error.cause, run=error.run) from None
        return server_job(stage.name, base, trained, served.outputs, stage.port, planning=planning)

    def above(self, names: Collection[str]) -> set[str]:
        """These stages and all that they need, directly or not."""
        found: set[str] = set()
        pending = list(names)
        while pending:
            name = pending.pop()
            if name not in found:
                found.add(name)
                pending += self.stages[name].needs
        return found

    def chosen(self, names: Sequence[str]) -> list[Stage]:
        """The stages named with what they need; () for all. Raises UsageError for a name that is no stage's."""
        for name in names:
            if name not in self.stages:
                raise UsageError(
                    f'There is no stage "{name}"{_near(name, self.stages)}',
                    run=f"seatrial up {next(iter(self.stages))}",
                )
        kept = self.above(names or tuple(self.stages))
        return [stage for stage in self.stages.values() if stage.name in kept]


def read_graph(
    project: Path,
    flags: Mapping[str, Any],
    *,
    without_container: Callable[[str], bool],
    recipes: Collection[str],
) -> Graph:
    """Raises ConfigError: a stage that needs an unknown one or itself, two that write one path, …"""
    tables, from_flags = read_stages(project, flags)
    edit = f"${{EDITOR:-vi}} {as_typed(project / 'seatrial.toml')}"
    stages = {name: _stage(name, table, tables) for name, table in tables.items()}
    problems = [
        *served_problems(tables),
        *_kinds(tables),
        *_unknown_needs(stages),
        *_shared_outputs(stages),
        *_behind_links(project, stages),
    ]
    if not problems:
        problems = [*_cycle(stages), *_unneeded_inputs(stages)]
    if problems:
        raise ConfigError(
            f"seatrial.toml: {problems[0]}",
            cause="also: " + "; ".join(problems[1:]) if problems[1:] else None,
            run=edit,
        )
    order = _sorted(stages)
    return Graph(project, {name: stages[name] for name in order}, from_flags, without_container, recipes)


def _stage(name: str, table: Mapping[str, Any], tables: Mapping[str, Mapping[str, Any]]) -> Stage:
    job = {key: value for key, value in table.items() if key not in _OF_STAGES}
    needs, inputs, outputs = (tuple(dict.fromkeys(table.get(key, ()))) for key in ("needs", "inputs", "outputs"))
    export = read_export(name, table, tables) if is_export(table) else None
    if isinstance(export, tuple):
        plain = {**job, "target": _ANY_RECIPE, "args": ()}  # which the export program replaces
        return Stage(name, needs, inputs, export[1], plain, export[0])
    serve = table.get("serve")
    if serve is not None:
        needs = tuple(dict.fromkeys((*needs, serve)))
    return Stage(name, needs, inputs, outputs, job, serve=serve, port=table.get("port"))


def _kinds(tables: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Kinds of stages that have a place in the file and cannot be run by this version."""
    found = []
    for name, table in tables.items():
        if "serve" in table:
            continue  # served.problems
        if is_export(table):
            export = read_export(name, table, tables)
            known = all(need in tables for need in table.get("needs", ()))  # else that is what is wrong
            found += [export] if isinstance(export, str) and known else []
        elif not ({"target", "module"} & set(table) or table.get("image", {}).get("ready")):
            found.append(f"stages.{name}: nothing to run: set target, module or image.ready")
    return found


def _unknown_needs(stages: Mapping[str, Stage]) -> list[str]:
    return [
        f'stages.{stage.name}.needs: there is no stage "{need}"{_near(need, stages)}'
        for stage in stages.values()
        for need in stage.needs
        if need not in stages and need != stage.serve
    ]


def _near(name: str, stages: Collection[str]) -> str:
    near = difflib.get_close_matches(name, stages, n=1)
    return f"; did you mean {near[0]}?" if near else f"; there are {', '.join(stages)}"


def _cycle(stages: Mapping[str, Stage]) -> list[str]:
    try:
        _sorted(stages)
    except CycleError as error:
        circle = list(reversed(error.args[1]))  # a stage before what it needs
        if len(circle) == 2:
            return [f"stages.{circle[0]}.needs: the stage needs itself"]
        return [f"stages.{circle[0]}.needs: stages need each other in a circle: {' → '.join(circle)}"]
    return []


def _sorted(stages: Mapping[str, Stage]) -> list[str]:
    """Raises CycleError."""
    sorter = TopologicalSorter({name: stage.needs for name, stage in stages.items()})
    sorter.prepare()
    order: list[str] = []
    places = {name: place for place, name in enumerate(stages)}
    while sorter.is_active():
        ready = sorted(sorter.get_ready(), key=places.__getitem__)
        order += ready
        sorter.done(*ready)
    return order


def _shared_outputs(stages: Mapping[str, Stage]) -> list[str]:
    owners = [(output, stage.name) for stage in stages.values() for output in stage.outputs]
    found = []
    for number, (output, name) in enumerate(owners):
        for other, owner in owners[:number]:
            if _overlap(output, other):
                inside = "" if output == other else f", which overlaps {other}"
                found.append(f"stages.{name}.outputs: {output}{inside} is written by the stage {owner}, too")
    return found


def _overlap(one: str, other: str) -> bool:
    return PurePosixPath(one).is_relative_to(other) or PurePosixPath(other).is_relative_to(one)


def _behind_links(project: Path, stages: Mapping[str, Stage]) -> list[str]:
    """An output is put in place by a rename, which a link would lead elsewhere."""
    found = []
    for stage in stages.values():
        for output in stage.outputs:
            path = PurePosixPath(output)
            link = next((part for part in (*reversed(path.parents), path) if (project / part).is_symlink()), None)
            if link is not None:
                found.append(f"stages.{stage.name}.outputs: {link} is a symlink; an output must be a real path")
    return found


def _unneeded_inputs(stages: Mapping[str, Stage]) -> list[str]:
    """An input that another stage writes is there in time only if that stage is needed."""
    found = []
    for stage in stages.values():
        above, pending = set[str](), list(stage.needs)
        while pending:
            above.add(name := pending.pop())
            pending += [need for need in stages[name].needs if need not in above]
        for other in stages.values():
            clash = [path for path in stage.inputs if any(_overlap(path, output) for output in other.outputs)]
            if clash and other.name == stage.name:
                found.append(f"stages.{stage.name}.inputs: {clash[0]} is an output of the same stage")
            elif clash and other.name not in above:
                found.append(f'stages.{stage.name}.needs: add "{other.name}", which writes the input {clash[0]}')
    return found
