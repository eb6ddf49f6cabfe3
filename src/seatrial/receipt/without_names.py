"""A receipt is made to be shown: it tells neither whose it is nor on which machine, unless the job asks for names."""

from __future__ import annotations

import os

from seatrial.job.model import Job
from seatrial.receipt.model import Receipt
from seatrial.system.names import Names, names_of

#: Keys whose values are of a fixed set, or address something: none holds a name, and none may change.
FIXED = frozenset((
    "backend", "container_id", "device", "digest", "energy_from", "engine", "git_commit", "id", "injection",
    "pci_bus_id", "pod_uid", "run_id", "severity", "uuid", "verdict", "x",
))  # fmt: skip


def without_names(receipt: Receipt, job: Job) -> Receipt:
    """The same without host, user, home folder and the job's secrets, in any text."""
    hosts = [host for host in (*(receipt.header.host or "").split(", "), *job.hosts) if host]
    return scrubbed(receipt, names_of(os.environ, secrets=job.secrets, hosts=hosts))


def scrubbed(receipt: Receipt, names: Names) -> Receipt:
    """The same without ``names``, and without the host where they have one."""
    content = names.scrub(receipt.model_dump(), keep=FIXED)
    if names.hosts:
        content["header"]["host"] = None
    for item in (*content["criteria"], *content["findings"], *content["plots"]):
        item["id"] = names.text(item["id"])  # a metric's name may be in it, which is the script's
    return Receipt.model_validate(content)
