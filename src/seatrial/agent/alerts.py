"""Alerts: a command or a webhook for what the watchdog finds, in processes of their own.

Neither may delay the run: each gets ALERT_TIMEOUT_S, and its failure is a note in the evidence at most.
"""

import json
import os
import select
import signal
import subprocess
import sys
import threading
from typing import Any, Callable, Dict, Optional

from seatrial.agent.journal import Journal
from seatrial.agent.target import FORWARDED
from seatrial.findings.finding import Finding

ALERT_TIMEOUT_S = 20.0

_POST_TIMEOUT_S = 15.0


class AlertSender:
    """Sends findings to the alert's command or webhook.

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
            self._start(self._run_command, self._command, env)
        if self._webhook:
            body = json.dumps({"run": self._run_id, "finding": about, "text": text}).encode()
            self._start(self._run_post, self._webhook, body)

    def _start(self, run: Callable[..., Optional[str]], *about: Any) -> None:
        def send() -> None:
            try:
                trouble = run(*about)
            except (OSError, subprocess.TimeoutExpired) as error:
                trouble = type(error).__name__
            if trouble is not None:
                what = "webhook" if run == self._run_post else "command"
                self._journal.note("the alert's %s failed: %s" % (what, trouble[:200]))

        threading.Thread(target=send, name="alert", daemon=True).start()

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

    def _run_post(self, url: str, body: bytes) -> Optional[str]:
        """Send the body by POST from a forked child: TLS and HTTP would cost the agent 8 MB for good.

        The child runs no other program: a new one could be inspected until it had made itself undumpable. A process
        that knows the URL may post there, and the target is of the same user.
        """
        read_end, write_end = os.pipe()
        child = os.fork()
        if child == 0:
            _post(url, body, write_end)
        os.close(write_end)
        try:
            ready, _, _ = select.select([read_end], [], [], ALERT_TIMEOUT_S)
            if not ready:
                os.kill(child, signal.SIGKILL)
                return "TimeoutExpired"
            return os.read(read_end, 4096).decode("utf-8", "replace").strip() or None
        except ProcessLookupError:
            return "TimeoutExpired"
        finally:
            os.close(read_end)
            try:
                os.waitpid(child, 0)
            except ChildProcessError:  # the agent has reaped it
                pass


def _post(url: str, body: bytes, complain_to: int) -> None:
    """Send the body and end this forked child. The child gives up the agent's pipe of signals, which it shares."""
    try:
        signal.set_wakeup_fd(-1)
        for number in FORWARDED:
            signal.signal(number, signal.SIG_DFL)
        os.environ["OPENSSL_CONF"] = os.devnull  # the image's could have a library loaded
        certificates = os.path.join(os.path.dirname(os.path.dirname(sys.executable)), "cert.pem")
        if os.path.exists(certificates):
            os.environ.setdefault("SSL_CERT_FILE", certificates)
        from urllib.request import Request, urlopen

        request = Request(url, body, {"Content-Type": "application/json"})
        urlopen(request, timeout=_POST_TIMEOUT_S).read(1)
    except BaseException as error:  # noqa: BLE001  whichever it is, the agent's own code must not go on here
        os.write(complain_to, ("%s: %s" % (type(error).__name__, error)).encode("utf-8", "replace")[:1000])
    finally:
        os._exit(0)
