"""Receipt: what a run was, what it did, and whether that is what was asked for. Written as receipt.json."""

from __future__ import annotations

import importlib
from html import escape
from typing import Any, Literal

from pydantic import Field, computed_field

from seatrial.receipt.criterion import Criteria as Criteria
from seatrial.receipt.criterion import Criterion as Criterion
from seatrial.receipt.criterion import Verdict as Verdict
from seatrial.receipt.numbers import Series, rows, series_of
from seatrial.receipt.outcome import DOUBTFUL, End, Outcome, make_outcome
from seatrial.receipt.plot import STEPS_PLOT as STEPS_PLOT
from seatrial.receipt.plot import Line as Line
from seatrial.receipt.plot import Plot as Plot
from seatrial.receipt.record import Record as Record
from seatrial.receipt.tune_record import ChangesRecord as ChangesRecord
from seatrial.receipt.tune_record import TriedChange as TriedChange
from seatrial.receipt.tune_record import TuneFiles as TuneFiles
from seatrial.receipt.tune_record import TuneRecord as TuneRecord

SCHEMA_VERSION = 1


class Image(Record):
    """The image that ran: its tag, content digest (or local image ID) and unpacked size."""

    tag: str
    digest: str | None = None
    size_bytes: int | None = None


class ReceiptGpu(Record):
    """A GPU that was asked for. ``index`` is NVML's on the host."""

    index: int
    uuid: str
    name: str
    memory_bytes: int
    compute_capability: str | None = None


class Header(Record):
    """What ran, on what.

    Attributes:
        target: as one would type it. git_commit: of the project.
        part: which node of several hosts this was, and by what all their receipts are known as one run.
        device: ``gpu``, ``cpu`` (asked for), or ``cpu-fallback`` (``--gpus auto`` found no GPU).
        gpus: those that are known by name; gpus_asked: how many the run asked for, None in receipts of before.
        injection: how the GPUs came in (Plan.injection).
        driver, cuda: of the host's NVIDIA driver: its version and the newest CUDA it runs.
        framework: e.g. ``torch 2.13.0``; framework_cuda: the CUDA it was built for.
        earlier_starts: of a container that its engine started again: how each start before the last ended, as an exit
            code; None: the agent was killed before it could say.
        started_at, judged_at: Unix time in seconds.
    """

    run_id: str
    name: str | None = None
    target: str
    git_commit: str | None = None
    backend: str
    host: str | None = None
    part: str | None = None
    device: Literal["gpu", "cpu", "cpu-fallback"]
    gpus: tuple[ReceiptGpu, ...] = ()
    gpus_asked: int | None = None
    injection: str
    image: Image | None = None
    driver: str | None = None
    cuda: str | None = None
    framework: str | None = None
    framework_cuda: str | None = None
    python: str | None = None
    agent: str | None = None
    earlier_starts: tuple[int | None, ...] = ()
    started_at: float | None = None
    judged_at: float


class TrackerPage(Record):
    """Where a tracker shows the run: its page's address, which asks for the tracker's own token."""

    name: str
    url: str = Field(pattern=r"^https?://[^\s\"'<>]+$")


class Entry(Record):
    """One line of the timeline: seconds since the first event, and what happened."""

    at_s: float
    words: str


class ExitCause(Record):
    """Why the run ended: a stable ID (exit_cause.py has the table) and one sentence."""

    id: str
    words: str
    target_exit_code: int | None = None
    target_signal: int | None = None


class LogEnd(Record):
    """The end of what a run that failed had printed: its last traceback, and the last lines of both streams."""

    traceback: tuple[str, ...] = ()
    stderr: tuple[str, ...] = ()
    stdout: tuple[str, ...] = ()


class FindingRecord(Record):
    """A Finding as it is kept; see findings/finding.py."""

    id: str
    severity: Literal["error", "warning", "info"]
    message: str
    cause: str | None = None
    fix: str | None = None
    evidence: tuple[str, ...] = ()


class AdviceRecord(Record):
    """A change that would help, and what to expect of it."""

    change: str
    gain: str


class DiagnosisRecord(Record):
    """What bounded the run; see diagnosis/diagnosis.py. ``words`` is the cause and its meaning."""

    cause: str
    words: str
    tags: tuple[str, ...] = ()
    evidence: tuple[str, ...] = ()
    advice: tuple[AdviceRecord, ...] = ()
    mfu: float | None = None


