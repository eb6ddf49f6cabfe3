"""The progress line of a build, from lines of BuildKit and pip."""

from __future__ import annotations

from seatrial.images.build.progress import BuildProgress

#: A build of a project with torch, as Docker 20.10 and pip 26 print it, without BuildKit's numbers; shortened.
LINES = """\
[internal] load metadata for docker.io/library/python:3.11-slim-bookworm
sha256:1aa 10.00MB / 30.00MB 0.3s
sha256:1aa 30.00MB / 30.00MB 0.9s
[base 4/4] RUN --mount=type=bind,source=tools,target=/mnt python3 -m venv /opt/venv
[framework 1/2] RUN --mount=type=bind,source=framework,target=/media python3 -m pip install -r /media/requirements.txt
Processing /opt/wheels/torch-2.13.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl
Collecting sympy>=1.13.3
  Downloading sympy-1.14.0-py3-none-any.whl (6.3 MB)
Collecting networkx>=2.5.1
  Using cached networkx-3.6.1-py3-none-any.whl (2.1 MB)
  Downloading jinja2-3.1.6-py3-none-any.whl (134 kB)
Installing collected packages: sympy, networkx, jinja2, torch
exporting to image
"""


def test_line_has_step_packages_megabytes_and_rate() -> None:
    progress = BuildProgress(0.0)
    shown = []
    for second, line in enumerate(LINES.splitlines(), 1):
        begun = progress.line(line, float(second))
        shown.append((begun, progress.words(float(second))))
    framework = "installing the framework with pip"
    assert shown == [
        (True, "getting the base image, 1 s"),
        (False, "getting the base image, 2 s: 10 MB downloaded"),
        (False, "getting the base image, 3 s: 30 MB downloaded"),
        (True, "creating the virtual environment, 4 s: 30 MB downloaded"),
        (True, f"{framework}, 5 s: 30 MB downloaded"),
        (False, f"{framework}, 6 s: 1 package, 30 MB downloaded"),
        (False, f"{framework}, 7 s: 1 package, 30 MB downloaded"),
        (False, f"{framework}, 8 s: 2 packages, 30 MB downloaded; downloading sympy 1.14.0 (6.3 MB)"),
        (False, f"{framework}, 9 s: 2 packages, 36.3 MB downloaded; downloading sympy 1.14.0 (6.3 MB)"),
        (False, f"{framework}, 10 s: 3 packages, 36.3 MB downloaded"),
        (False, f"{framework}, 11 s: 4 packages, 36.3 MB downloaded, 6.3 MB/s; downloading jinja2 3.1.6 (134 KB)"),
        (False, f"{framework}, 12 s: 4 packages, 36.4 MB downloaded; unpacking 4 packages"),
        (True, "writing the image, 13 s: 4 packages, 36.4 MB downloaded"),
    ]
    assert progress.totals() == ["4 packages", "36.4 MB downloaded"]


def test_step_of_an_own_dockerfile_keeps_its_words() -> None:
    progress = BuildProgress(0.0)
    assert progress.line("[web 3/5] RUN --mount=type=cache,target=/c make -j all", 1.0)
    assert progress.words(2.0) == "RUN make -j all, 2 s"
    assert progress.line("STEP 4/9: RUN ./configure", 3.0) and progress.step == "RUN ./configure"
    assert not progress.line(
        "[base 3/4] RUN --mount=type=bind,source=tools,target=/mnt python3 /mnt/layer.py bare", 4.0
    )
    assert progress.line("pushing registry.example.org/a:1", 5.0) and progress.step == "pushing the image"


def test_virtual_environment_is_shown_from_its_first_second() -> None:
    progress = BuildProgress(0.0)
    assert progress.line("creating the virtual environment", 0.1)
    assert progress.words(4.0) == "creating the virtual environment, 4 s"
    assert progress.line("installing the packages with pip", 9.0)
    assert not progress.line("Collecting torch==2.13.0", 9.5)
    assert progress.words(12.0) == "installing the packages with pip, 12 s"


def test_debians_packages_count_as_well() -> None:
    progress = BuildProgress(0.0)
    progress.line("[stage-1 1/2] RUN apt-get update && apt-get install -y gcc", 1.0)
    progress.line("Get:1 http://deb.debian.org/debian bookworm/main amd64 Packages [8790 kB]", 2.0)
    progress.line("Get:2 http://deb.debian.org/debian bookworm/main amd64 gcc amd64 4:12.2 [5216 B]", 4.0)
    assert progress.words(5.0) == "installing Debian packages, 5 s: 2 packages, 8.79 MB downloaded, 4.39 MB/s"


#: As Docker 20.10 prints it where its output is no terminal.
PULL = """\
pulling registry.test/train:1
1: Pulling from train
2e280e872476: Already exists
460c90d0111e: Pulling fs layer
460c90d0111e: Verifying Checksum
460c90d0111e: Download complete
460c90d0111e: Pull complete
Status: Downloaded newer image for registry.test/train:1
"""


def test_of_an_image_that_is_pulled_the_layers_count() -> None:
    progress = BuildProgress(0.0)
    shown = []
    for second, line in enumerate(PULL.splitlines(), 1):
        progress.line(line, float(second))
        shown.append(progress.words(float(second)))
    name = "pulling registry.test/train:1"
    assert shown[:2] == [f"{name}, 1 s", f"{name}, 2 s"]
    assert shown[3:7] == [
        f"{name}, 4 s: 1 of 2 layers",
        f"{name}, 5 s: 1 of 2 layers",
        f"{name}, 6 s: 1 of 2 layers unpacked",
        f"{name}, 7 s: 2 of 2 layers unpacked",
    ]
    assert progress.totals() == []


def test_podman_gets_no_base_image_when_it_pulls_one() -> None:
    progress = BuildProgress(0.0)
    assert progress.line("pulling registry.test/train:1", 1.0)
    for line in ("Trying to pull registry.test/train:1...", "Copying blob sha256:2e28", "Writing manifest"):
        assert not progress.line(line, 2.0)
    assert progress.words(3.0) == "pulling registry.test/train:1, 3 s"
