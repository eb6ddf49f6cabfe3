"""Device code runs on GPUs by NVIDIA's rules, for all who judge by them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from seatrial.findings import gpu_missing
from seatrial.findings.device_code import covers, runs_on
from seatrial.images.slim.program.device_code import CUBIN, PTX, Entry, never_loaded

majors, minors = st.integers(2, 30), st.integers(0, 9)
versions = st.tuples(majors, minors)


def named(kind: str, version: tuple[int, int], suffix: str = "") -> str:
    return f"{kind}_{version[0]}{version[1]}{suffix}"


def cc(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"


@given(versions, versions)
def test_device_code_runs_by_nvidias_rules(code: tuple[int, int], device: tuple[int, int]) -> None:
    in_family = device[0] == code[0] and device[1] >= code[1]
    assert runs_on(named("sm", code), cc(device)) == in_family
    assert runs_on(named("compute", code), cc(device)) == (device >= code)
    for kind in ("sm", "compute"):
        assert runs_on(named(kind, code, "a"), cc(device)) == (device == code)
        assert runs_on(named(kind, code, "f"), cc(device)) == in_family


@given(st.text())
def test_what_is_no_architecture_runs_nowhere(name: str) -> None:
    assert not runs_on(name, "9.0") or name.startswith(("sm_", "compute_"))


@given(st.lists(versions), versions)
def test_all_judges_of_device_code_agree(kept: list[tuple[int, int]], device: tuple[int, int]) -> None:
    runs = covers([named("sm", each) for each in kept], cc(device))
    assert gpu_missing.keeps_code_for([cc(each) for each in kept], cc(device)) == runs
    entries = [Entry(CUBIN, 10 * major + minor, (at, at + 1)) for at, (major, minor) in enumerate(kept)]
    assert (len(never_loaded(entries, {10 * device[0] + device[1]})) < len(entries)) == runs
    texts = [Entry(PTX, 10 * major + minor, (at, at + 1)) for at, (major, minor) in enumerate(kept)]
    read = covers([named("compute", each) for each in kept], cc(device))
    assert (len(never_loaded(texts, {10 * device[0] + device[1]})) < len(texts)) == read
