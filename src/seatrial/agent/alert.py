"""Alerts: a command or a webhook for what the watchdog finds, in processes of their own.

Neither may hold the run up: they get ALERT_TIMEOUT_S, and what becomes of them is a note at most.
"""

import json
import os
import subprocess
import sys
import threading
from typing import Dict, Optional

from seatrial.agent.journal import Journal
from seatrial.events import WEBHOOK_SECRET
from seatrial.findings.finding import Finding

ALERT_TIMEOUT_S = 20.0

#: In a child: TLS and HTTP would cost the agent 8 MB for good. The URL is no argument: everybody may read those.
_POST = """
import os, sys, urllib.request
url, body = os.environ["SEATRIAL_WEBHOOK"], sys.stdin.buffer.read()
request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
urllib.request.urlopen(request, timeout=15).read(1)
"""


class Alerts:
    """Sends findings out.

    Args:
        command: for /bin/sh, where the target runs; gets SEATRIAL_FINDING (JSON), SEATRIAL_FINDING_ID and
            SEATRIAL_FINDING_MESSAGE.
        webhook: gets a POST of {"run": ID, "finding": {…}, "text": one line} ("text" is what chat services show).
    """

    def __init__(self, run_id: str, command: Optional[str], webhook: Optional[str], journal: Journal) -> None:
        self._run_id, self._command, self._webhook, self._journal = run_id, command, webhook, journal

    def send(self, finding: Finding) -> None:
        """Start what is configured and return at once."""
        about = finding.to_dict()
        text = "%s: %s (run %s)" % (finding.id, finding.message, self._run_id)
        if self._command:
            env = {
                "SEATRIAL_FINDING": json.dumps(about),
                "SEATRIAL_FINDING_ID": finding.id,
                "SEATRIAL_FINDING_MESSAGE": finding.message,
            }
            self._start("command", ["/bin/sh", "-c", self._command], env, b"")
        if self._webhook:
            body = json.dumps({"run": self._run_id, "finding": about, "text": text}).encode()
            self._start("webhook", [sys.executable, "-I", "-c", _POST], {WEBHOOK_SECRET: self._webhook}, body)

    def _start(self, what: str, argv: "list[str]", env: Dict[str, str], body: bytes) -> None:
        run = threading.Thread(target=self._run, args=(what, argv, env, body), name="alert", daemon=True)
        run.start()

    def _run(self, what: str, argv: "list[str]", env: Dict[str, str], body: bytes) -> None:
        try:
            ended = subprocess.run(
                argv,
                input=body,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=ALERT_TIMEOUT_S,
                env={**os.environ, **env, "SEATRIAL_RUN_ID": self._run_id},
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            self._journal.note("the alert's %s failed: %s" % (what, type(error).__name__))
            return
        # The agent reaps every child and may have taken the exit code, which is 0 here then; a webhook that went well
        # prints nothing.
        if ended.returncode > 0 or (what == "webhook" and ended.stdout):
            last = ended.stdout.decode("utf-8", "replace").strip().splitlines()[-1:] or ["no message"]
            self._journal.note("the alert's %s failed: %s" % (what, last[0][:200]))
