"""up and down for the stages of seatrial.toml."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress

from seatrial.errors import EXIT_DONE, SeatrialError, UsageError
from seatrial.images.recipes import RECIPES
from seatrial.pipelines.chain_show import show_chain
from seatrial.pipelines.group import ENDED, Group, GroupStore, Member
from seatrial.pipelines.group import refresh as refresh_members
from seatrial.pipelines.request import Front, UpRequest
from seatrial.pipelines.stages.digests import Digests
from seatrial.pipelines.stages.graph import Graph, read_graph
from seatrial.pipelines.stages.record import StageRecords
from seatrial.pipelines.stages.survey import Outlook, survey
from seatrial.pipelines.stages.workshop import Workshop
from seatrial.runs.store import RunStore

#: How long down waits for a command line that it has asked to stop its runs, on top of their grace.
_PATIENCE_S = 60.0


def up(request: UpRequest, front: Front, environ: Mapping[str, str]) -> int:
    """Run what has to run; the exit code."""
    if request.as_written or request.fix or request.profiles:
        raise UsageError("--as-written, --fix and --profile are for Compose files; these are stages", run="seatrial up")
    graph = graph_of(request)
    stages = graph.chosen(request.names)
    forced = set(request.names or graph.stages) if request.force else set()
    store = RunStore(request.project, environ)
    records = StageRecords(store)
    shop = Workshop(store, records, Digests(records.digests), environ)
    if request.plan_only:
        outlooks = survey(graph, stages, shop, forced)
        front.show(_plan_json(outlooks) if request.as_json else _plan_text(outlooks))
        shop.digests.save()
        return EXIT_DONE
    if request.detach:
        return _detach(request, survey(graph, stages, shop, forced), shop, front)
    with ExitStack() as alone:  # until nothing but servers is left: the next up may then replace them
        alone.enter_context(records.only_one())
        outlooks = survey(graph, stages, shop, forced)
        shop.digests.save()
        if all(outlook.holds for outlook in outlooks):
            return _nothing_to_do(outlooks, front, request)
        return _carry_out(request, graph, outlooks, shop, front, forced, alone.close)


def graph_of(request: UpRequest) -> Graph:
    """The project's stages with what the command line says. Raises ConfigError."""
    flags = {"gpus": request.gpus, "on": request.backend, "notify": request.notify}
    return read_graph(request.project, flags, without_container=_without_container, recipes=RECIPES)


#: The usual backends, and whether they run the target as the user's own process. Others are asked of their table, which
#: loads the code of all engines: an up with nothing to do takes half as long without.
_USUAL = {"auto": False, "docker": False, "podman": False, "local": True}


def _without_container(name: str) -> bool:
    if name in _USUAL:
        return _USUAL[name]
    from seatrial.backends import table

    return table.place(name) == "process"


def _carry_out(
    request: UpRequest,
    graph: Graph,
    outlooks: Sequence[Outlook],
    shop: Workshop,
    front: Front,
    forced: set[str],
    settled: Callable[[], None],
) -> int:
    from seatrial.pipelines.end_notification import request_notify
    from seatrial.pipelines.stages.execution import Execution  # all that runs load, which many an up does not need
    from seatrial.pipelines.stages.servers import refuse_port
    from seatrial.pipelines.stages.shared_gpus import can_be_served
    from seatrial.planning.host import read_host

    host = read_host(environ=shop.environ)
    for outlook in outlooks:
        if outlook.holds is None:
            if outlook.stage.serve is not None:
                refuse_port(outlook.stage, outlook.job, shop)
            front.allow(outlook.job)
            can_be_served(outlook.stage.name, outlook.job, host)
    groups = GroupStore(shop.store)
    _close_earlier(groups, shop.environ)
    members = tuple(
        Member(
            each.stage.name,
            "task" if each.stage.serve is None else "service",
            target=each.stage.target,
            needs=each.stage.needs,
            why=each.words,
        )
        for each in outlooks
    )
    group = groups.create("stages", members, name=request.name)
    front.say(f"{group.id}: {', '.join(member.name for member in members)}")
    told = request_notify(request, groups.folder(group.id), front, shop.environ)
    execution = Execution(graph, shop, groups, group, front, forced, told)
    code = None
    try:
        code = execution.run([outlook.stage for outlook in outlooks], settled)
    finally:
        group = groups.change_group(group, launcher=None)
        show_chain(group, shop.store, front, shop.environ, as_json=request.as_json, exit_code=code)
    return code


