"""The progress line of a build, from lines of BuildKit and pip."""

from __future__ import annotations

from seatrial.images.build.progress import BuildProgress
from tables import cases


@cases("lines", "shown")
def test_line_has_step_packages_and_megabytes(lines: str, shown: tuple[str, ...]) -> None:
    progress = BuildProgress(0.0)
    found = []
    for second, line in enumerate(lines.splitlines(), 1):
        progress.line(line)
        found.append(progress.words(float(second)))
    assert tuple(found) == shown


@cases("line", "step")
def test_step_of_an_own_dockerfile_keeps_its_words(line: str, step: str) -> None:
    progress = BuildProgress(0.0)
    assert progress.line(line) == (step != "preparing the build")
    assert progress.step == step
