"""``seatrial plan``: what run would do, and why each choice. Changes nothing.

Help, and a flag that there is not, need none of what plans.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from seatrial.cli.importing import importing
from seatrial.cli.job_flags import Words, takes_job
from seatrial.errors import EXIT_DONE, UsageError

if TYPE_CHECKING:
    from seatrial.backends.kubernetes.pod import Manifest
    from seatrial.job.plan import Plan

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command(context_settings={"help_option_names": ["-h", "--help"]})
@takes_job
def plan(
    context: typer.Context,
    words: Words = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the whole plan as JSON.")] = False,
    manifests: Annotated[
        bool, typer.Option("--manifests", help="Print only the complete Kubernetes manifests, as YAML.")
    ] = False,
    form: Annotated[
        Literal["docker", "compose"] | None,
        typer.Option("--as", metavar="FORM", help="Print it as docker run or a compose file, without seatrial."),
    ] = None,
    verbose: Annotated[bool, typer.Option("--verbose", help="Also the engine's command, or the manifests.")] = False,
    *,
    flags: dict[str, Any],
) -> int:
    """Show what run would do and why; changes nothing."""
    with importing():
        from seatrial.cli.typed_job import read_job
        from seatrial.planning import multi_host, secrets
        from seatrial.runs import launch

    environ = dict(os.environ)
    job = multi_host.join(read_job(words or [], context.obj, flags), None, environ)
    secrets.check_secrets(job, environ)
    made = launch.plan_only(job, environ)
    if form is not None:
        from seatrial.planning.equivalent import as_compose, as_docker

        print({"docker": as_docker, "compose": as_compose}[form](made), end="")
        return EXIT_DONE
    if made.on_this_host and manifests:
        raise UsageError("Only a Kubernetes run has manifests", run="seatrial plan … --on k8s --manifests")
    rendered = launch.manifests(made, environ) if not made.on_this_host else []
    if manifests:
        from seatrial.backends.kubernetes.manifests import as_yaml

        print(as_yaml(rendered), end="")
    else:
        _show(made, rendered, [ask.words for ask in job.asks], environ, as_json=as_json, verbose=verbose)
    return EXIT_DONE


def _show(
    made: Plan, rendered: list[Manifest], asks: list[str], environ: dict[str, str], *, as_json: bool, verbose: bool
) -> None:
    """The plan as people read it, or as JSON."""
    with importing():
        from seatrial.backends import table
        from seatrial.cli.screens.run import Screen  # with rich, which YAML and Compose files do without

    screen = Screen(json=as_json, whole=verbose)
    if made.on_this_host:
        backend = table.backend(made.backend, environ)
        built = bool(made.image and made.image.build and backend.images and backend.images.image(made.image.tag))
        screen.plan(made, backend.compile(made), asks, built=built)
        return
    screen.plan(made, [], asks)
    if not as_json:
        screen.manifests(rendered)