def _detach(request: UpRequest, outlooks: Sequence[Outlook], shop: Workshop, front: Front) -> int:
    if all(outlook.holds for outlook in outlooks):
        return _nothing_to_do(outlooks, front, request)
    from seatrial.pipelines.stages.detached import start_detached

    for outlook in outlooks:
        front.allow(outlook.job)
    with shop.records.only_one():
        pass  # else it would be told in a log
    group = start_detached(request, GroupStore(shop.store), shop.records, shop.environ)
    front.show(json.dumps({"id": group.id, "name": group.name}) if request.as_json else group.id)
    front.say(f"is running in the background; follow it with seatrial runs logs -f {group.id}")
    return EXIT_DONE


def _nothing_to_do(outlooks: Sequence[Outlook], front: Front, request: UpRequest) -> int:
    for outlook in outlooks:
        front.say(f"{outlook.stage.name}: {outlook.words}")
    if request.as_json:
        stages = [{"name": each.stage.name, "state": "unchanged", "why": each.words} for each in outlooks]
        front.show(json.dumps({"state": "done", "links": stages}))
    front.say("nothing to do; seatrial up --force runs it all again")
    return EXIT_DONE


def _plan_json(outlooks: Sequence[Outlook]) -> str:
    told = [
        {
            "name": each.stage.name,
            "target": each.stage.target,
            "gpus": str(each.job.gpus),
            "needs": each.stage.needs,
            "outputs": each.stage.outputs,
            "runs": None if each.decision is None else each.holds is None,
            "why": each.words,
        }
        for each in outlooks
    ]
    return json.dumps(told, indent=1)


def _plan_text(outlooks: Sequence[Outlook]) -> str:
    width = max(len(outlook.stage.name) for outlook in outlooks)
    lines = []
    for outlook in outlooks:
        stage = outlook.stage
        lines.append(f"{stage.name:<{width}}  {outlook.words}")
        facts = [stage.target, f"gpus {outlook.job.gpus}"]
        facts += [f"after {', '.join(stage.needs)}"] if stage.needs else []
        facts += [f"writes {', '.join(stage.outputs)}"] if stage.outputs else []
        lines.append(f"{'':<{width}}  {'; '.join(facts)}")
    return "\n".join(lines)


def _close_earlier(groups: GroupStore, environ: Mapping[str, str]) -> None:
    """Groups of stages whose command line was killed: what they left is gone on with by this one."""
    for group in groups.all():
        if group.kind == "stages" and group.state in ("running", "interrupted") and not group.looked_after:
            for member in refresh(groups, group, environ).members:
                if member.state not in ENDED:
                    groups.change(
                        group, member.name, state="stopped", why="seatrial up was killed; a later one went on"
                    )


def refresh(store: GroupStore, group: Group, environ: Mapping[str, str]) -> Group:
    """Members' states as their runs have it. A run that ended well has a result only when an ``up`` put it in place."""
    if group.looked_after:
        return group
    for member in refresh_members(store, group, environ).members:
        if member.state == "done" and "wrote" not in member.details:
            why = "it ended well; seatrial up puts its outputs in place"
            store.change(group, member.name, state="waiting", why=why)
    return store.read(group.id) or group


def down(store: GroupStore, group: Group, front: Front, environ: Mapping[str, str]) -> None:
    """Ask the command line that runs the stages to stop; where there is none, stop their runs."""
    from seatrial.runs import run_actions

    if group.launcher is not None and group.looked_after:
        front.say(f"asking process {group.launcher[0]} to stop its stages")
        with suppress(ProcessLookupError):
            os.kill(group.launcher[0], signal.SIGTERM)
        until = time.monotonic() + _PATIENCE_S
        while group.looked_after and time.monotonic() < until:
            time.sleep(0.1)
    for member in (store.read(group.id) or group).members:
        if member.state == "running" and member.run is not None:
            run = store.runs.run(member.run)
            with suppress(SeatrialError):
                if run_actions.is_live(run, environ):
                    front.say(f"{member.name}: stopping {run.id}")
                    run_actions.stop(run, environ)
        if member.state not in ENDED:
            store.change(group, member.name, state="stopped", why="seatrial runs stop --all")
