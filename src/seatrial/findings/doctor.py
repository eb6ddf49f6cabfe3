"""Failures of looking itself: what doctor reports when a check could not do its work."""

from seatrial.findings.known import Known

DOCTOR = (
    Known(
        id="check-crashed",
        title="A doctor check itself failed",
        symptoms=(),
        cause="A bug in seatrial, or an unexpected answer from this machine",
        fix="seatrial doctor --report doctor.json   # and attach it to an issue",
        sources=("seatrial: src/seatrial/doctor/examine.py",),
        severity="warning",
    ),
    Known(
        id="check-timed-out",
        title="A doctor check timed out",
        symptoms=(),
        cause="What it queried hangs: a driver, an engine or a file system",
        fix="sudo dmesg | tail -50",
        sources=("seatrial: src/seatrial/doctor/examine.py",),
        severity="warning",
    ),
    Known(
        id="check-not-loadable",
        title="A check from another package cannot be loaded",
        symptoms=(),
        cause="The package is broken, or built for another version of seatrial",
        fix="pip install --upgrade <the package>",
        sources=("seatrial: src/seatrial/doctor/chain.py",),
        severity="warning",
    ),
)
