"""One reader of what the host keeps of runs: no code opens a file of a record by itself."""

from __future__ import annotations

import ast
from pathlib import Path

import seatrial

SOURCE = Path(seatrial.__file__).parent

#: Rooms that read records of runs, groups and leases, and answer on a terminal or a page.
ROOMS = ("runs", "receipt", "monitor", "compose", "cli", "backends", "search", "doctor/explain.py")

#: Reads of other files, by their function: of the package, of the machine, of the project, of what a run saves.
OTHERS = frozenset((
    "backends/base.py: this_machine", "backends/containers/client.py: _docker_answer",
    "backends/kubernetes/manifests.py: cluster_manifests",
    "backends/local.py: ensure_venv", "cli/completion.py: _gpu_words", "cli/completion.py: answer",
    "cli/monitor.py: dashboard", "cli/terminal.py: prepare",
    "doctor/explain.py: explain_file", "monitor/app.py: dashboard_app",
    "monitor/prometheus.py: families", "monitor/reading.py: __init__",
    "receipt/render/pages.py: style_sheet", "runs/leases.py: _holder",
    "runs/jobs.py: _weights", "runs/models.py: _is_pickle",
    "runs/models.py: _whole_safetensors",
    "runs/models.py: _whole_zip", "search/ray_cluster.py: check_nodes", "search/ray_cluster.py: _node_check",
    "search/ray_cluster.py: check", "search/runner.py: _belongs", "search/search.py: _joined",
    "search/trial.py: _sources", "search/study.py: _changing", "search/study.py: _this_host",
    "search/study.py: acquire",
))  # fmt: skip


def reads(path: Path) -> list[str]:
    """``file: function`` of each call that opens a file to read it, or may wait for one."""
    found = []
    tree = ast.parse(path.read_text())
    for function in ast.walk(tree):
        for node in ast.walk(function) if isinstance(function, ast.FunctionDef) else ():
            if isinstance(node, ast.Call):
                name = ast.unparse(node.func).rpartition(".")[2] if isinstance(node.func, ast.Attribute) else ""
                bare = isinstance(node.func, ast.Name) and node.func.id in ("open", "ArchiveFile", "file_bytes")
                if (
                    bare or name in ("read_text", "read_bytes", "file_bytes") or (name == "open" and node.args)
                ) and not _is_other(node):
                    found.append(f"{path.relative_to(SOURCE)}: {function.name}")
    return found


def _is_other(call: ast.Call) -> bool:
    """``os.open`` makes a descriptor with flags of its own; ``webbrowser.open`` and ``tarfile.open`` open no file."""
    text = ast.unparse(call)
    return text.startswith(("os.open(", "webbrowser.open(", "tarfile.open(", "nofollow.", "read_text(", "read_bytes("))


def test_no_code_reads_a_file_of_a_record_past_the_reader() -> None:
    paths = [each for part in ROOMS for each in (sorted((SOURCE / part).rglob("*.py")) or [SOURCE / part])]
    found = sorted({each for path in paths for each in reads(path)})
    assert found == sorted(OTHERS)
