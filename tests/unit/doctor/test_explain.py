"""explain: every string that programs print leads to its entry, however it was copied; logs, receipts and folders."""

from __future__ import annotations

import io
import json
import os
import subprocess
import tracemalloc
from pathlib import Path

import pytest

import fork_server
from seatrial.diagnosis import MEANING
from seatrial.doctor.explain import explain_stream, explain_text
from seatrial.findings.catalogue import Known, entries
from seatrial.images.build.failure import explain as explain_build
from seatrial.images.build.failure import readable
from seatrial.job.plan import ImagePlan
from symptoms import shown
from tables import cases, constant

PRINTED, CLUSTER, LOGS = (constant(__file__, name) for name in ("PRINTED", "CLUSTER", "LOGS"))
RECORDED = Path(__file__).parents[2] / "recorded"
ENGINE = json.loads((RECORDED / "engine-errors.json").read_text())
BUILDS = sorted((RECORDED / "images").glob("*/*.txt"))
#: A folder that the image does not have: no failure of a run.
UNKNOWN = ("docker-workdir", "podman-workdir", "docker-28.5-workdir")
LINES = [
    ENGINE[key]["stderr"].strip().splitlines()[-1 if key.startswith("podman") else 0]
    for key in ENGINE
    if key not in (*UNKNOWN, "docker-permission")
]
LOG = "epoch 1\nRuntimeError: CUDA error: no kernel image is available for execution on the device\n"
#: What ``{frames}`` of a log in the table stands for; ``{width}`` is a line as wide as a terminal.
FRAMES = "\n".join(
    f'  File "/opt/x/y{n}.py", line {n}, in call\n    return self._call(*args, **kwargs)' for n in range(120)
)


def ids(text: str) -> list[str]:
    return [finding.id for finding in explain_text(text)]


