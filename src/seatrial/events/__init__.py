"""Events: the evidence of a run, made and read here alone (schema: schema.py).

Standard library only, Python >= 3.8: the agent carries this package into containers.
"""

from seatrial.events.read import MAX_DEPTH, MAX_REPORT_BYTES, Lines, find, mark, of_type, parse, read, report, tail
from seatrial.events.schema import (
    EVIDENCE_TYPES,
    GPU_SAMPLE_KEYS,
    KINDS,
    MODEL_SUFFIXES,
    REPORT_TYPES,
    AgentFinished,
    AgentStarted,
    AgentSummary,
    Event,
    FilesOutside,
    Found,
    GpuCheck,
    GpuContext,
    GpuKernel,
    HostLaunched,
    HostPod,
    HostState,
    HostWitness,
    ModelsSaved,
    Note,
    ReportRefused,
    ReportUnreadable,
    Sample,
    Served,
    Signal,
    Step,
    TargetExited,
    TargetStarted,
    is_result,
    never_started,
)
from seatrial.events.write import (
    CHAIN_START,
    EVENTS_VARIABLE,
    Chain,
    EvidenceLog,
    StepLog,
    as_dict,
    encode,
    follow_chain,
    link,
    now,
    split_chain,
)

__all__ = [
    "CHAIN_START", "EVENTS_VARIABLE", "EVIDENCE_TYPES", "GPU_SAMPLE_KEYS", "KINDS", "MAX_DEPTH", "MAX_REPORT_BYTES",
    "MODEL_SUFFIXES", "REPORT_TYPES", "AgentFinished", "AgentStarted", "AgentSummary", "Chain", "Event",
    "EvidenceLog", "FilesOutside", "Found", "GpuCheck", "GpuContext", "GpuKernel", "HostLaunched", "HostPod",
    "HostState", "HostWitness", "Lines", "ModelsSaved", "Note", "ReportRefused", "ReportUnreadable", "Sample",
    "Served", "Signal", "Step", "StepLog", "TargetExited", "TargetStarted", "as_dict", "encode", "find",
    "follow_chain", "is_result", "link", "mark", "never_started", "now", "of_type", "parse", "read", "report",
    "split_chain", "tail",
]  # fmt: skip