class StepPart(Record):
    """One part of a step: an ID of diagnosis.anatomy.REGIONS, what it is, and what it takes. ``share``: 0 to 1."""

    id: str
    words: str
    seconds_per_step: float
    share: float


class StepAnatomy(Record):
    """What the steps of one rank were made of, as measured beside an unmodified script; of the target's own word.

    Attributes:
        seconds: from the end of the first step to the last, pauses between them included.
        parts: they add up to it. waits: lines of the script that wait for the GPU.
        facts: of the training, in words: device, parameters, precision, loader.
    """

    rank: int = 0
    steps: int
    seconds: float
    steps_per_s: float | None = None
    examples_per_s: float | None = None
    median_step_s: float | None = None
    parts: tuple[StepPart, ...] = ()
    waits: tuple[str, ...] = ()
    facts: dict[str, str] = Field(default_factory=dict)
    peak_bytes: int | None = None
    alloc_retries: int = 0
    compile_s: float | None = None


class GpuUse(Record):
    """What one GPU did in the training window; None where the chip or driver has no such counter."""

    uuid: str
    samples: int
    utilization_mean_pct: float | None = None
    utilization_max_pct: float | None = None
    sm_activity_mean_pct: float | None = None
    tensor_activity_mean_pct: float | None = None
    dram_activity_mean_pct: float | None = None
    memory_peak_bytes: int | None = None
    memory_total_bytes: int | None = None
    power_mean_w: float | None = None
    power_max_w: float | None = None
    temperature_max_c: float | None = None
    throttled: tuple[str, ...] = ()


class Metric(Record):
    """A number the target reported. ``best`` only where its name says which way is better."""

    name: str
    first: float
    last: float
    best: float | None = None
    reports: int


class GpuMemory(Record):
    """What ``--gpu-memory`` came to, as the hook in the target's processes told it.

    Attributes:
        limit_bytes: of each GPU, for each process.
        frameworks: whose allocators were given the limit; () where none started a GPU.
        peak_bytes: the most that one of them had of one GPU; None where none told it at its end.
        failed: why a framework could not be given the limit, or None.
    """

    limit_bytes: int
    frameworks: tuple[str, ...] = ()
    peak_bytes: int | None = None
    failed: str | None = None


class JaxCalls(Record):
    """A compiled function of the script's. ``calls_per_s``: from its first call's end to its last's."""

    name: str
    calls: int
    calls_per_s: float | None = None


class JaxUse(Record):
    """What JAX told of itself: for what, how often and how long XLA compiled, and the functions with the most calls."""

    version: str
    backends: tuple[str, ...] = ()
    compiled: int = 0
    compile_s: float = 0.0
    functions: tuple[JaxCalls, ...] = ()


class Measurements(Record):
    """What was measured.

    Attributes:
        wall_s: of the target. startup_s: from the first event to the target's start. window_start_s, window_s: the
            training window (evidence.py defines it), since the first event.
        energy_j: of all GPUs. energy_from: ``counter`` (the GPU's own) or ``power`` (samples, integrated).
        memory_peak_bytes: of the container, or of the target's processes where there is none.
        images, images_per_s: of training, as the target counted them.
        gpu_memory: None without ``--gpu-memory``. jax: None where the script did not use it, or without the hook.
    """

    wall_s: float | None = None
    startup_s: float | None = None
    window_start_s: float | None = None
    window_s: float | None = None
    window_begins: str | None = None
    samples: int = 0
    gpus: tuple[GpuUse, ...] = ()
    energy_j: float | None = None
    energy_from: Literal["counter", "power"] | None = None
    cpu_cores_mean: float | None = None
    cpu_cores_max: float | None = None
    memory_peak_bytes: int | None = None
    memory_limit_bytes: int | None = None
    shm_peak_bytes: int | None = None
    shm_total_bytes: int | None = None
    images: int | None = None
    images_per_s: float | None = None
    metrics: tuple[Metric, ...] = ()
    gpu_memory: GpuMemory | None = None
    jax: JaxUse | None = None


class ServedWeights(Record):
    """A file that the served model was loaded from, as the host read it before the start."""

    path: str
    digest: str
    bytes: int


class BatchCount(Record):
    """How many batches had so many rows."""

    rows: int
    batches: int


