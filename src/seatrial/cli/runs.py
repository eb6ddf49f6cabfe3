"""``seatrial runs …`` and ``seatrial open``: list and show runs; cli/control.py changes them.

Commands import what they need: the models of plan and receipt load longer than ``ls`` lists 5,000 runs.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from seatrial.cli import control, terminal
from seatrial.cli import options as cli
from seatrial.cli.control import PROJECT, WHOLE_RECEIPT, group_of
from seatrial.compose.group import GroupStore, find_run
from seatrial.errors import EXIT_DONE, EXIT_TARGET_FAILED, UsageError
from seatrial.runs.store import other_projects, store_of
from seatrial.system.text import as_typed, from_here

if TYPE_CHECKING:
    from rich.console import Console

    from seatrial.cli.screen import Screen
    from seatrial.compose.listing import Listed
    from seatrial.monitor.compare import Comparison
    from seatrial.runs.run import Run

#: Interval of ``ls --watch``.
WATCH_INTERVAL_S = 2.0


@click.group(cls=cli.VerbGroup)
def runs() -> None:
    """List, inspect and control runs. RUN is an ID, part of it, a name, or last; some take a group."""


for changing in vars(control).values():
    if isinstance(changing, click.Command):
        runs.add_command(changing)


@runs.command("ls", examples=("seatrial runs ls --status failed --since 2d", "seatrial runs ls --watch"))
@cli.option(
    "--limit", "-n", metavar="N", type=click.IntRange(min=0), default=20, help="Number of runs to show; 0: all."
)
@cli.option("--status", metavar="STATUS", help="Show only these: running, failed, done, unmet, … or a,b.")
@cli.option("--since", metavar="TIME", help="Show only runs started in the last 30m, 2d, …")
@cli.option("--watch", "-w", is_flag=True, help="Refresh every 2 s until Ctrl-C.")
@cli.AS_JSON
@PROJECT
def list_(limit: int, status: str | None, since: str | None, watch: bool, as_json: bool, project: Path | None) -> int:
    """List runs, newest first; those of seatrial up under their group."""
    from seatrial.cli import tables
    from seatrial.compose import listing
    from seatrial.system.files import status_of

    if watch and as_json:
        raise UsageError("--watch and --json exclude each other", run="seatrial runs ls --watch")
    statuses = tables.parse_statuses(status)
    since_s = None if since is None else tables.parse_since(since)
    store = store_of(project)

    def found() -> list[Listed]:
        now = time.time()
        every = listing.listed(store, cli.this_host(), limit=None if statuses or since_s else limit or None)
        kept = [each for each in every if tables.matches(each, statuses, since_s, now)]
        return kept[:limit] if limit and (statuses or since_s) else kept

    if as_json:
        print(json.dumps(listing.as_json(found(), store), indent=1))
        return EXIT_DONE
    while True:
        listed = found()
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
        lines = tables.runs_lines(listed, width, time.time()) if listed else []
        if watch:
            terminal.uncleaned().write("\x1b[H\x1b[2J") if sys.stdout.isatty() else None
        elif not listed:
            ran = {each.parent: status_of(each / "runs") for each in other_projects(cli.this_host())}
            last = {each: -getattr(status, "st_mtime", 0) for each, status in ran.items() if each != store.project}
            others = sorted(last, key=lambda each: (not each.is_relative_to(store.project), last[each]))
            none = f"No runs here. Another project's: seatrial runs ls -C {as_typed(others[0])}" if others else None
            none = "No such runs" if statuses or since_s else none or "No runs yet. Start one: seatrial run digits"
            print(none, file=sys.stderr)
        if listed and store.project != Path(os.path.realpath("")):
            print(f"Runs of {from_here(store.project)}", file=sys.stderr)
        print("".join(f"{line}\n" for line in lines), end="", flush=True)
        if not watch:
            return EXIT_DONE
        time.sleep(WATCH_INTERVAL_S)


@runs.command(examples=("seatrial runs show last",))
@cli.RUN_OR_LAST
@cli.AS_JSON
@PROJECT
def show(reference: str, as_json: bool, project: Path | None) -> int:
    """Show a run's receipt or, while it runs, its progress and last line. Exits with the run's own exit code."""
    with cli.importing():
        from seatrial.cli.screen import Screen
        from seatrial.runs.notify import notes
        from seatrial.runs.status import finalise

    store = store_of(project)
    if (group := group_of(store, reference)) is not None:
        from seatrial.cli.screen import front
        from seatrial.compose.commands import refresh
        from seatrial.compose.receipt import show_receipt

        group = refresh(GroupStore(store), group, cli.this_host())
        show_receipt(group, store, front(as_json=as_json), cli.this_host(), as_json=as_json)
        return EXIT_TARGET_FAILED if group.state in ("failed", "stopped") else EXIT_DONE
    if (store.record / "sweeps" / reference).is_dir():
        from seatrial.cli.tables import print_trials
        from seatrial.search.search import find_study, looked_at

        search = looked_at(find_study(store, reference), cli.this_host())
        print_trials(search.study.trials(), search.objective, as_json=as_json)
        return EXIT_DONE
    run = find_run(store, reference)
    receipt = finalise(run, cli.this_host())
    screen = Screen(json=as_json, whole=True)
    if receipt is None:
        screen.plan(run.plan(), []) if as_json else _show_live(run, screen)
        return EXIT_DONE
    screen.receipt(receipt, run)
    for note in [] if as_json else notes(run.folder):
        screen.note(f"notified {note}")
    return receipt.exit_code


def _show_live(run: Run, screen: Screen) -> None:
    """Print state, time, steps and the last line of output."""
    from seatrial.job.units import format_seconds
    from seatrial.runs.live import Progress
    from seatrial.runs.status import line_of
    from seatrial.runs.watch import follow

    line = line_of(run, cli.this_host())
    seconds = f" for {format_seconds(max(1, round(line.seconds)))}" if line.seconds else ""
    parts = [f"{line.target}: {line.status}{seconds} on {line.backend}", line.outcome, Progress(run).words()]
    print("; ".join(filter(None, parts)), flush=True)
    follow(run, screen.write, cli.this_host(), tail=1, until_end=False, echo=screen.note)
    screen.note(f"{run.id} has not ended; follow it with seatrial runs logs -f {line.name or run.id}")


@runs.command(examples=("seatrial runs logs -f last",))
@cli.RUN_OR_LAST
@cli.option("following", "--follow", "-f", is_flag=True, help="Follow until the run ends.")
@cli.option("--tail", "-n", metavar="N", type=click.IntRange(min=0), help="Start with about the last N lines.")
@cli.option("--rank", metavar="N", type=click.IntRange(min=0), help="Show only this node's lines (multi-node runs).")
@PROJECT
def logs(reference: str, following: bool, tail: int | None, rank: int | None, project: Path | None) -> int:
    """Print what the target printed, both streams in order."""
    from seatrial.cli.screen import Screen
    from seatrial.runs.watch import follow, of_rank

    store = store_of(project)
    if (group := group_of(store, reference)) is not None:
        from seatrial.cli.screen import front
        from seatrial.compose.console import follow_group

        follow_group(GroupStore(store), group, front(), cli.this_host(), until_end=following, tail=tail)
        return EXIT_DONE
    run = find_run(store, reference)
    screen = Screen()
    write = screen.write if rank is None else of_rank(run, rank, screen.write)
    follow(run, write, cli.this_host(), tail=tail, until_end=following, echo=screen.note)
    return EXIT_DONE


@runs.command(examples=("seatrial runs attach last",))
@cli.RUN_OR_LAST
@cli.AS_JSON
@WHOLE_RECEIPT
@PROJECT
def attach(reference: str, as_json: bool, verbose: bool, project: Path | None) -> int:
    """Follow a run to its end and print its verdict. Ctrl-C detaches; the run continues."""
    from seatrial.cli.screen import Screen
    from seatrial.runs.status import finalise
    from seatrial.runs.watch import ensure_recorder, follow

    run = find_run(store_of(project), reference)
    screen = Screen(json=as_json, whole=verbose)
    try:
        with screen.showing_progress(run) as show:
            follow(run, screen.write, cli.this_host(), tail=10, echo=screen.note, between_looks=show)
    except (KeyboardInterrupt, BrokenPipeError) as left:
        if not run.ended:
            ensure_recorder(run)
            screen.note(f"detached; {run.id} is still running")
        if isinstance(left, BrokenPipeError):
            raise
        return EXIT_DONE
    receipt = finalise(run, cli.this_host())
    if receipt is None:
        screen.note(f"{run.id} has not started yet")
        return EXIT_DONE
    screen.receipt(receipt, run)
    return receipt.exit_code


@runs.command(examples=("seatrial runs verify last",))
@cli.RUN_OR_LAST
@PROJECT
def verify(reference: str, project: Path | None) -> int:
    """Verify that a run's evidence and receipt are unchanged. Exits with 1 if not."""
    from seatrial.runs.run_actions import verify as check

    run = find_run(store_of(project), reference)
    verdict = check(run)
    for sentence in verdict.sentences:
        print(f"{run.id} {sentence}")
    return EXIT_DONE if verdict.intact else EXIT_TARGET_FAILED


