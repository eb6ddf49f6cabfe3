"""The screen of a run: our lines on stderr, the target's output where it would have gone, and questions of consent."""

from __future__ import annotations

import json
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from seatrial.cli.errors import WITH_TRUST
from seatrial.cli.options import this_host
from seatrial.cli.root import importing
from seatrial.errors import DiskError, TrustError
from seatrial.job.model import Job
from seatrial.runs.following.streams import Stream
from seatrial.runs.run import Run
from seatrial.system.host import Host
from seatrial.system.trust import TrustStore
from seatrial.system.typed_path import as_typed

if TYPE_CHECKING:
    from seatrial.backends.kubernetes.pod import Manifest
    from seatrial.cli.terminal import LiveLine
    from seatrial.compose.request import Console as Person
    from seatrial.job.plan import Plan
    from seatrial.receipt.model import Receipt


#: A run that is over sooner needs no line that says how long it has lasted.
ELAPSED_FROM_S = 3


#: What is said even where quiet is asked for; of a stage behind its name.
_LOUD = re.compile(r"(?:[\w.-]+: )?(?:warning:|failed:|NO GPU)")


class Screen:
    """Prints for one command.

    Args:
        json: the answer on stdout is JSON, so the target's stdout goes to stderr too.
        answer_only: the target's output is the answer; a receipt is shown only of a run that failed.
        whole: the receipt is shown whole, and not only its verdict.
        quiet: of our own words only warnings and errors, and the verdict of a run that failed.

    Attributes:
        builds: an image is being built, and the live line is about that.
    """

    def __init__(
        self, *, json: bool = False, answer_only: bool = False, whole: bool = False, quiet: bool = False
    ) -> None:
        self._whole = whole
        self._quiet = quiet
        self._json = json
        self._answer_only = answer_only
        # Names of files are no markup: ":fire:" stays as it is, and rich's table of emoji is not loaded.
        self._err = Console(stderr=True, highlight=False, soft_wrap=True, emoji=False)
        self._out = Console(highlight=False, emoji=False)
        self._live: LiveLine | None = None
        self.builds = False
        self._unended: Stream | None = None
        self._printing = threading.RLock()  # threads and signal handlers say things, too

    def say(self, line: str) -> None:
        """A line of ours."""
        if self._quiet and not _LOUD.match(line):
            return
        with self._printing:
            if self._live is not None:
                self._live.clear()
            self._err.print(Text("seatrial ", style="bold cyan").append(line, style="not bold default"))

    def _print_of_build(self, line: str) -> None:
        self._err.print(Text(f"  {line}", style="dim"))

    @contextmanager
    def building(self) -> Iterator[Callable[[str], None]]:
        """Context manager whose value receives the lines of a build and shows its progress (BuildReporter)."""
        if self._quiet:
            yield lambda line: None
            return
        from seatrial.cli.terminal import LiveLine
        from seatrial.images.build.progress import BuildReporter

        shown = self._live
        live = shown or LiveLine()
        reporter = BuildReporter(
            self.say,
            self._print_of_build,
            live=live if live.changes else None,
            whole=self._whole,
            printing=self._printing,
        )
        self._live, self.builds = live, True
        try:
            with reporter:
                yield reporter.line
        finally:
            self._live, self.builds = shown, False

    @contextmanager
    def showing_progress(self, run: Run) -> Iterator[Callable[[], None]]:
        """While this holds, calling what it gives shows how fast the run trains, where there is room for it."""
        if self._answer_only or self._quiet:
            yield lambda: None
            return
        from seatrial.cli.terminal import LiveLine
        from seatrial.job.units import format_seconds
        from seatrial.runs.following.live import Progress

        progress, live, began_s = Progress(run), LiveLine(), run.started_at() or time.time()

        def show() -> None:
            words = progress.words()
            if live.changes and (seconds := round(time.time() - began_s)) >= ELAPSED_FROM_S:
                words = f"{format_seconds(seconds)}: {words}" if words else f"running for {format_seconds(seconds)}"
            with self._printing:
                line = live.show(words)
            if line is not None:
                self.say(line)

        self._live = live
        try:
            yield show
        finally:
            with self._printing:
                self._live = None
                live.clear()

    def announce(self, plan: Plan) -> None:
        """What is about to run, where, on which GPUs. A CPU run that might have been meant for a GPU says so first."""
        if plan.agent.gpu_mode == "auto-cpu":
            why = next((choice.reason for choice in plan.choices if choice.what == "gpus"), "")
            self.say(f"NO GPU: this run is on the CPU ({why}).")
        where = f"{plan.backend}, {plan.image.tag}" if plan.image else plan.backend
        self.say(f"{plan.run_id}: {plan.target_line} on {_gpus_of(plan)} ({where})")
        for warning in plan.warnings:
            self.say(f"warning: {warning}")

    def write(self, stream: Stream, data: bytes) -> None:
        """The target's output, byte for byte."""
        out = sys.stderr if stream == "stderr" or self._json else sys.stdout
        with self._printing:
            if self._live is not None:
                self._live.before_output("stderr" if out is sys.stderr else "stdout", data)
            out.flush()
            out.buffer.write(data)
            out.buffer.flush()
            if data:
                self._unended = None if data.endswith(b"\n") else "stderr" if out is sys.stderr else "stdout"

    def _end_line(self, console: Console) -> None:
        """Where the target left a line without an end, and ours would stand behind it."""
        from seatrial.cli.terminal import are_one_file

        ours: Stream = "stderr" if console is self._err else "stdout"
        if self._unended is not None and (self._unended == ours or are_one_file(1, 2)):
            console.print()
            self._unended = None

    def detached(self, plan: Plan) -> None:
        """How to get back to a run that goes on alone."""
        print(json.dumps({"id": plan.run_id, "name": plan.job.name}) if self._json else plan.run_id)
        self.say(f"is running in the background; follow it with seatrial runs logs -f {plan.run_id}")

    def receipt(self, receipt: Receipt, run: Run, *, error_follows: bool = False) -> None:
        """The receipt, and where its files are.

        Args:
            error_follows: the reader is told what is wrong by the error below, and once is enough.
        """
        if self._json:
            print(receipt.model_dump_json(indent=1))
            return
        if self._answer_only and receipt.exit_code == 0:
            return
        if self._quiet and receipt.outcome.level != "bad":
            return
        with importing():
            from seatrial.receipt.render import terminal  # a plan shows no receipt, and is asked for often

        show = terminal.render if self._whole else terminal.render_verdict
        if self._whole or not error_follows:
            console = self._err if self._answer_only else self._out
            self._end_line(console)
            show(receipt, console)
        self._quiet = False
        self.say(f"receipt: {as_typed((run.place if run.recorded else run.folder) / 'receipt.html')}")

    def plan(
        self, plan: Plan, request: list[str], asks: Sequence[str] = (), *, built: bool = False, started: bool = False
    ) -> None:
        """What would run, and what is against it; then every choice with its reason, and whole, the engine's command.

        Args:
            asks: what the project's file asks for, in full: a plan keeps less of it.
            built: its image is there. started: it is no longer a matter of what would be.
        """
        if self._json:
            print(plan.model_dump_json(indent=1))
            return
        out = self._out
        gpus = _gpus_of(plan).replace("CPU", "the CPU")
        head = f"{'Running' if started else 'Would run'} {plan.target_line} on {plan.backend}, on {gpus}"
        out.print(Text(head, style="bold"))
        if image := _image_of(plan, built=built):
            out.print(Text(f"  image {image}"), soft_wrap=True)
        for warning in plan.warnings:
            out.print(Text("! ", style="bold yellow").append(warning, style="not bold default"))
        if asks:
            out.print(_wishes(asks), end="", soft_wrap=True)
        out.print()
        table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
        table.add_column(style="bold", no_wrap=True)
        table.add_column(overflow="fold")
        for choice in plan.choices:
            table.add_row(choice.what, Text(choice.value).append(f"\n{choice.reason}", style="dim"))
        out.print(table)
        if request and self._whole:
            out.print(Text("\n" + _wrapped(request), style="dim"), soft_wrap=True)
        elif request:
            out.print(Text("\nthe engine's command: add --verbose; without seatrial: --as docker", style="dim"))

    def asks(self, wishes: Sequence[str]) -> None:
        """What the project's file wants beyond its folder and a container, before a question."""
        self._err.print(_wishes(wishes), end="")

    def manifests(self, rendered: list[Manifest]) -> None:
        """What a cluster will be given, to read, where all is shown; binary data left out."""
        if self._whole:
            from seatrial.backends.kubernetes.manifests import as_yaml

            self._out.print(Text(f"\n{as_yaml(rendered, whole=False)}", style="dim"), soft_wrap=True)
        self._out.print("\nmanifests: seatrial plan … --manifests > run.yaml; kubectl create -f run.yaml")


