from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from syrupy.assertion import SnapshotAssertion

from seatrial.errors import GpuContractError, GpuRequestError, SeatrialError
from seatrial.job.gpu_request import GpuRequest
from seatrial.job.gpus import select
from seatrial.job.plan import Gpu
from tables import cases


def gpu(index: int, mig: str | None = None) -> Gpu:
    uuid = f"MIG-{index}a{mig[-1]}" if mig else f"GPU-{index}b4e21ff-0000-0000-0000-000000000000"
    return Gpu(index=index, uuid=uuid, name="MIG 1g.10gb" if mig else "NVIDIA H200", memory_bytes=10**10, mig=mig)


FOUR = [gpu(index) for index in range(4)]
#: GPU 0 is in MIG mode with two slices, GPU 1 is whole.
MIXED = [gpu(0), gpu(0, "0:0"), gpu(0, "0:1"), gpu(1)]


@cases("text", "canonical")
def test_requests(text: str, canonical: str) -> None:
    request = GpuRequest.parse(text)
    assert str(request) in (canonical, f"device={canonical}")
    assert GpuRequest.parse(str(request)) == request


@cases("text")
def test_refused_requests(text: str, snapshot: SnapshotAssertion) -> None:
    with pytest.raises(GpuRequestError) as caught:
        GpuRequest.parse(text)
    assert reported(caught.value) == snapshot


LARGE = gpu(0, "0:2").changed(name="NVIDIA H200 MIG 3g.71gb")


@pytest.mark.parametrize(
    ("text", "available", "leased", "load", "chosen"),
    [
        ("none", FOUR, {}, {}, []),
        ("all", FOUR, {}, {}, [0, 1, 2, 3]),
        ("3,1", FOUR, {}, {}, [1, 3]),  # PCI order
        ("GPU-2b", FOUR, {}, {}, [2]),
        ("1", FOUR, {}, {}, [0]),
        ("1", FOUR, {0: "run-a"}, {}, [1]),
        ("2", FOUR, {}, {0: 0.9, 1: 0.5, 2: 0.1, 3: 0.2}, [2, 3]),
        ("device=0", FOUR, {0: "run-a"}, {}, [0]),  # named: shared
        ("0.5", FOUR, {0: "run-a"}, {}, [1]),
        ("auto", FOUR, {}, {0: 0.3}, [1]),
        ("auto", FOUR, {0: "run-a", 1: "run-b", 2: "run-c"}, {3: 1.0}, [3]),
        ("auto", [], {}, {}, []),
        ("0:1", MIXED, {}, {}, ["0:1"]),
        ("MIG-0a0", MIXED, {}, {}, ["0:0"]),
        ("1", MIXED, {}, {}, [1]),  # a whole one where there is one
        ("1", MIXED[:3], {}, {}, ["0:0"]),
        ("mig-1g.10gb", [*MIXED, LARGE], {}, {}, ["0:0"]),
        ("mig-3g.71gb", [*MIXED, LARGE], {}, {}, ["0:2"]),
    ],
)
def test_selection(
    text: str, available: list[Gpu], leased: dict[int, str], load: dict[int, float], chosen: list[int | str]
) -> None:
    selection = choose(text, available, leased, load)
    assert [gpu.mig or gpu.index for gpu in selection.gpus] == chosen
    reason = {"0.5": "0.5 of it", "auto": "" if available else "no NVIDIA GPU"}.get(text, "")
    assert reason in selection.choices[0].reason


def choose(text: str, available: list[Gpu], leased: dict[int, str] | None = None, load: dict[int, float] | None = None):
    return select(
        GpuRequest.parse(text),
        available,
        leased={FOUR[index].uuid: run for index, run in (leased or {}).items()},
        load={FOUR[index].uuid: busy for index, busy in (load or {}).items()},
    )


def test_auto_takes_every_idle_gpu_for_a_script_that_uses_several() -> None:
    idle = {"leased": {FOUR[0].uuid: "run-a"}, "load": {FOUR[1].uuid: 0.5}}
    selection = select(GpuRequest.parse("auto"), FOUR, **idle, multi_gpu_evidence="train.py:31 init_process_group")
    assert [gpu.index for gpu in selection.gpus] == [2, 3]
    assert "train.py:31 init_process_group" in selection.choices[0].reason


REFUSED = {
    "ambiguous uuid": ("GPU-0", [gpu(0), gpu(0).changed(index=1, uuid="GPU-0b5")], {}),
    "same gpu twice": ("0,GPU-0b4", FOUR, {}),
    "parent of slices": ("device=0", MIXED, {}),
    "slice and gpu": ("all", MIXED, {}),
    "held": ("2", FOUR, {0: "run-a", 1: "run-b", 3: "run-c"}),
    "auto held": ("auto", FOUR[:1], {0: "run-a"}),
}
NOT_HERE = {
    "no such index": ("5", FOUR, {}),
    "no such device": ("device=7", FOUR, {}),
    "no such uuid": ("GPU-ffff", FOUR, {}),
    "no such slice": ("3:0", MIXED, {}),
    "no such profile": ("mig-7g.141gb", MIXED, {}),
    **{f"{text} without a GPU": (text, [], {}) for text in ("1", "all", "device=0", "GPU-abc")},
}


@pytest.mark.parametrize("name", [*REFUSED, *NOT_HERE])
def test_refused_selections(name: str, snapshot: SnapshotAssertion) -> None:
    """A GPU that this machine has not breaks the contract: exit code 3."""
    with pytest.raises((GpuRequestError, GpuContractError)) as caught:
        choose(*{**REFUSED, **NOT_HERE}[name])
    assert isinstance(caught.value, GpuContractError) is (name in NOT_HERE)
    assert caught.value.exit_code == (3 if name in NOT_HERE else 2)
    assert reported(caught.value) == snapshot


@given(
    st.integers(1, 5).map(str) | st.permutations("01234").map(lambda some: "device=" + ",".join(some[:3])),
    st.sets(st.integers(0, 3)),
    st.dictionaries(st.integers(0, 3), st.floats(0, 1)),
)
def test_a_selection_is_unique_ordered_and_free_for_counts(text: str, held: set[int], load: dict[int, float]) -> None:
    try:
        chosen = [gpu.index for gpu in choose(text, FOUR, dict.fromkeys(held, "run-a"), load).gpus]
    except SeatrialError:
        return
    assert chosen == sorted(set(chosen))
    assert not text.isdigit() or (len(chosen) == int(text) and not held & set(chosen))


def reported(error: SeatrialError) -> dict[str, str | None]:
    return {"message": error.message, "cause": error.cause, "run": error.run}