@runs.command(examples=("seatrial runs compare baseline last --html compare.html",))
@cli.argument("references", nargs=-1, metavar="A B...", type=cli.RunReference())
@cli.AS_JSON
@cli.option("--html", metavar="FILE", type=click.Path(path_type=Path), help="Also write a page with plots.")
@PROJECT
def compare(references: tuple[str, ...], as_json: bool, html: Path | None, project: Path | None) -> int:
    """Runs side by side: what differs, what was measured against the first; --html adds their curves."""
    from seatrial.monitor import compare as comparison
    from seatrial.monitor.run_view import Receipts
    from seatrial.runs.status import finalise
    from seatrial.system.files import write_atomically

    store, receipts = store_of(project), Receipts()
    found_runs = [find_run(store, reference) for reference in references]
    if len({run.id for run in found_runs}) < 2:
        same = f"; {' and '.join(references)} are {found_runs[0].id}" if references[1:] else ""
        two = " ".join(run.id for run in reversed(store.newest(2)))
        instead = f"seatrial runs compare {two}" if " " in two else "seatrial runs ls"
        raise UsageError(f"A comparison needs two runs or more{same}", run=instead)
    for run in found_runs:
        finalise(run, cli.this_host())
    found = comparison.compare(*(receipts.of(run) for run in found_runs))
    if html is not None:
        write_atomically(html, comparison.to_html(found).encode(), None)
    if as_json:
        print(json.dumps(comparison.to_json(found), indent=1))
    else:
        print_comparison(found, terminal.console())
    return EXIT_DONE


