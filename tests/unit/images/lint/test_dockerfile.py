"""Instructions and commands of a Dockerfile: every form that BuildKit reads, with its line."""

from __future__ import annotations

import pytest

from seatrial.images.lint.commands import pip_installs
from seatrial.images.lint.dockerfile import read_dockerfile
from seatrial.images.lint.instructions import read_instructions


def rows(text: str) -> list[tuple[str, str, int]]:
    return [(each.name, " ".join(each.value.split()), each.line) for each in read_instructions(text)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("from a as b\nrun x\n", [("FROM", "a as b", 1), ("RUN", "x", 2)]),
        ("RUN a \\\n  b \\\n c\nCMD d", [("RUN", "a b c", 1), ("CMD", "d", 4)]),
        ("RUN a \\\n# no\n\n   # no\n b\nUSER u", [("RUN", "a b", 1), ("USER", "u", 6)]),
        ("# escape=`\nRUN a `\n b\\\nUSER u", [("RUN", "a b\\", 2), ("USER", "u", 4)]),
        ("# syntax=docker/dockerfile:1\n# escape=`\nRUN a `\n b", [("RUN", "a b", 3)]),
        ("# a comment\n# escape=`\nRUN a \\\n b", [("RUN", "a b", 3)]),
        ("RUN <<EOF\nFROM nothing\nEOF\nUSER u", [("RUN", "<<EOF FROM nothing", 1), ("USER", "u", 4)]),
        ("RUN <<-'E' sh\n\tFROM a\n\tE\nUSER u", [("RUN", "<<-'E' sh FROM a", 1), ("USER", "u", 4)]),
        ("COPY <<A <<B /x/\n1\nA\n2\nB\nUSER u", [("COPY", "<<A <<B /x/ 1 2", 1), ("USER", "u", 6)]),
        ("RUN cut <<< $X\nUSER u", [("RUN", "cut <<< $X", 1), ("USER", "u", 2)]),
        ("RUN 'x <<EOF\nUSER u", [("RUN", "'x <<EOF", 1), ("USER", "u", 2)]),
        ("RUN echo $((1<<EOF))\nUSER u", [("RUN", "echo $((1<<EOF))", 1), ("USER", "u", 2)]),
        ("\ufeffFROM a\r\nRUN b \\\r\n c\r\nUSER u\r\n", [("FROM", "a", 1), ("RUN", "b c", 2), ("USER", "u", 4)]),
        ('ONBUILD RUN x\nSHELL ["bash"]', [("ONBUILD", "RUN x", 1), ("SHELL", '["bash"]', 2)]),
        ("RUN a \\", [("RUN", "a", 1)]),
        ("RUN <<EOF\nnever ends", [("RUN", "<<EOF never ends", 1)]),
    ],
)
def test_instructions(text: str, expected: list[tuple[str, str, int]]) -> None:
    assert rows(text) == expected


def commands(run: str) -> list[tuple[str, int, bool]]:
    file = read_dockerfile(f"FROM a\n{run}\n")
    return [(each.text, each.line, each.sometimes) for each in file.commands]


@pytest.mark.parametrize(
    ("run", "expected"),
    [
        ("RUN a && b; c | d", [("a", 2, False), ("b", 2, False), ("c", 2, False), ("d", 2, False)]),
        ("RUN a && \\\n # no\n b 'x && y'", [("a", 2, False), ("b x && y", 4, False)]),
        ("RUN a # the rest && \\\n b", [("a", 2, False)]),
        ("RUN git clone x#y && b", [("git clone x#y", 2, False), ("b", 2, False)]),
        ("RUN a || b", [("a", 2, False), ("b", 2, True)]),
        ("RUN if [ -n $X ]; then a; fi; b", [("[ -n $X ]", 2, True), ("a", 2, True), ("b", 2, False)]),
        ('RUN ["a", "b c"]', [("a b c", 2, False)]),
        ("RUN --mount=type=cache,target=/x \\\n sudo -E X=1 pip install y", [("pip install y", 3, False)]),
        ("RUN bash -lc 'a && b \"c\"'", [("a", 2, False), ("b c", 2, False)]),
        ("RUN conda run -n env pip install y", [("pip install y", 2, False)]),
        ("RUN <<EOF bash -e\na\nb \\\n  c\nEOF", [("a", 3, False), ("b c", 4, False)]),
        ("RUN python3 <<EOF\nimport torch\nEOF", [("python3 <<EOF", 2, False)]),
        ("RUN echo 'never closed", [("echo 'never closed", 2, False)]),
    ],
)
def test_commands(run: str, expected: list[tuple[str, int, bool]]) -> None:
    assert commands(run) == expected


def test_variables_are_filled_in() -> None:
    file = read_dockerfile(
        'ARG CUDA=12.4.1 OS="ubuntu22.04"\nARG BASE=nvidia/cuda:${CUDA}-base-$OS\n'
        "FROM --platform=linux/amd64 ${BASE} AS Build\n"
        "ARG CUDA\nENV A=$CUDA B=${NONE:-x} C=${CUDA:+yes} D=\\$A\nENV OLD form of it\nRUN echo ${A} $NONE\n"
        "FROM build\nENV A=2\n"
    )
    assert file.stages[0].image == "nvidia/cuda:12.4.1-base-ubuntu22.04"
    assert file.stages[1].image == file.stages[0].image and file.chain == (0, 1)
    known = {name: setting.value for name, setting in file.environments[0].items()}
    assert (known["A"], known["B"], known["C"], known["OLD"]) == ("12.4.1", "x", "yes", "form of it")
    assert [each.text for each in file.commands] == ["echo 12.4.1 $NONE"]
    assert file.lasting("A") and file.environments[1]["A"].value == "2" and "CUDA" not in file.environments[1]


def test_variables_that_double_stay_small() -> None:
    file = read_dockerfile("FROM a\nENV A=xx\n" + "ENV A=$A$A\n" * 100)
    assert len(file.environments[0]["A"].value) <= 4000


def test_stage_that_is_copied_from_is_shipped() -> None:
    file = read_dockerfile(
        "FROM a AS one\nFROM b AS two\nFROM c AS three\nFROM d\nCOPY --from=Two /x /x\nCOPY --from=0 /y /y\n"
    )
    assert file.shipped == {0, 1, 3} and file.chain == (3,)


def test_installs_have_packages_files_and_sources() -> None:
    file = read_dockerfile(
        "FROM a\nRUN python3.11 -m pip --no-cache-dir install -U 'torch>=2' x[y]==1 -r a.txt --requirement=b.txt "
        "--index-url https://i/cpu -f https://j 2>&1 | tee log && uv pip install --system z && pip uninstall q\n"
    )
    first, second = pip_installs(file.commands)
    assert first.packages == ["torch>=2", "x[y]==1"] and first.files == ["a.txt", "b.txt"]
    assert first.sources == ["https://i/cpu", "https://j"] and first.package("torch") == "torch>=2"
    assert second.packages == ["z"]
