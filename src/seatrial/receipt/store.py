"""A run's receipt.json, receipt.md and receipt.html: written whole, read back, and without names to be shown."""

from __future__ import annotations

from pathlib import Path

from seatrial.errors import RunNotFoundError
from seatrial.job.model import Job
from seatrial.receipt.model import Receipt
from seatrial.system.host import Host
from seatrial.system.names import Names, names_of
from seatrial.system.records import Folder

#: Largest receipt that is read back; one of eight GPUs and a week has 2 MB. JSON takes up to forty times its size.
MOST_BYTES = 4 << 20

JSON_NAME = "receipt.json"
MARKDOWN_NAME = "receipt.md"
HTML_NAME = "receipt.html"

#: Keys whose values are of a fixed set, or an address: none holds a name, and none may change.
FIXED = frozenset((
    "backend", "container_id", "device", "digest", "energy_from", "engine", "git_commit", "id", "injection",
    "pci_bus_id", "pod_uid", "run_id", "severity", "uuid", "verdict", "x",
))  # fmt: skip


def load(run_dir: Path) -> Receipt:
    """Read the receipt of a run.

    Raises:
        RunNotFoundError: the file is missing. UntrustedPathError: it is not a receipt.
    """
    verify = f"seatrial runs verify {run_dir.name}"
    try:
        return Folder(run_dir).get(JSON_NAME, Receipt, max_bytes=MOST_BYTES, run=verify)
    except FileNotFoundError:
        raise RunNotFoundError(
            f"Run {run_dir.name} has no receipt: {JSON_NAME} is missing",
            cause="the run has not ended, or the file was deleted",
            run=verify,
        ) from None


def write_receipt(run_dir: Path, receipt: Receipt) -> None:
    """Write all three, each aside and then renamed: a reader sees a whole receipt, the old or the new.

    Raises:
        DiskError: no space or no permission; no half-written file is left.
    """
    from seatrial.receipt.render import markdown, pages  # a receipt that is only read does not need them

    texts = {
        MARKDOWN_NAME: markdown.render(receipt),
        HTML_NAME: pages.render(receipt),
        JSON_NAME: receipt.model_dump_json(indent=2) + "\n",  # last: a reader that waits for it finds the others
    }
    for name, text in texts.items():
        Folder(run_dir, mode=0o644).write(name, text)


def without_names(receipt: Receipt, job: Job) -> Receipt:
    """Remove the job's secrets from every text, and host, user and home folder unless the job keeps them."""
    hosts = [host for host in (*(receipt.header.host or "").split(", "), *job.hosts) if host]
    names = names_of(Host(), secrets=job.secrets, hosts=hosts)
    return scrubbed(receipt, Names(secrets=names.secrets) if job.with_names else names)


def scrubbed(receipt: Receipt, names: Names) -> Receipt:
    """Remove ``names``, and the host if it is one of them."""
    content = names.scrub(receipt.model_dump(), keep=FIXED)
    if names.hosts:
        content["header"]["host"] = None
    for item in (*content["criteria"], *content["findings"], *content["plots"]):
        item["id"] = names.text(item["id"])  # it may contain a metric's name, which is the script's
    return Receipt.model_validate(content)
