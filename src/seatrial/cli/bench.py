"""``seatrial bench``: a recipe in several ways, side by side; a Job like any other, so it runs where torch is."""

from __future__ import annotations

import os
from typing import Annotated, Any, Literal

import typer

from seatrial.cli.job_flags import takes_job
from seatrial.cli.screens.run import Screen
from seatrial.cli.session import carry_out
from seatrial.cli.typed import Verbose
from seatrial.cli.typed_job import read_allowed_job
from seatrial.errors import UsageError
from seatrial.images.recipes import RECIPES
from seatrial.job.model import Target

app = typer.Typer(add_completion=False, rich_markup_mode=None)

Mode = Literal["matmul", "train", "scaling", "batch"]


@app.command(context_settings={"help_option_names": ["-h", "--help"]})
@takes_job
def bench(
    context: typer.Context,
    mode: Annotated[Mode, typer.Argument(help="matmul, train, scaling or batch.")],
    recipe: Annotated[str | None, typer.Argument(metavar="RECIPE", help="Not for matmul.")] = None,
    compare: Annotated[
        str | None,
        typer.Option(
            "--compare",
            help="For train: cpu,gpu  eager,compile,graph  fp32,tf32,bf16,fp16  dp,ddp",
        ),
    ] = None,
    repeats: Annotated[
        int, typer.Option("--repeats", min=1, help="Interleaved runs of each variant; medians are compared.")
    ] = 3,
    verbose: Verbose = False,
    *,
    flags: dict[str, Any],
) -> int:
    """Benchmark variants of a recipe: bench train mnist --compare eager,graph --data DIR -- --epochs 2

    bench matmul: matmuls in every precision. bench scaling RECIPE --gpus 1,2,4: GPU counts. bench batch RECIPE:
    batch sizes from 64 to 4096. Arguments after -- go to the recipe. The table is also in the run's
    folder, as bench.json.
    """
    ranks = _ranks(mode, flags)
    words = _words(mode, recipe, compare, repeats, ranks)
    screen = Screen(whole=verbose)
    job = read_allowed_job(["matmul"], [], flags, screen)
    own: list[str] = context.obj
    args = [*words, *(["--"] if own and mode != "matmul" else []), *own]
    target = Target(kind="recipe", value="matmul" if mode == "matmul" else "bench", args=tuple(args))
    return carry_out(job.model_copy(update={"target": target}), dict(os.environ), screen)


def _ranks(mode: Mode, flags: dict[str, Any]) -> str | None:
    """For scaling, ``--gpus 1,2,4`` are counts: the run gets the largest, and the recipe the list."""
    counts = flags.get("gpus", "1,2,4" if mode == "scaling" else None)
    if mode != "scaling":
        return str(counts) if counts is not None and str(counts).isdigit() else None
    if not all(count.isdigit() and int(count) > 0 for count in str(counts).split(",")):
        raise UsageError(
            f"--gpus {counts}: bench scaling takes GPU counts", run="seatrial bench scaling spam --gpus 1,2,4"
        )
    flags["gpus"] = str(max(map(int, str(counts).split(","))))
    return str(counts)


def _words(mode: Mode, recipe: str | None, compare: str | None, repeats: int, ranks: str | None) -> list[str]:
    """bench's own arguments inside."""
    trained = [name for name, known in RECIPES.items() if known.trains]
    if mode == "matmul":
        if recipe or compare:
            raise UsageError("bench matmul takes no recipe and no --compare", run="seatrial bench matmul")
        return []
    if recipe not in trained:
        raise UsageError(
            f"bench {mode} needs a recipe that trains, one of {', '.join(trained)}",
            run=f"seatrial bench {mode} digits" + (" --compare eager,compile" if mode == "train" else ""),
        )
    words = [mode, recipe, "--repeats", str(repeats)]
    if mode == "train":
        if compare is None:
            raise UsageError("bench train needs --compare", run=f"seatrial bench train {recipe} --compare eager,graph")
        words += ["--compare", compare]
    if ranks is not None and mode != "batch":
        words += ["--gpus", ranks]
    return words