class ServingRecord(Record):
    """What a server did. Its own count, but for the weights, the energy and where it was reached.

    Attributes:
        model: its name in addresses. source: a recipe, a file, or a class of the user's.
        of_run: the run that made it. reported: the server has told its count; else all counts are zero.
        errors: HTTP status → answers. seconds: since it was ready.
        energy_j: of all GPUs over those seconds, from the agent's samples.
        examples: saved inputs that were compared before the first request. largest_difference: of their outputs.
    """

    model: str
    source: str
    of_run: str | None = None
    weights: tuple[ServedWeights, ...] = ()
    url: str = Field(pattern=r"^http://[^\s\"'<>]+$")
    reported: bool = False
    requests: int = 0
    errors: dict[str, int] = Field(default_factory=dict)
    seconds: float = 0.0
    p50_ms: float | None = None
    p95_ms: float | None = None
    p99_ms: float | None = None
    batches: tuple[BatchCount, ...] = ()
    queue_peak: int | None = None
    energy_j: float | None = None
    joules_per_1000: float | None = None
    warm_up_s: float | None = None
    examples: int | None = None
    largest_difference: float | None = None


class Seal(Record):
    """What the evidence under the receipt is worth.

    Attributes:
        lines, digest: of events.jsonl when it was judged; ``seatrial runs verify`` compares. digest: None while the run
            goes on, or where the chain is broken (``broken_at``: the first line that does not hold, from 1).
        missing: numbered lines of the agent that never arrived.
        alterable: why the target could have altered the evidence; None where it could not.
        refused: type of evidence → lines of the target that posed as it.
        witnessed: what the host's own driver saw of the run, in words; None where it did not look.
    """

    lines: int
    digest: str | None = None
    broken_at: int | None = None
    missing: int = 0
    alterable: str | None = None
    refused: dict[str, int] = Field(default_factory=dict)
    witnessed: str | None = None


class Receipt(Record):
    """The receipt.

    Attributes:
        seal: None for a receipt of before there were any.
        exit_code: what the command line returns for this run; see judge.py for the rule.
        serving: of a run that served a model.
        tune: of a run that tried changes. changes: that the run made to the script from outside.
        ending: of a run that failed, what its logs end with.
        pages: of trackers that were up when it ended.
        warnings: sentences no reader may miss: CPU instead of GPU, lines that could not be read, clock jumps.
    """

    schema_version: int = SCHEMA_VERSION
    header: Header
    seal: Seal | None = None
    exit_cause: ExitCause
    exit_code: int
    ending: LogEnd | None = None
    warnings: tuple[str, ...] = ()
    criteria: Criteria
    findings: tuple[FindingRecord, ...] = ()
    diagnosis: DiagnosisRecord | None = None
    anatomy: tuple[StepAnatomy, ...] = ()
    measurements: Measurements
    serving: ServingRecord | None = None
    tune: TuneRecord | None = None
    changes: ChangesRecord | None = None
    timeline: tuple[Entry, ...] = ()
    plots: tuple[Plot, ...] = Field(default=(), repr=False)
    pages: tuple[TrackerPage, ...] = ()

    @computed_field  # type: ignore[prop-decorator]  # mypy issue 1362
    @property
    def outcome(self) -> Outcome:
        """The headline. Made from the rest whenever it is read, so receipts of before have one, too."""
        return make_outcome(
            End(
                cause=self.exit_cause.id,
                words=self.exit_cause.words,
                exit_code=self.exit_code,
                device=self.header.device,
                served=self.serving is not None,
                doubtful=self.doubtful,
                criteria=self.criteria,
            )
        )

    @property
    def doubtful(self) -> bool:
        """It ended with 0, and by its own words did nothing, or failed."""
        return any(finding.id in DOUBTFUL for finding in self.findings)

    def metrics(self, name: str) -> Series:
        """The curve of a number that the target reported, or of one measured: ``metrics("loss").values``.

        Raises KeyError naming the curves that there are.
        """
        return series_of(self.plots, name)

    def to_pandas(self) -> Any:
        """A DataFrame with a row for each point of each curve: plot, name, x (what ``at`` counts), at, value, unit.

        Raises ModuleNotFoundError without pandas.
        """
        return importlib.import_module("pandas").DataFrame(list(rows(self.plots)))

    def _repr_markdown_(self) -> str:
        """As a notebook shows it where HTML is not."""
        return str(importlib.import_module("seatrial.receipt.rendering.markdown").render(self))

    def _repr_html_(self) -> str:
        """The page, in a frame of its own: its styles are not the notebook's."""
        page = importlib.import_module("seatrial.receipt.rendering.html").render(self)
        style = "width:100%;height:40em;border:1px solid #8886;border-radius:6px"
        return f'<iframe srcdoc="{escape(page)}" style="{style}" title="Receipt {escape(self.header.run_id)}"></iframe>'
