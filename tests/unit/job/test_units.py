from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seatrial.backends.containers.mounts import parse_mount
from seatrial.errors import UsageError
from seatrial.job.keys import Mount
from seatrial.job.tables import Notify, from_flags
from seatrial.job.units import format_bytes, parse_bytes, parse_seconds
from tables import cases


@cases("text", "size")
def test_sizes(text: str, size: int) -> None:
    assert parse_bytes(text) == size


@cases("text", "seconds")
def test_durations(text: str, seconds: float) -> None:
    assert parse_seconds(text) == seconds


@pytest.mark.parametrize("text", ["8", "", "GB", "4 XB", "-1GB", "0GB", "4GB5MB", "１GB", "1e3m"])
def test_no_size(text: str) -> None:
    with pytest.raises(UsageError, match="512m, 8GB or 2GiB"):
        parse_bytes(text)


@cases("size", "text")
def test_sizes_for_humans(size: int, text: str) -> None:
    assert format_bytes(size) == text


@given(st.integers(1, 10**15))
def test_a_shown_size_reads_back_within_half_a_percent(size: int) -> None:
    assert parse_bytes(format_bytes(size)) == pytest.approx(size, rel=0.005, abs=0.5)


# ------------------------------------------------------------------- mounts


names = st.text("abc019 .-_äß~", min_size=1, max_size=8)
paths = st.lists(names, min_size=1, max_size=4).map(lambda parts: "/" + "/".join(parts))
mounts = st.builds(
    lambda source, target, ro: Mount(source=source, target=target, read_only=ro), paths.map(Path), paths, st.booleans()
)


@given(mounts)
def test_the_text_of_a_mount_parses_back(mount: Mount) -> None:
    assert Mount.parse(str(mount)) == mount


@pytest.mark.parametrize(
    "text", ["", ":", "/a", "/a:", ":/a", "/a:ro", "/a:/b:/c", "/a:/b:rx", "/a:/b:ro:ro", "/a:/b:"]
)
def test_what_is_no_mount(text: str) -> None:
    assert Mount.parse(text) is None
    with pytest.raises(UsageError, match=r"is not SOURCE:TARGET\[:ro\|rw\]"):
        parse_mount(text)


# ------------------------------------------------------ commands at the end


@cases("command", "shown")
def test_plan_has_the_program_of_a_command(command: str, shown: str) -> None:
    assert Notify(command=(command,)).hidden.command == (shown,)


def test_words_are_commands_and_retired_keys_of_a_stored_plan_are_left_out() -> None:
    assert from_flags(["sh", "tell me"]) == {"command": ["sh", "tell me"]}
    stored = {"desktop": True, "webhook": ["https://a.example/…"], "command": ["beep"]}
    assert Notify.model_validate(stored, strict=False) == Notify(command=("beep",))
