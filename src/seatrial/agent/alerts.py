"""Run the user's command for the watchdog's findings, in a separate process.

The command cannot delay the run: it ends after ALERT_TIMEOUT_S, and its failure is only a note in the evidence.
"""

import json
import os
import subprocess
import threading
from typing import Dict, Optional

from seatrial.agent.journal import Journal
from seatrial.findings.finding import Finding

ALERT_TIMEOUT_S = 20.0


class AlertSender:
    """Sends findings to the alert's command.

    Args:
        command: for /bin/sh, where the target runs; gets SEATRIAL_FINDING (JSON), SEATRIAL_FINDING_ID and
            SEATRIAL_FINDING_MESSAGE.
    """

    def __init__(self, run_id: str, command: Optional[str], journal: Journal) -> None:
        self._run_id, self._command, self._journal = run_id, command, journal

    def send(self, finding: Finding) -> None:
        """Start the command, if there is one, and return at once."""
        if self._command:
            env = {
                "SEATRIAL_FINDING": json.dumps(finding.to_dict()),
                "SEATRIAL_FINDING_ID": finding.id,
                "SEATRIAL_FINDING_MESSAGE": finding.message,
            }
            threading.Thread(target=self._run, args=(self._command, env), name="alert", daemon=True).start()

    def _run(self, command: str, env: Dict[str, str]) -> None:
        try:
            trouble = self._run_command(command, env)
        except (OSError, subprocess.TimeoutExpired) as error:
            trouble = type(error).__name__
        if trouble is not None:
            self._journal.note("the alert's command failed: %s" % trouble[:200])

    def _run_command(self, command: str, env: Dict[str, str]) -> Optional[str]:
        ended = subprocess.run(
            ["/bin/sh", "-c", command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=ALERT_TIMEOUT_S,
            env={**os.environ, **env, "SEATRIAL_RUN_ID": self._run_id},
            check=False,
        )
        if ended.returncode == 0:  # also where the agent, which reaps every child, has taken the exit code
            return None
        if ended.returncode < 0:
            return "it died of signal %d" % -ended.returncode
        return (ended.stdout.decode("utf-8", "replace").strip().splitlines() or ["no message"])[-1]