def print_comparison(found: Comparison, console: Console) -> None:
    """Print the facts and numbers; curves are on the page. A run's own words are text here, never markup."""
    from rich.table import Table
    from rich.text import Text

    unicode = console.encoding.lower().startswith("utf")
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column(Text())
    for letter, name in zip("ABCDEFGH", found.names, strict=False):
        short = re.sub(r"^\d{8}-\d{6}-(?=\w{4}$)", "", name)  # as in runs ls
        table.add_column(Text(f"{letter}: {short}"), overflow="fold")
    if len(found.runs) == 2:
        table.add_column(Text("B vs. A"), overflow="fold")
    plain = {} if unicode else {ord("×"): "x", ord("÷"): "/"}
    for row in found.facts + found.numbers:
        changes = [" ".join(filter(None, (cell.change, cell.verdict))) for cell in row.cells]
        texts = [cell.text or "-" for cell in row.cells]
        if len(row.cells) == 2:  # the change has a column; of more runs it stands behind each
            texts.append(changes[1])
        else:
            texts = [f"{text} ({change})" if change else text for text, change in zip(texts, changes, strict=True)]
        table.add_row(*(Text(cell.translate(plain)) for cell in (row.label, *texts)))
    console.print(table)


@cli.command("open", examples=("seatrial open", "seatrial open last --print"))
@cli.RUN_OR_LAST
@cli.option("only_print", "--print", is_flag=True, help="Print the page's path, and open nothing.")
@PROJECT
def open_receipt(reference: str, only_print: bool, project: Path | None) -> int:
    """Open a run's receipt in the browser; where there is none, print the page's path."""
    import webbrowser

    from seatrial.runs.status import finalise  # it loads all judges

    run = find_run(store_of(project), reference)
    if finalise(run, cli.this_host()) is None:
        raise UsageError(f"{run.id} has not ended: it has no receipt yet", run=f"seatrial runs logs -f {run.id}")
    page = run.folder / "receipt.html"  # the record's: the target could have written the copy in the project
    if not page.is_file():
        raise UsageError(f"The page of run {run.id} is missing: {page}", run=f"seatrial runs show {run.id}")
    screens = ("BROWSER", "DISPLAY", "WAYLAND_DISPLAY", "WSL_DISTRO_NAME")  # one in the terminal would take it over
    has_browser = any(map(os.environ.get, screens)) or sys.platform == "darwin"
    if only_print or not has_browser or not webbrowser.open(page.absolute().as_uri()):
        print(page.absolute())
        if not only_print:
            serve = f"cd {as_typed(page.parent)} && python3 -m http.server --bind 127.0.0.1 8000"
            there = f"http://127.0.0.1:8000/{page.name}, from elsewhere through ssh -L 8000:127.0.0.1:8000"
            print(f"no browser here; copy it, or: {serve}   # then open {there}", file=sys.stderr)
    return EXIT_DONE
