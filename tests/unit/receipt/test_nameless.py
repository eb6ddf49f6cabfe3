"""Receipts name neither user nor machine, in every rendering; nothing else changes."""

from __future__ import annotations

import io
import platform
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from seatrial.receipt.judge import write_receipt
from seatrial.receipt.model import Receipt, load
from seatrial.receipt.render import markdown, pages, terminal


@pytest.fixture
def identity(monkeypatch: pytest.MonkeyPatch) -> Any:
    def become(user: str, host: str, home: str) -> None:
        for name in ("USER", "LOGNAME"):
            monkeypatch.setenv(name, user)
        monkeypatch.setenv("HOME", home)
        monkeypatch.setattr(platform, "node", lambda: host)

    return become


def everywhere(scenario: Any, user: str, host: str, home: str) -> Any:
    """A run with its owner's names wherever a run can have them."""
    made = scenario("h200-success")
    text = f"{home}/out of {user} ({user}@{host}) on {host}, MY-0wn-value"
    for event in made.events:
        if event["type"] == "host.launched":
            event["host"] = host
        if event["type"] == "step":
            event[f"{user}_score"] = 1.0
    t = made.events[-1]["t"]
    keys = {"id": f"of-{user}", "severity": "warning", "message": text, "cause": text, "fix": text, "evidence": [text]}
    made.events.append({"t": t, "type": "note", "source": "agent", "message": text})
    made.events.append({"t": t, "type": "finding", "source": "agent", **keys})
    made.stderr += f"Traceback (most recent call last):\n  File x\nValueError: {text}\n"
    made.job |= {"name": f"{user}-run", "secrets": ("MINE",), "hosts": (host, f"b.{host}"), "node_rank": 0}
    made.agent |= {"node_rank": 0, "rendezvous_id": f"{user}-run"}
    made.criteria["metrics"] = {f"{user}_score": ">= 2"}
    made.args = ("--wandb_key", "9zebra8yak7xerus6wolf", "--max_tokens", "1000000")
    made.stdout += "logged in with 9zebra8yak7xerus6wolf\n"
    return made


def renderings(receipt: Receipt, folder: Path) -> str:
    console = Console(record=True, width=80, file=io.StringIO())
    terminal.render(receipt, console)
    write_receipt(folder, receipt)
    assert load(folder) == receipt
    written = [(folder / f"receipt.{suffix}").read_text() for suffix in ("json", "md", "html")]
    return "\n".join([console.export_text(), markdown.render(receipt), pages.render(receipt), *written])


WHO = ("zebedee", "florence.example.org", "/data/zebedee")


def test_no_rendering_has_user_host_home_or_secret(
    scenario: Any, tmp_path: Path, identity: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    identity(*WHO)
    monkeypatch.setenv("MINE", "MY-0wn-value")
    receipt = everywhere(scenario, *WHO).judge(tmp_path)
    text = renderings(receipt, tmp_path)
    for name in ("zebedee", "florence", "/data/", "MY-0wn-value"):
        assert name not in text, name
    assert "9zebra8yak" not in text and "--wandb_key <redacted> --max_tokens 1000000" in receipt.header.target
    assert "~/out of USER (USER@HOST) on HOST, <redacted>" in {entry.words for entry in receipt.timeline}
    assert receipt.header.host is None and receipt.header.name == "USER-run"
    assert receipt.header.part == "node 0 of 2; together: USER-run"
    assert any(criterion.id == "metric-USER_score" for criterion in receipt.criteria)


WORDS = ["a", "train", "cuda", "root", "user", "docker", "pass", "finished", "gpu"]
RUNS = ["h200-success", "contract-failure", "cuda-oom"] * 3


@pytest.mark.parametrize(("name", "run"), list(zip(WORDS, RUNS, strict=True)))
def test_a_name_that_is_a_word_changes_nothing_but_the_host(
    scenario: Any, tmp_path: Path, identity: Any, name: str, run: str
) -> None:
    receipts = []
    for who, with_names in ((("zebedee", "florence"), False), ((name, name), False), ((name, name), True)):
        folder = tmp_path / str(len(receipts))
        folder.mkdir()
        identity(*who, f"/home/{who[0]}")
        made = scenario(run)
        made.job["with_names"] = with_names
        receipts.append(made.judge(folder))
    header = receipts[2].header.model_copy(update={"host": None})
    assert receipts[0] == receipts[1] == receipts[2].model_copy(update={"header": header})
