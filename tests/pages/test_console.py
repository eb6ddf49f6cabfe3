"""The runner of blocks reports wrong output and accepts what may differ."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from . import console


def page(*blocks: str) -> str:
    return "# A page\n\n<!-- executable -->\n\n" + "\n\nWords.\n\n".join(blocks) + "\n"


def ran(text: str, folder: Path) -> list[str]:
    return console.run(text, folder, {"PATH": os.environ["PATH"]}, timeout_s=300)


def test_output_as_shown_passes(tmp_path: Path) -> None:
    text = page(
        "<!-- file: say.sh -->\n```sh\necho took 2.75 s\necho end\nexit 3\n```",
        "```console\n$ sh say.sh    # a comment\ntook 0.31  s\nend\n$ echo $?\n3\n$ cd /\n```",
        "```console\n$ pwd\n/\n$ printf 'a\\nb\\nc\\n'\na\n…\n```",
    )
    assert ran(text, tmp_path) == []


@pytest.mark.parametrize(
    ("block", "message"),
    [
        ("$ echo one\ntwo", "the page shows:\ntwo"),
        ("$ echo step 5\nstep 6", "printed:\nstep 5"),
        ("$ false", "ended with 1"),
        ("$ sh -c 'exit 3'\n$ echo $?\n4", "printed:\n3"),
        ("$ printf 'a\\nb\\n'\na", "printed:\na\nb"),
        ("$ exit 7\n$ echo later", "was not reached"),
        ("$ missing-program", "ended with 127"),
    ],
)
def test_wrong_output_is_reported(block: str, message: str, tmp_path: Path) -> None:
    (wrong, *_) = ran(page(f"```console\n{block}\n```"), tmp_path)
    assert message in wrong


def test_recorded_block_does_not_run(tmp_path: Path) -> None:
    text = page(
        "<!-- recorded 2026-11-21: gpu, docker -->\n```console\n$ touch ran\nnever\n```", "```console\n$ ls\n```"
    )
    assert ran(text, tmp_path) == []
    assert not (tmp_path / "ran").exists()


def test_block_that_is_not_run_has_a_reason_and_no_output(tmp_path: Path) -> None:
    text = page("<!-- not run: NAME is yours -->\n```console\n$ touch ran\n```", "```console\n$ ls\n```")
    assert ran(text, tmp_path) == []
    assert [block.not_run for block in console.blocks(text)] == ["NAME is yours", ""]
    with pytest.raises(ValueError, match="shows no output"):
        ran(page("<!-- not run: no time -->\n```console\n$ touch ran\ndone\n```"), tmp_path)
    assert not (tmp_path / "ran").exists()


def test_files_of_other_pages_are_named() -> None:
    text = page("<!-- file of ../start.md: train.py -->", "```console\n$ ls\n```")
    assert console.borrowed(text) == [("../start.md", "train.py")]
    assert len(list(console.blocks(text))) == 1


@pytest.mark.parametrize(
    "marker", ["recorded: gpu", "recorded 2026-11-21", "recorded 2026-11-21: moon", "not run", "skip"]
)
def test_unknown_marker_is_refused(marker: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"recorded|marker"):
        ran(page(f"<!-- {marker} -->\n```console\n$ true\n```"), tmp_path)


def test_a_line_of_output_without_a_command_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="begins with"):
        ran(page("```console\noutput\n```"), tmp_path)


@pytest.mark.parametrize(
    ("shown", "printed", "equal"),
    [
        ("run 20261122-221940-rxt4", "run 20270101-000000-abcd", True),
        ("loss 0.25", "loss 1,204.5", True),
        ("loss 0.25", "loss none", False),
        ("at … today", "at home today", True),
        ("at … today", "at home\ntoday", False),
        ("a.c", "abc", False),
        ("…\nend", "end", True),
        ("…\nend", "x\ny\nend", True),
        ("…\nend", "x\nend\nmore", False),
        ("", "anything", False),
        ("    took 0.3 s; all\n    is well", "    took 0.26 s;\n    all is well", True),
        ("    took 0.3 s; all\n    is well", "    took 0.26 s; all is\n    ill", False),
        ("    all\n    is well\nend", "    all is\n    well end", False),
        ("one two", "one\ntwo", False),
    ],
)
def test_what_counts_as_the_same(shown: str, printed: str, equal: bool) -> None:
    assert console.same(shown.splitlines(), printed.splitlines()) is equal