def _gpus_of(plan: Plan) -> str:
    """``GPU 0 (NVIDIA H200)``, ``CPU``, ``1 GPU of h100``, ``2 pods with 4 nvidia.com/gpu``."""
    gpus = ", ".join(f"GPU {gpu.mig or gpu.index} ({gpu.name})" for gpu in plan.gpus) or "CPU"
    if not plan.gpus and plan.on_this_host and (count := plan.gpus_asked):  # of a machine that is not here
        every = any(choice.what == "gpus" and choice.value == "all" for choice in plan.choices)
        gpus = f"{'all GPUs' if every else f'{count} GPU' + 's' * (count > 1)} of {plan.job.image.target}"
    if plan.cluster is not None and plan.cluster.gpus:
        claim = plan.cluster.claim
        gpus = f"{plan.cluster.gpus} {claim.device_class if claim else plan.cluster.gpu_resource}"
    if plan.cluster is not None and plan.cluster.nodes > 1:
        gpus = f"{plan.cluster.nodes} pods with {gpus}"
    return gpus


def _image_of(plan: Plan, *, built: bool) -> str:
    """The image, and its size once it is built, as far as that is planned; "" without one."""
    if plan.image is None:
        return ""
    if built:
        return f"{plan.image.tag}: ready (cached)"
    size = next((choice.value for choice in plan.choices if choice.what == "image size"), None)
    return f"{plan.image.tag}: {size}" if size else plan.image.tag


