"""A command inside a live pod with the caller's streams; with a terminal through kubectl, which owns those."""

from __future__ import annotations

import shutil
import sys
from typing import TYPE_CHECKING

from seatrial.backends.kubernetes.pods import Pod
from seatrial.errors import EngineError
from seatrial.system import command

if TYPE_CHECKING:
    from seatrial.backends.kubernetes.client import Cluster


def execute(cluster: Cluster, namespace: str, pod: Pod, argv: list[str], *, terminal: bool) -> int:
    """Run it in the run's own container; its exit code. Raises EngineError for a terminal where there is no kubectl."""
    if not terminal:
        out, err = sys.stdout.buffer.write, sys.stderr.buffer.write
        return cluster.call(cluster.execute(namespace, pod.name, argv, out, err, container=pod.container))
    if shutil.which("kubectl") is None:
        raise EngineError(
            "A terminal in a pod needs kubectl, which is not installed",
            run=f"seatrial runs exec RUN -- {argv[0]} < /dev/null",
        )
    context = ["--context", cluster.context] if cluster.context else []
    container = ["-c", pod.container] if pod.container else []
    words = ["kubectl", *context, "-n", namespace, "exec", "-it", pod.name, *container, "--", *argv]
    return command.call_interactive(words).exit_code
