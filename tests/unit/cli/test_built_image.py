"""The lines that ``seatrial build`` prints of an image."""

from __future__ import annotations

import pytest

from fakes import a_plan
from seatrial.cli.plan import print_built
from seatrial.images.build.build import BuildResult
from seatrial.images.build.verify import Verification
from seatrial.runs.build import Built

MB = 1_000_000


def test_contents_have_no_row_of_zero_megabytes(capsys: pytest.CaptureFixture[str]) -> None:
    packages = {"torch": 700 * MB, "numpy": 60 * MB, **{f"small{number}": 400_000 for number in range(20)}}
    saved = {"files": 90_000, "unused": 12 * MB, "arch": 0}
    contents = {"packages": packages, "kinds": {"text": 5}, "device_code": {}, "twice": {}, "saved": saved}
    built = Built(
        a_plan(), BuildResult("sha256:1", {}, 2.0, cached=False), Verification("3.11", {}, {}), None, None, contents
    )
    print_built(built, as_json=False)
    printed = capsys.readouterr().out
    assert " 0 MB" not in printed and "Kinds of files" not in printed and "small" not in printed
    assert "20 more    8 MB" in printed and "--slim unused      12 MB" in printed
