from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seatrial.backends.containers.mounts import parse_mount
from seatrial.errors import UsageError
from seatrial.job.keys import Mount

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
