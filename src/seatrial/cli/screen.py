"""Print a run or a search: our lines, the target's output on the target's streams, plans and receipts."""

from __future__ import annotations

import json
import shlex
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from seatrial.cli import terminal
from seatrial.cli.options import importing
from seatrial.cli.terminal import LiveLine, are_one_file, ticking
from seatrial.system.command import doing_now
from seatrial.system.names import Names, secret_words
from seatrial.system.text import as_typed, one_line, regex

if TYPE_CHECKING:
    from seatrial.backends.kubernetes.pod import Manifest
    from seatrial.compose.console import Console as Person
    from seatrial.job.model import Job
    from seatrial.job.plan import Plan
    from seatrial.receipt.model import Receipt
    from seatrial.runs.run import Run
    from seatrial.runs.streams import Stream
    from seatrial.search.search import Search

#: A shorter run needs no line with its duration.
ELAPSED_FROM_S = 2
#: Lines that are printed even with ``quiet``; those of a service follow its name.
_LOUD = regex(r"(?:[\w.-]+: )?(?:warning:|failed:|No GPU)")
#: A command up to the end of its clause. It stays on one line, so that users can copy it.
_COMMAND = regex(r"(?<=\S )(?:cd \S+ && )?seatrial [a-z][^,;#]*")

#: Beginnings of choices that nearly every run has.
_USUAL = regex(
    "GPU injection=none:|base image=.*: small; no GPU|image size=|launcher=none: no sign|memory=.*: of this host's"
    "|python=.*: (every current framework|the base image's)|root file system=read-only|user=|/dev/shm=.*: (64 GiB|half)"
)
#: Interval between two reads of a study.
_LOOK_EVERY_S = 0.5


