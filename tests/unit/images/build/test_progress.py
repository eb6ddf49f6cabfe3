"""The progress line of a build, from lines of BuildKit and pip."""

from __future__ import annotations

from pathlib import Path

import pytest

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


@pytest.mark.parametrize(
    ("line", "step"),
    [
        ("[web 3/5] RUN --mount=type=cache,target=/c make -j all", "RUN make -j all"),
        ("STEP 4/9: RUN ./configure", "RUN ./configure"),
        ("[base 3/4] RUN --mount=type=bind,source=tools,target=/mnt python3 /mnt/layer.py bare", "preparing the build"),
        ("pushing registry.example.org/a:1", "pushing the image"),
    ],
)
def test_step_of_an_own_dockerfile_keeps_its_words(line: str, step: str) -> None:
    progress = BuildProgress(0.0)
    assert progress.line(line) == (step != "preparing the build")
    assert progress.step == step


def test_packages_are_counted_against_those_of_the_lock(tmp_path: Path) -> None:
    progress = BuildProgress(0.0)
    progress.line("installing the packages with pip")
    progress.line(f"packages to install: 2 in {tmp_path}")
    progress.line("Downloading torch-2.13.0-cp311-none-linux.whl (180.5 MB)")
    assert progress.words(1.0).startswith("installing the packages with pip, 1 s: 1 of 2 packages, 180 MB downloaded")
    progress.line("Using cached numpy-2.4.0-cp311-none-linux.whl")
    progress.line("Installing collected packages: numpy, torch")
    (tmp_path / "lib/python3.11/site-packages/numpy-2.4.0.dist-info").mkdir(parents=True)
    assert progress.words(2.0).endswith("2 packages, 180 MB downloaded; unpacked 1 of 2 packages")
