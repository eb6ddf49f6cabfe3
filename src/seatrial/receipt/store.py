"""A run's receipt.json, receipt.md and receipt.html: written whole, read back, and without names to be shown."""

from __future__ import annotations

import os
from pathlib import Path

from pydantic import ValidationError

from seatrial.errors import DiskError, RunNotFoundError
from seatrial.job.model import Job
from seatrial.receipt.model import Receipt
from seatrial.system.host import Host
from seatrial.system.names import Names, names_of
from seatrial.system.nofollow import read_regular
from seatrial.system.typed_path import as_typed

#: Largest receipt that is read back; one of eight GPUs and a week has 2 MB.
MOST_BYTES = 64 << 20

JSON_NAME = "receipt.json"
MARKDOWN_NAME = "receipt.md"
HTML_NAME = "receipt.html"

#: Keys whose values are of a fixed set, or address something: none holds a name, and none may change.
FIXED = frozenset((
    "backend", "container_id", "device", "digest", "energy_from", "engine", "git_commit", "id", "injection",
    "pci_bus_id", "pod_uid", "run_id", "severity", "uuid", "verdict", "x",
))  # fmt: skip


def load(run_dir: Path) -> Receipt:
    """Read the receipt of a run.

    Raises:
        RunNotFoundError: the file is missing or not a receipt.
    """
    path = run_dir / JSON_NAME
    try:
        return Receipt.model_validate_json(read_regular(path, most_bytes=MOST_BYTES))
    except FileNotFoundError:
        raise RunNotFoundError(
            f"Run {run_dir.name} has no receipt: {path.name} is missing",
            cause="the run has not ended, or the file was deleted",
            run=f"seatrial runs verify {run_dir.name}",
        ) from None
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        wrong = f"{place}: {first['msg'].lower()}" if place else "it is not JSON, or not a receipt"
        raise RunNotFoundError(
            f"The receipt of run {run_dir.name} cannot be read by this version of seatrial",
            cause=f"{path}: {wrong}",
            run=f"seatrial runs verify {run_dir.name}",
        ) from error


def write_receipt(run_dir: Path, receipt: Receipt) -> None:
    """Write all three, each aside and then renamed: a reader sees a whole receipt, the old or the new.

    Raises:
        DiskError: no space or no permission; no half-written file is left.
    """
    from seatrial.receipt.render import html, markdown  # a receipt that is only read does not need them

    texts = {
        MARKDOWN_NAME: markdown.render(receipt),
        HTML_NAME: html.render(receipt),
        JSON_NAME: receipt.model_dump_json(indent=2) + "\n",  # last: a reader that waits for it finds the others
    }
    for name, text in texts.items():
        aside = run_dir / f".{name}.{os.getpid()}"
        try:
            aside.write_text(text, encoding="utf-8")
            aside.replace(run_dir / name)
        except OSError as error:
            aside.unlink(missing_ok=True)
            raise DiskError(
                f"cannot write {run_dir / name}: {error.strerror}",
                run=f"df -h {as_typed(run_dir)}; ls -ld {as_typed(run_dir)}",
            ) from error


def without_names(receipt: Receipt, job: Job) -> Receipt:
    """Remove host, user, home folder and the job's secrets from every text."""
    hosts = [host for host in (*(receipt.header.host or "").split(", "), *job.hosts) if host]
    return scrubbed(receipt, names_of(Host(), secrets=job.secrets, hosts=hosts))


def scrubbed(receipt: Receipt, names: Names) -> Receipt:
    """Remove ``names``, and the host if it is one of them."""
    content = names.scrub(receipt.model_dump(), keep=FIXED)
    if names.hosts:
        content["header"]["host"] = None
    for item in (*content["criteria"], *content["findings"], *content["plots"]):
        item["id"] = names.text(item["id"])  # it may contain a metric's name, which is the script's
    return Receipt.model_validate(content)