class Screen:
    """Prints for one command.

    ``json``: the answer on stdout is JSON, so the target's stdout goes to stderr too. ``whole``: print the whole
    receipt, not only its verdict. ``quiet``: of our own lines print only warnings, errors and a failed run's verdict.
    ``builds``: an image is being built, and the live line is about that.
    """

    def __init__(self, *, json: bool = False, whole: bool = False, quiet: bool = False) -> None:
        self._whole, self._quiet, self._json = whole, quiet, json
        self._err, self._out = terminal.console(stderr=True, soft_wrap=True), terminal.console()
        self._live: LiveLine | None = None
        self.builds = False
        self._unended: set[Stream] = set()
        self._printing = threading.RLock()  # threads and signal handlers print, too

    def note(self, line: str) -> None:
        """Print a line of ours."""
        terminal.printing()
        if self._quiet and not _LOUD.match(line):
            return
        with self._printing:
            if self._live is not None:
                self._live.clear()
            self.end_line("stderr")
            text = Text(terminal.at_words(f"seatrial {one_line(line)}", self._err, whole=_COMMAND))
            text.stylize("bold cyan", 0, len("seatrial"))
            self._err.print(text)

    @contextmanager
    def building(self) -> Iterator[Callable[[str], None]]:
        """Give a receiver of the lines of a build, and show its progress while open (BuildReporter)."""
        terminal.printing()
        if self._quiet:
            yield lambda line: None
            return
        from seatrial.images.build.progress import READY, BuildReporter

        def line(text: str) -> None:
            reporter.line(text)
            self.builds = not text.startswith(READY)

        shown = self._live
        live = shown or LiveLine()
        reporter = BuildReporter(
            self.note,
            lambda line: self._err.print(Text(f"  {line}", style="dim")),
            live=live if live.changes else None,
            whole=self._whole,
            printing=self._printing,
        )
        self._live = live
        try:
            with reporter:
                yield line
        finally:
            self._live, self.builds = shown, False

    @contextmanager
    def working(self, words: str) -> Iterator[None]:
        """Show words and seconds in the live line; lines of ours and a build take its place."""
        terminal.printing()
        live, began_s = LiveLine(self.note), time.monotonic()

        def show() -> None:
            nonlocal began_s
            with self._printing:
                if self.builds:
                    began_s = time.monotonic()
                elif not self._quiet:
                    live.show(f"{[words, *doing_now][-1]}, {time.monotonic() - began_s:.0f} s")

        self._live = live
        try:
            with ticking(show):
                yield
        finally:
            self._live = None
            live.clear()

    @contextmanager
    def showing_progress(self, run: Run) -> Iterator[Callable[[], None]]:
        """Give a function that, when called, shows the run's speed where it fits, while open."""
        if self._quiet:
            yield lambda: None
            return
        from seatrial.job.units import format_seconds
        from seatrial.runs.live import Progress

        progress, live, began_s = Progress(run), LiveLine(self.note), run.started_at() or time.time()

        def show() -> None:
            words = progress.words()
            if live.changes and (seconds := round(time.time() - began_s)) >= ELAPSED_FROM_S:
                words = f"{format_seconds(seconds)}: {words}" if words else f"running for {format_seconds(seconds)}"
            with self._printing:
                live.show(words)

        self._live = live
        try:
            yield show
        finally:
            with self._printing:
                self._live = None
                live.clear()

    def announce(self, plan: Plan) -> None:
        """Print the run that starts, where, and on which GPUs."""
        if self._quiet:
            self._no_gpu(plan)
        where = f"{plan.backend}, {plan.image.tag}" if plan.image else plan.backend
        self.note(f"{plan.run_id}: {plan.shown_target} on {plan.devices} ({where})")
        for choice in plan.choices:
            if choice.what == "packages" and "imports" in choice.reason and choice.value != "none":
                self.note(f"packages: {choice.value} ({choice.reason})")
            elif choice.what in ("Weights & Biases", "Hugging Face"):
                self.note(f"{choice.what}: {choice.value} ({choice.reason})")
        for warning in plan.warnings:
            self.note(f"warning: {warning}")

    def write(self, stream: Stream, data: bytes) -> None:
        """Write the target's output, byte for byte."""
        place: Stream = "stderr" if stream == "stderr" or self._json else "stdout"
        out = sys.stderr if place == "stderr" else sys.stdout
        with self._printing:
            if self._live is not None:
                self._live.before_output(place, data)
            out.flush()
            out.buffer.write(data)
            out.buffer.flush()
            if data:
                (self._unended.discard if data.endswith(b"\n") else self._unended.add)(place)

    def end_line(self, stream: Stream = "stdout") -> None:
        """End the line that the target, for example its progress bar, left open on this stream."""
        unended = self._unended if are_one_file(1, 2) else self._unended & {stream}
        if unended:
            (self._out if stream == "stdout" else self._err).print()
            self._unended -= unended

    def detached(self, plan: Plan) -> None:
        """Print the ID of a run in the background and how to follow it."""
        print(json.dumps({"id": plan.run_id, "name": plan.job.name}) if self._json else plan.run_id)
        if not self._quiet:  # otherwise it was printed above
            self._no_gpu(plan)
        self.note(f"is running in the background; follow it with seatrial runs logs -f {plan.job.name or plan.run_id}")

    def _no_gpu(self, plan: Plan) -> None:
        """Print that the automatic choice fell on the CPU, where no verdict follows that would."""
        if plan.agent.gpu_mode == "auto-cpu":
            from seatrial.receipt.outcome import NO_GPU

            self.note(NO_GPU.format("running"))

    def receipt(self, receipt: Receipt, run: Run, *, error_follows: bool = False) -> None:
        """Print the receipt and its page's path; no verdict if an error with the reason follows."""
        if self._json:
            print(receipt.model_dump_json(indent=1))
            return
        if self._quiet and receipt.outcome.level != "bad":
            return
        with importing():
            from seatrial.receipt.render.terminal import render, render_verdict  # a plan shows no receipt

        if self._whole or not error_follows:
            self.end_line()
        if self._whole:
            render(receipt, self._out)
        elif not error_follows:
            render_verdict(receipt, self._out, shown=run.plan().warnings)
        self._quiet = False
        self.note(f"receipt: {as_typed(run.place / 'receipt.html')}")

    def plan(self, plan: Plan, request: list[str], asks: Sequence[str] = (), *, built: bool = False) -> None:
        """Print a plan: target, warnings, and each choice with its reason; those that are as usual in one line.

        With ``whole`` also the reasons of these, and the engine's command. ``built``: its image is there.
        ``asks``: the permissions that the project's file requests, in full: a plan keeps less of them.
        """
        public = Names(secrets=secret_words(plan.job.target.args)).text
        if self._json:
            print(public(plan.model_dump_json(indent=1)))
            return
        out = self._out
        gpus = plan.devices.replace("CPU", "the CPU")
        head = f"Would run {one_line(plan.shown_target)} on {plan.backend}, on {gpus}"
        out.print(Text(public(head), style="bold"))
        if plan.image:
            size = next((f": {each.value}" for each in plan.choices if each.what == "image size"), "")
            out.print(Text(f"  image {plan.image.tag}{': ready (cached)' if built else size}"), soft_wrap=True)
        for warning in plan.warnings:
            out.print(Text("! ", style="bold yellow").append(one_line(warning), style="not bold default"))
        if asks:
            out.print(_wishes(asks), end="", soft_wrap=True)
        out.print()
        table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
        table.add_column(style="bold", no_wrap=True)
        table.add_column(overflow="fold")
        choices = [each for each in plan.choices if not (built and each.what in ("disk", "image size"))]
        everyday = (each for each in choices if _USUAL.match(f"{each.what}={each.value}: {each.reason}"))
        usual = [] if self._whole else [*everyday]
        for choice in choices:
            if choice not in usual:
                value, reason = public(one_line(choice.value)), public(choice.reason)
                table.add_row(choice.what, Text(value).append(f"\n{reason}", style="dim"))
        if words := "; ".join(f"{choice.what} {one_line(choice.value)}" for choice in usual):
            table.add_row("as usual", Text(words).append("\n--verbose: each with its reason", style="dim"))
        out.print(table)
        if request and self._whole:
            lines_of = ((" \\\n  " if word.startswith("-") else " ") + shlex.quote(word) for word in request)
            out.print(Text("\n" + public("".join(lines_of).strip()), style="dim"), soft_wrap=True)
        elif request and plan.container is not None:
            out.print(Text("\n--verbose prints the engine's command; --as docker one without seatrial", style="dim"))

    def asks(self, wishes: Sequence[str]) -> None:
        """Print the permissions that the project's file requests, before a question."""
        self._err.print(_wishes(wishes), end="")

    def manifests(self, rendered: list[Manifest]) -> None:
        """Print how to get the manifests, and with ``whole`` the manifests without binary data."""
        if self._whole:
            from seatrial.backends.kubernetes.manifests import as_yaml

            self._out.print(Text(f"\n{as_yaml(rendered, whole=False)}", style="dim"), soft_wrap=True)
        self._out.print("\nmanifests: seatrial plan … --as manifests > run.yaml; kubectl create -f run.yaml")


