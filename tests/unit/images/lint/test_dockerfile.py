"""Instructions and commands of a Dockerfile: every form that BuildKit reads, with its line."""

from __future__ import annotations

from seatrial.images.lint.commands import pip_installs
from seatrial.images.lint.dockerfile import read_dockerfile
from seatrial.images.lint.instructions import read_instructions
from tables import cases


def rows(text: str) -> list[tuple[str, str, int]]:
    return [(each.name, " ".join(each.value.split()), each.line) for each in read_instructions(text)]


@cases("text", "expected")
def test_instructions(text: str, expected: list[tuple[str, str, int]]) -> None:
    assert rows(text) == list(expected)


def commands(run: str) -> list[tuple[str, int, bool]]:
    file = read_dockerfile(f"FROM a\n{run}\n")
    return [(each.text, each.line, each.sometimes) for each in file.commands]


@cases("run", "expected")
def test_commands(run: str, expected: list[tuple[str, int, bool]]) -> None:
    assert commands(run) == list(expected)


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
