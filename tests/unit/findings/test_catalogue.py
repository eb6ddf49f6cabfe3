from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import seatrial.findings
from seatrial.findings.catalogue import GAP, OF_A_BUILD, by_id, consequences_last, entries, without_consequences
from seatrial.findings.finding import SEVERITIES
from seatrial.system import agent_archive

CATALOGUE = entries()
FOLDER = Path(seatrial.findings.__file__).parent


def test_ids_are_unique_kebab_case() -> None:
    ids = [entry.id for entry in CATALOGUE]
    assert len(ids) == len(set(ids))
    assert all(re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", id) for id in ids)
    assert all(by_id(entry.id) is entry for entry in CATALOGUE)


def test_entries_are_complete() -> None:
    for entry in CATALOGUE:
        assert entry.severity in SEVERITIES and entry.sources, entry.id
        assert "\n" not in "".join((entry.title, entry.cause, entry.fix)), entry.id
        assert not entry.title.endswith(".") and not entry.cause.endswith("."), entry.id
        # A symptom that begins with a gap would be searched for in every line.
        assert all(symptom and not symptom.startswith(GAP) for symptom in entry.symptoms), entry.id
        # A whole text with a gap would be any log that begins or ends with it.
        assert not any(symptom.startswith("⟨") and GAP in symptom for symptom in entry.symptoms), entry.id


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.py")), ids=lambda path: path.name)
def test_the_agent_can_carry_it(path: Path) -> None:
    """Python 3.8's grammar, and nothing imported but the standard library and ourselves."""
    tree = ast.parse(path.read_text(), feature_version=(3, 8))
    imported = [node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    imported += [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    ours = [name for name in imported if name.startswith("seatrial.findings.")]
    assert set(imported) - set(ours) <= {
        "re", "shlex", "typing", "functools", "importlib", "seatrial.events", "json", "os", "posixpath", "sys", "zlib",
    }  # fmt: skip


def _count(place: Path) -> int:
    """Return how many entries the package in this folder or archive has."""
    code = "from seatrial.findings.catalogue import entries; print(len(entries()))"
    command = [sys.executable, "-I", "-c", f"import sys; sys.path.insert(0, {str(place)!r}); {code}"]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def test_agent_archive_carries_every_entry(tmp_path: Path) -> None:
    assert _count(agent_archive.build(tmp_path)) == len(CATALOGUE)


def test_entry_added_to_a_checkout_is_read_at_once(tmp_path: Path) -> None:
    package = shutil.copytree(FOLDER.parent, tmp_path / "seatrial", ignore=shutil.ignore_patterns("__pycache__"))
    sources = package / "findings" / "catalog"
    if not sources.is_dir():
        pytest.skip("a wheel carries no TOML")
    assert _count(tmp_path) == len(CATALOGUE)
    assert (package / "findings" / "__pycache__" / "catalog.json").is_file()
    with (sources / "disk.toml").open("a") as file:
        file.write('\n[disk-on-fire]\ntitle = "A disk burns"\ncause = "Heat"\nfix = "sudo poweroff"\nsources = ["x"]\n')
    assert _count(tmp_path) == len(CATALOGUE) + 1


def test_a_full_disk_follows_from_shared_memory_that_ran_out() -> None:
    shm, disk = by_id("shared-memory-too-small").finding(), by_id("disk-full").finding()
    assert without_consequences([disk, shm]) == [shm] and without_consequences([disk]) == [disk]


@pytest.mark.parametrize("missed", [entry.id for entry in entries() if entry.consequence == "missed"])
def test_consequences_are_left_out_or_last(missed: str) -> None:
    timeout, oom, killed = (by_id(id).finding() for id in (missed, "cuda-out-of-memory", "process-killed"))
    assert without_consequences([timeout, oom]) == without_consequences([timeout, killed, oom]) == [oom]
    assert without_consequences([timeout, killed]) == [killed] and without_consequences([timeout]) == [timeout]
    assert consequences_last([timeout, killed, oom]) == [oom, killed, timeout]
    notice = by_id("numpy-2-notice").finding()  # a warning, which causes nothing
    assert without_consequences([notice, timeout]) == [notice, timeout]


def test_entries_follow_from_entries_that_exist() -> None:
    assert all(by_id(cause) for entry in entries() for cause in entry.follows)
    assert all(by_id(id) for id in OF_A_BUILD)