class SearchScreen(Screen):
    """Prints for one search, on standard error. Each trial has a thread and prints, too."""

    def __init__(self, **settings: bool) -> None:
        super().__init__(**settings)
        self._standing = self._live = LiveLine(self.note)
        self._looked_s, self._began_s = 0.0, time.monotonic()

    def show(self, search: Search) -> None:
        """Show the progress where there is space; called several times a second."""
        from seatrial.job.units import format_seconds
        from seatrial.search.results import seconds_left, summary_line

        now_s = time.monotonic()
        if now_s - self._looked_s < _LOOK_EVERY_S or self.builds or self._quiet:
            return
        self._looked_s = now_s
        trials = search.study.trials()
        left_s = seconds_left(trials, search.expected, search.parallel, search.ends_at)
        with self._printing:
            words = summary_line(trials, search.objective, search.expected, left_s)
            seconds = round(now_s - self._began_s)
            if self._standing.changes and seconds >= ELAPSED_FROM_S:
                words = f"{format_seconds(seconds)}: {words}"
            self._standing.show(words)

    def close(self) -> None:
        """Remove the line with the progress from the terminal."""
        with self._printing:
            self._standing.clear()


def _wishes(wishes: Sequence[str]) -> Text:
    lines = Text("This project asks for\n", style="bold")
    for wish in wishes:
        lines.append(f"  {one_line(wish)}\n", style="not bold")
    return lines


def front(*, trust: bool = False, as_json: bool = False, whole: bool = False, quiet: bool = False) -> Person:
    """Return this terminal for a group of runs; ``trust``: the project's requests are allowed without a question."""
    from seatrial.compose.console import Console as Person

    screen = Screen(json=as_json, whole=whole, quiet=quiet)

    def allow(job: Job) -> None:
        from seatrial.cli.job import require_consent  # most projects request nothing

        require_consent(job, screen, trust=trust)

    return Person(
        note=screen.note,
        building=screen.building,
        write=screen.write,
        show=lambda text: print(text, end="" if text.endswith("\n") else "\n"),
        allow=allow,
        working=screen.working,
    )
