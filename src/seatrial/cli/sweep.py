"""``seatrial sweep``: the same job with other settings, compared."""

from __future__ import annotations

import json
import os
import time
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from seatrial.cli.job_flags import Words, read_allowed_job, takes_job
from seatrial.cli.screens.run import Screen
from seatrial.errors import EXIT_DONE, EXIT_TARGET_FAILED, UsageError
from seatrial.reports import sweep_page
from seatrial.runs import sweep as sweeps
from seatrial.system.names import Names, names_of

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command(context_settings={"help_option_names": ["-h", "--help"]})
@takes_job
def sweep(
    context: typer.Context,
    words: Words = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=V1,V2", help="Values to try; can be given again.")
    ] = None,
    parallel: Annotated[int, typer.Option("--parallel", min=1, help="Number of parallel runs.")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print the results as JSON.")] = False,
    *,
    flags: dict[str, Any],
) -> int:
    """Run a job once for each combination of settings, and compare: a table here, and a page with bars.

    \b
    seatrial sweep digits --set batch_size=32,64,128 --set mixed_precision=true,false --parallel 2
    """
    if not settings:
        raise UsageError("Nothing to sweep over: --set names it", run="seatrial sweep train.py --set batch_size=64,128")
    screen = Screen(json=True)
    job = read_allowed_job(words or [], context.obj, flags, screen)
    made = sweeps.variants(job, [sweeps.parse_setting(text) for text in settings])
    results = sweeps.sweep(made, dict(os.environ), screen.say, parallel=parallel)
    folder = sweeps.page_path(job.project, time.strftime("%Y%m%d-%H%M%S"))
    names = Names() if job.with_names else names_of(os.environ, secrets=job.secrets)
    page = sweep_page.write(folder, f"{job.target.value}: {', '.join(settings)}", results, names)
    if as_json:
        print(json.dumps([result.as_dict() for result in results], indent=1))
    else:
        Console(highlight=False).print(_table(results))
    screen.say(f"page: {page}")
    return EXIT_TARGET_FAILED if any(result.exit_code for result in results) else EXIT_DONE


def _table(results: list[sweeps.Result]) -> Table:
    """Settings, numbers (the best bold) and how each run ended."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    shown = sweep_page.columns(results)
    for title in (*results[0].settings, *(column[0] for column in shown), "outcome"):
        table.add_column(title, overflow="fold")
    for result in results:
        cells = list(result.settings.values())
        for column in shown:
            value = column[1](result)
            text = "" if value is None else f"{value:.4g}"
            cells.append(f"[bold]{text}[/]" if sweep_page.best(results, column) is result else text)
        table.add_row(*cells, result.outcome)
    return table
