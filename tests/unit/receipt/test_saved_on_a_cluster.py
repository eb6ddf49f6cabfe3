"""Models that pods saved: the agents tell, since the host cannot look."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cluster_plans import a_cluster_plan
from seatrial.receipt.evidence import RunEvidence, gather
from seatrial.receipt.sections.criteria import judge_saved_model

STARTED = [
    {"t": 1.0, "type": "agent.started", "source": "agent"},
    {"t": 1.1, "type": "target.started", "source": "agent"},
]
FILES = [{"path": "digits.pth", "bytes": 90}, {"path": "digits.safetensors", "bytes": 80}]


def told(tmp_path: Path, files: list[dict[str, Any]] | None, models: str | None = "pvc:models", **criteria: Any) -> Any:
    saved = [] if files is None else [{"t": 9.0, "type": "models.saved", "source": "agent", "files": files}]
    kubernetes = {"models": models} if models else {}
    plan = a_cluster_plan(tmp_path, kubernetes=kubernetes, criteria=criteria)
    return judge_saved_model(
        cast(RunEvidence, SimpleNamespace(plan=plan, files_since=1.0, evidence=gather([*STARTED, *saved])))
    )


def test_the_largest_is_named(tmp_path: Path) -> None:
    found = told(tmp_path, FILES)
    assert (found.verdict, found.evidence) == (
        "pass",
        "digits.pth, 90 B and 1 more file, on pvc:models, written by this run",
    )


@pytest.mark.parametrize(
    ("files", "models", "criteria", "verdict", "says"),
    [
        ([], "pvc:models", {}, "fail", "no matching file was written to pvc:models"),
        ([{"path": "a.pt", "bytes": 0}], "pvc:models", {}, "fail", "a.pt was written to pvc:models but is empty"),
        ([], None, {}, "not judged", "names no volume"),
        (FILES, None, {}, "pass", "deleted with it"),
        (None, "pvc:models", {}, "not judged", "no agent reported"),
        (FILES, "pvc:models", {"model": ["/models/*.safetensors"]}, "pass", "digits.safetensors"),
        (FILES, "pvc:models", {"model": ["other.pt"]}, "fail", "no matching file"),
    ],
)
def test_what_is_missing(
    tmp_path: Path, files: Any, models: str | None, criteria: dict[str, Any], verdict: str, says: str
) -> None:
    found = told(tmp_path, files, models, **criteria)
    assert found.verdict == verdict and says in found.evidence
