"""Logs of failed builds as engines, pip, uv, apt and git print them: the first real cause is named, and its fix."""

# Logs stand here as they are printed: their lines are long.
# ruff: noqa: E501

from __future__ import annotations

from io import BytesIO

import pytest

from seatrial.doctor.explain import explain_stream
from seatrial.errors import ImageError
from seatrial.images.build.failure import explain, readable
from seatrial.job.plan import ImagePlan
from tables import constant

IMAGE = ImagePlan(tag="seatrial/demo:0123456789ab", build=True, base="python:3.11-slim-bookworm")

#: pip's frame around the error of a package's setup.
FRAME = """\
error: subprocess-exited-with-error

× {what} did not run successfully.
│ exit code: 1
╰─> [14 lines of output]
{inner}
      [end of output]

note: This error originates from a subprocess, and is likely not a problem with pip.
error: metadata-generation-failed

× Encountered error while generating package metadata.
╰─> See above for output.
"""


def framed(inner: str, what: str = "python setup.py egg_info") -> str:
    return FRAME.format(what=what, inner="\n".join("      " + line for line in inner.splitlines()))


#: What the step prints → (its command, the cause in the message, the fix).
CASES: dict[str, tuple[str, str, str, str]] = constant(__file__, "CASES")


def buildkit(command: str, output: str) -> list[str]:
    """Plain progress: another step that goes well beside it, its number and seconds, and the summary in the end."""
    lines = ["#5 [base 1/2] FROM docker.io/library/python:3.11-slim-bookworm", "#5 DONE 0.1s", f"#12 [builder 3/7] {command}",
             "#11 0.1 E: Unable to locate package from-another-step", "#11 0.2 debconf: delaying package configuration"]  # fmt: skip
    printed = output.rstrip("\n").splitlines()
    lines += [f"#12 {1 + at / 1000:.3f} {line}" for at, line in enumerate(printed)]
    lines += [
        "#11 CANCELED",
        f'#12 ERROR: process "/bin/sh -c {command[4:]}" did not complete successfully: exit code: 1',
    ]
    lines += ["------", f" > [builder 3/7] {command}:", *(f"{1.2:.3f} {line}" for line in printed[-10:]), "------",
              "Dockerfile:12", "--------------------", f"  12 | >>> {command}", "--------------------",
              f'ERROR: failed to build: failed to solve: process "/bin/sh -c {command[4:]}" did not complete successfully']  # fmt: skip
    return lines


def legacy(command: str, output: str) -> list[str]:
    return ["Step 1/7 : FROM python:3.11", " ---> 0123456789ab", "Step 2/7 : RUN apt-get update",
            "W: an older step warned: Temporary failure resolving 'x'", f"Step 3/7 : {command}",
            " ---> Running in abcdef012345", *output.rstrip("\n").splitlines(),
            f"The command '/bin/sh -c {command[4:]}' returned a non-zero code: 1"]  # fmt: skip


def podman(command: str, output: str) -> list[str]:
    return ["[1/2] STEP 1/7: FROM python:3.11 AS base", "[1/2] STEP 2/7: RUN true", "--> 0123456789ab",
            f"[1/2] STEP 3/7: {command}", *output.rstrip("\n").splitlines(),
            f'Error: building at STEP "{command}": while running runtime: exit status 1']  # fmt: skip


def shown(lines: list[str]) -> ImageError:
    return explain(lines, image=IMAGE, engine="docker")


@pytest.mark.parametrize("engine", [buildkit, legacy, podman])
@pytest.mark.parametrize("case", CASES)
def test_the_cause_is_the_first_real_one(case: str, engine: object) -> None:
    command, output, cause, fix = CASES[case]
    error = shown(engine(command, output))  # type: ignore[operator]
    assert cause in error.message, error.message
    assert fix in (error.run or ""), error.run
    assert "\n" not in error.message and "<" not in error.message.replace("numpy<2", "")
    assert "did not complete" not in (error.cause or "") and "returned a non-zero" not in (error.cause or "")


@pytest.mark.parametrize("case", [case for case in CASES if case != "metadata, cause unknown"])
def test_with_only_the_end_of_the_log(case: str) -> None:
    """Keep the part that a terminal still shows: the step's header has scrolled away, and words behind the cause are cut."""
    command, output, cause, _ = CASES[case]
    lines = buildkit(command, output)
    kept = [line for line in lines[3:] if line]
    assert cause in shown(kept).message


@pytest.mark.parametrize("case", CASES)
def test_explain_knows_the_log_too(case: str) -> None:
    command, output, _, _ = CASES[case]
    log = "\n".join(buildkit(command, output)).encode()
    assert explain_stream(BytesIO(log))


REGISTRY = constant(__file__, "REGISTRY")


@pytest.mark.parametrize("case", REGISTRY)
def test_what_fails_before_any_command(case: str) -> None:
    line, cause, fix = REGISTRY[case]
    lines = ["#2 [internal] load metadata for docker.io/library/python:3.99", "#2 ERROR: " + line.partition("solve: ")[2] or line,
             "------", " > [internal] load metadata for docker.io/library/python:3.99:", "------", line]  # fmt: skip
    error = shown([line] if case.startswith("COPY") else lines)
    assert cause in error.message and fix in (error.run or "")


def test_a_login_of_an_index_is_in_no_line_of_a_build() -> None:
    shown = readable("#9 1.27 Looking in indexes: https://me:hunter2@pypi.org/simple, https://t0ken@e.org/simple")
    assert shown == "Looking in indexes: https://<redacted>@pypi.org/simple, https://<redacted>@e.org/simple"
