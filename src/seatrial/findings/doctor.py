"""Failures of looking itself: what doctor reports when a check could not do its work."""

from seatrial.findings.known import Known

DOCTOR = (
    Known(
        id="check-crashed",
        title="A check of doctor failed itself",
        symptoms=(),
        cause="A defect of seatrial, or an answer of this machine that it does not know",
        fix="seatrial doctor --report doctor.json   # and attach it to an issue",
        sources=("seatrial: src/seatrial/doctor/examine.py",),
        severity="warning",
    ),
    Known(
        id="check-timed-out",
        title="A check of doctor did not end",
        symptoms=(),
        cause="What it asked hangs: a driver, an engine or a file system that waits for something",
        fix="sudo dmesg | tail -50",
        sources=("seatrial: src/seatrial/doctor/examine.py",),
        severity="warning",
    ),
    Known(
        id="check-not-loadable",
        title="A check of another package cannot be loaded",
        symptoms=(),
        cause="The package is broken, or made for another version of seatrial",
        fix="pip install --upgrade <the package>",
        sources=("seatrial: src/seatrial/doctor/chain.py",),
        severity="warning",
    ),
)