def _wishes(wishes: Sequence[str]) -> Text:
    lines = Text("This project asks for\n", style="bold")
    for wish in wishes:
        lines.append(f"  {wish}\n", style="not bold")
    return lines


def _wrapped(argv: list[str]) -> str:
    """An argv as one shell command, an option a line."""
    import shlex

    lines: list[str] = []
    for word in argv:
        quoted = shlex.quote(word)
        if lines and not word.startswith("-"):
            lines[-1] += f" {quoted}"
        else:
            lines.append(quoted)
    return " \\\n  ".join(lines)


def require_consent(job: Job, host: Host, screen: Screen, *, trust: bool, building: bool = False) -> None:
    """Return when the user has allowed what the project asks for, now or before. An ordinary project asks nothing.

    Args:
        trust: ``--trust``: allowed without a question.
        building: only an image is built; wishes that no build acts on are not asked about.

    Raises TrustError: refused, or nobody is there to be asked.
    """
    if not job.asks or (building and not any(ask.builds for ask in job.asks)):
        return
    store = TrustStore(host)
    lines = [ask.remembered for ask in job.asks]
    if store.allows(job.project, lines):
        return
    if store.problem:
        screen.say(f"warning: {store.problem}")
    if not trust:
        _ask(job, screen)
    try:
        store.allow(job.project, lines)
    except DiskError as error:  # allowed all the same; the next run asks again
        screen.say(f"warning: your answer was not saved: {error.message}")


def _ask(job: Job, screen: Screen) -> None:
    wishes = [ask.words for ask in job.asks]
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise TrustError(
            "This project needs permissions that were not granted yet, and there is no terminal to ask on",
            cause="\n    ".join(["it requests:", *wishes]),
            run=WITH_TRUST,
        )
    screen.asks(wishes)
    if not click.confirm("Allow this? You will be asked again if any line changes", default=False, err=True):
        raise TrustError("Not started: the requested permissions were denied", run="seatrial plan …   # lists it")


def front(*, trust: bool = False, as_json: bool = False, whole: bool = False, quiet: bool = False) -> Person:
    """This terminal.

    Args:
        trust: ``--trust``: what the project asks for is allowed without a question.
        whole: builds are shown line by line. quiet: as for Screen.
        as_json: the answer on stdout is JSON; outputs of targets go to stderr.
    """
    from seatrial.compose.request import Console as Person

    screen = Screen(json=as_json, whole=whole, quiet=quiet)

    def allow(job: Job) -> None:
        from seatrial.cli.screen import require_consent  # most have nothing to be asked

        require_consent(job, this_host(), screen, trust=trust)

    return Person(
        say=screen.say,
        building=screen.building,
        write=screen.write,
        show=lambda text: print(text, end="" if text.endswith("\n") else "\n"),
        allow=allow,
    )
