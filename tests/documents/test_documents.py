"""Every item of the five tutorials has a case, and what the case has is what happens."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from cli_project import ASKING, PROGRAM, environment
from cluster_api import cluster_api, version
from fork_server import server

from .cases import DOCUMENTS, MOST_PAGES, ROOT, Case, cases, coverage, documents, only_read

TIMEOUT_S = 240.0


def variants() -> list[Any]:
    """Each case that is typed, on files of our own and, where it has one, on the document's.

    With the documents here the core tier tries theirs alone.
    """
    found = []
    for case in cases():
        twice = case.has_original() and bool(documents())
        if not case.page:
            found.append(pytest.param(case, False, id=case.name, marks=[*case.marks, *[pytest.mark.slow] * twice]))
        if twice:
            found.append(pytest.param(case, True, id=f"{case.name}-original", marks=case.marks))
    return found


def test_every_item_has_a_case(record_property: Callable[[str, object], None]) -> None:
    record_property("summary", coverage())
    missing = documents().keys() - {identifier for case in cases() for identifier, _ in case.covers()}
    shown = [
        f"{item.id}:{item.digest} {item.kind}: {item.text[:80]!r}" for item in map(documents().get, missing) if item
    ]
    assert not missing, "no case in cases.toml for:\n" + "\n".join(sorted(shown))


def test_every_case_is_about_an_item_as_it_is() -> None:
    if not documents():
        pytest.skip(f"{DOCUMENTS} is not here")
    written = {identifier: item.digest for identifier, item in documents().items()}
    other = [f"{case.name}: {key}" for case in cases() for key, digest in case.covers() if written.get(key) != digest]
    assert not other, "these items are gone or were edited:\n" + "\n".join(other)


def test_few_items_have_only_a_page() -> None:
    assert len(only_read()) <= MOST_PAGES, sorted(only_read())
    assert all(case.reason and case.prints for case in cases() if case.page)


def test_names_are_unique() -> None:
    names = [case.name for case in cases()]
    assert sorted(set(names)) == sorted(names)


@pytest.mark.parametrize("case", [pytest.param(case, id=case.name, marks=case.marks) for case in cases() if case.page])
def test_page_has_the_answer(case: Case) -> None:
    page = plain((ROOT / case.page).read_text(encoding="utf-8"))
    assert not [part for part in case.prints if part not in page]


@pytest.mark.parametrize(("case", "original"), variants())
def test_case(case: Case, original: bool, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    if case.in_docker:
        request.getfixturevalue("docker_backend")
    if "torch" in case.needs:
        pytest.importorskip("torch")
    folder = tmp_path / request.getfixturevalue("project_name")  # by which its images are removed
    folder.mkdir()
    case.lay_out(folder, original=original)
    environ = {**environment(tmp_path), "HOME": str(tmp_path), "OMP_NUM_THREADS": "1", "NO_COLOR": "1", **case.environ}
    with nodes(case.cluster, tmp_path) if case.cluster else contextlib.nullcontext({}) as more:
        *before, words = case.commands
        for each in before:
            assert_exit(run(each, folder, {**environ, **more}), 0)
        if case.serves:
            output = fetched(words, case.serves, folder, {**environ, **more})
        else:
            structured = bool(case.ids) and "--json" not in words
            ended = run([*words, "--json"] if structured else words, folder, {**environ, **more})
            assert_exit(ended, case.exit)
            output = ended.stdout + ended.stderr
            missing = set(case.ids) - identifiers(ended.stdout) if case.ids else ()
            assert not missing, f"{missing} not in\n{output}"
    found = plain(output)
    assert not [part for part in case.shows if part not in found], output
    assert not [part for part in case.hides if part in found], output
    assert not [name for name in case.leaves if not (folder / name).exists()], output


def run(words: list[str], folder: Path, environ: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """A command to its end; what its project asks for is allowed, as there is no terminal to be asked on."""
    verb, *others = words
    trust = ["--trust"] if verb in ASKING and "--check" not in others else []
    return server().run([verb, *trust, *others], folder, environ, TIMEOUT_S)


def assert_exit(ended: subprocess.CompletedProcess[str], code: int) -> None:
    shown = f"seatrial {' '.join(ended.args)}: exit {ended.returncode}\n{ended.stdout}\n{ended.stderr}"
    assert ended.returncode == code, shown


def fetched(words: list[str], path: str, folder: Path, environ: Mapping[str, str]) -> str:
    """Return a serving verb's first output, and its answer under a path."""
    argv = [*PROGRAM, *words]
    serving = subprocess.Popen(
        argv, cwd=folder, env=dict(environ), text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    try:
        assert serving.stdout is not None
        printed = ""
        while not (address := re.search(r"http://127\.0\.0\.1:\d+", printed)):
            line = serving.stdout.readline()
            assert line, printed
            printed += line
        for _ in range(100):
            with contextlib.suppress(urllib.error.URLError):  # it prints, then listens
                return printed + str(urllib.request.urlopen(address[0] + path, timeout=60).read().decode())
            time.sleep(0.1)
        raise AssertionError(f"{address[0]}{path} does not answer")
    finally:
        serving.send_signal(signal.SIGINT)
        serving.communicate(timeout=60)


@contextlib.contextmanager
def nodes(kind: str, folder: Path) -> Iterator[dict[str, str]]:
    """Variables that lead to a constructed cluster: two nodes, with a GPU each where they are of kind ``gpu``."""
    capacity = {"cpu": "8", "memory": "32Gi", "pods": "110", **({"nvidia.com/gpu": "2"} if kind == "gpu" else {})}
    status = {"capacity": capacity, "allocatable": capacity, "conditions": [{"type": "Ready", "status": "True"}]}
    items = [{"metadata": {"name": name, "labels": {}}, "spec": {}, "status": status} for name in ("a", "b")]
    empty: dict[str, Any] = {"items": []}
    answers = {
        "/version": version(31),
        "/api/v1/nodes": {"kind": "NodeList", "apiVersion": "v1", "items": items},
        "/apis/kubeflow.org/v1": {"resources": [{"name": "pytorchjobs"}, {"name": "pytorchjobs/status"}]},
        "/apis/apps/v1/deployments": {"items": [{"metadata": {"name": "training-operator"}}]},
        "POST /apis/authorization.k8s.io/v1/selfsubjectaccessreviews": {"status": {"allowed": True}},
        "/api/v1/pods": empty,
        "/api/v1/events": empty,
        "/apis/node.k8s.io/v1/runtimeclasses": empty,
    }
    with cluster_api(folder, answers):
        yield {"KUBECONFIG": str(folder / "kubeconfig")}


def identifiers(text: str) -> set[str]:
    """Every ``id`` in what was printed as JSON, of what is wrong where a list has what is right, too."""
    found: set[str] = set()

    def look(value: Any) -> None:
        if isinstance(value, list):
            for each in value:
                look(each)
        elif isinstance(value, dict):
            found.update(str(value[key]) for key in ("id",) if key in value)
            for each in value.values():
                look(each)

    look(json.loads(text))
    return found


def plain(text: str) -> str:
    """On one line."""
    return " ".join(text.split())