def run(*words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return fork_server.server().run(["explain", *words], folder, os.environ, 60)


@pytest.mark.parametrize("text", [*PRINTED, *CLUSTER], ids=lambda text: text[:40])
def test_what_is_printed_leads_to_its_entry(text: str) -> None:
    assert ids(text) == [{**PRINTED, **CLUSTER}[text]]


@pytest.mark.parametrize("key", ENGINE)
def test_engines_words_are_known(key: str) -> None:
    found = explain_text(ENGINE[key]["stderr"])
    assert bool(found) == (key not in UNKNOWN)
    assert not found or key.partition("-")[0].capitalize() in found[0].message or "{" not in found[0].message


@pytest.mark.parametrize("path", BUILDS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_a_build_log_gets_the_advice_of_the_build_error(path: Path) -> None:
    engine = path.parent.name.partition("-")[0]
    with path.open("rb") as log:
        [found] = explain_stream(log)
    lines = [text for line in path.read_text().splitlines() if (text := readable(line))]
    result = explain_build(lines, image=ImagePlan(tag="x:1", build=True, base="<base>"), engine=engine)
    assert found.cause and (result.cause or "").startswith(found.cause)
    if "{base}" not in next(entry.fix for entry in entries() if entry.id == found.id):
        assert result.run == found.fix


@pytest.mark.parametrize("text", [*LINES, *CLUSTER], ids=lambda text: text[:60])
def test_however_it_was_copied(text: str) -> None:
    """In other quotes, behind a time, and broken in two by a terminal or a logger."""
    whole, middle = ids(text), text.rfind(" ", 0, len(text) // 2)
    first, second, at = text[:middle], text[middle + 1 :], "2026-11-22 04:05:06"
    assert len(whole) == 1
    for copied in (
        f"2026-11-22T04:05:06.789Z {text}",
        f"[04:05:06] ERROR {text}",
        text.upper(),
        text.lower(),
        json.dumps({"level": "error", "msg": text}),
        text.replace('"', "'"),
        text.replace('"', "“"),
        f"{first}\n    {second}",
        f"{at} {first}\n{at} {second}",
    ):
        assert ids(copied) == whole, copied


@cases("part", "id")
def test_part_of_a_message_is_enough(part: str, id: str) -> None:
    [found] = explain_text(part)
    assert found.id == id and found.evidence
    assert id in [finding.id for finding in explain_stream(io.BytesIO(part.encode()))]


@cases("text")
def test_too_little_is_not_guessed(text: str) -> None:
    assert explain_text(text) == []


@pytest.mark.parametrize("entry", entries(), ids=lambda entry: entry.id)
def test_every_entry_is_found_by_its_id_and_its_symptoms(entry: Known) -> None:
    [finding] = explain_text(f" {entry.id}\n")
    assert finding.cause and finding.fix
    for symptom in entry.symptoms:
        assert ids(shown(symptom)) == [entry.id]


ALONE = [(entry.id, text) for entry in entries() for text in entry.symptoms if text.startswith("⟨")]


@pytest.mark.parametrize(("id", "symptom"), ALONE, ids=[text for _, text in ALONE])
def test_words_that_people_quote_are_a_failure_alone_and_none_inside_a_log(id: str, symptom: str) -> None:
    text = shown(symptom).strip("⟨⟩")
    assert ids(text) == ids(f" {text}:\n") == [id]
    assert ids(f"epoch 1 loss 0.4\n{text}\nepoch 2 loss 0.3\n") == []


def test_any_three_words_of_a_symptom_lead_to_it_or_to_few() -> None:
    for entry in entries():
        for symptom in entry.symptoms:
            words = symptom.split()
            if len(words) < 5 or any(mark in symptom for mark in "{…"):
                continue
            found = [finding.id for finding in explain_text(" ".join(words[1:5]))]
            assert not found or entry.id in found or len(found) == 1, (symptom, found)
            assert len(found) <= 3


@pytest.mark.parametrize("name", LOGS)
def test_a_log_as_it_is_pasted(name: str) -> None:
    """From a file, and with what PowerShell makes of it."""
    text, found = LOGS[name]
    text = text.replace("{frames}", FRAMES).replace("{width}", FRAMES[:70])
    for log in (text.encode(), text.replace("\n", "\r\n").encode(), text.encode("utf-16")):
        assert [finding.id for finding in explain_stream(io.BytesIO(log))] == list(found)


@cases("line")
def test_a_healthy_line_is_no_part_of_a_failure_either(line: str) -> None:
    assert explain_text(line) == []
    assert explain_text(f"epoch 1\n{line}\nepoch 2 loss 0.3\n") == []


@pytest.mark.parametrize(("size", "advised"), [("6.91 GiB", True), ("12.40 MiB", False)])
def test_reserved_and_unallocated_memory_of_an_oom_decides_the_fix(size: str, advised: bool) -> None:
    [found] = explain_text(
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB. Of the allocated memory 68.20 GiB is "
        f"allocated by PyTorch, and {size} is reserved by PyTorch but unallocated. If reserved"
    )
    assert found.id == "cuda-out-of-memory"
    assert ("expandable_segments:True" in found.fix and size in found.cause) is advised


@pytest.mark.parametrize("filler", [b"x" * 64, b"\xff\xfe\x00" * 21 + b"\n"], ids=["one line", "no UTF-8"])
def test_memory_stays_bounded(filler: bytes) -> None:
    failure = b"\nRuntimeError: CUDA out of memory. Tried \xff\xfe to allocate\n"
    stream = io.BytesIO(filler * ((6 << 20) // len(filler)) + failure)
    explain_stream(io.BytesIO((filler.rstrip(b"\n") + b"\n") * 30_000))  # what is compiled once does not count
    tracemalloc.start()
    found = explain_stream(stream)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert [finding.id for finding in found] == ["cuda-out-of-memory"]
    assert peak < 4 << 20


@pytest.mark.parametrize("cause", MEANING)
def test_what_bounds_a_run_is_explained(cause: str) -> None:
    (found,) = explain_text(cause)
    assert found.id == cause and MEANING[cause] in found.message  # type: ignore[index]
    assert "runs show" in (found.fix or "")


def test_a_receipt_and_the_folder_of_a_run(tmp_path: Path) -> None:
    found = {"id": "of-another-release", "severity": "warning", "message": "a sentence", "cause": "why", "fix": "do",
             "evidence": ["x"]}  # fmt: skip
    folder = tmp_path / "20261122-040506-abc"
    folder.mkdir()
    (folder / "receipt.json").write_text(json.dumps({"findings": [found, "no finding", {"severity": "bad"}]}))
    for name in (str(folder), str(folder / "receipt.json")):
        done = run(name, "--json", folder=tmp_path)
        assert done.returncode == 0 and json.loads(done.stdout) == [found]
    (folder / "receipt.json").write_text(json.dumps({"findings": []}))
    (folder / "stderr.log").write_text(LOG)
    assert "no-kernel-image" in run(str(folder), folder=tmp_path).stdout


@pytest.mark.parametrize("content", [b"", b"[1, 2]", b'{"findings": 3}', b"\xff\xfe\x00", b"[" * 100_000, b'{"a": '])
def test_a_file_that_holds_nothing(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "receipt.json").write_bytes(content)
    done = run("receipt.json", folder=tmp_path)
    assert done.returncode == 1 and "No known failure found" in done.stdout and not done.stderr


@pytest.mark.parametrize(("ended", "code"), [(0, 0), (1, 1), (None, 1)])
def test_run_without_a_known_failure_is_good_news_if_it_ended_well(
    tmp_path: Path, ended: int | None, code: int
) -> None:
    (tmp_path / "receipt.json").write_text(json.dumps({"findings": [], "exit_code": ended}))
    for words in ("receipt.json", str(tmp_path)):
        assert run(words, folder=tmp_path).returncode == code


@cases("words", "code", "printed")
def test_command_prints_what_it_knows(tmp_path: Path, words: list[str], code: int, printed: str) -> None:
    (tmp_path / "my train.log").write_text(LOG)
    (tmp_path / "empty.log").write_text("all is well\n")
    (tmp_path / "empty").mkdir()
    done = run(*words, folder=tmp_path)
    assert done.returncode == code and printed in done.stdout + done.stderr and bool(done.stderr) is (code == 2)
