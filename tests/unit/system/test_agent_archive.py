"""The agent's archive."""

import ast
import json
import lzma
import subprocess
import sys
import zipfile
from io import BytesIO
from pathlib import Path

import pytest

from agent_process import FLOOR
from cluster_plans import DDP, a_cluster_plan
from seatrial.backends.kubernetes.manifests import as_yaml, cluster_manifests
from seatrial.findings.catalogue import LAYERS, entries
from seatrial.system import agent_archive


def test_same_content_same_bytes_and_made_once(tmp_path):
    first, second = agent_archive.build(tmp_path / "a"), agent_archive.build(tmp_path / "b")
    assert first.name == second.name and first.read_bytes() == second.read_bytes()
    before = first.stat().st_mtime_ns
    assert agent_archive.build(tmp_path / "a") == first and first.stat().st_mtime_ns == before
    assert [path.name for path in (tmp_path / "a").iterdir()] == [first.name] and first.stat().st_mode & 0o777 == 0o644


def test_it_holds_the_agents_spaces_and_nothing_of_the_host(tmp_path):
    names = zipfile.ZipFile(agent_archive.build(tmp_path)).namelist()
    folders = {name.split("/")[1] for name in names if name.count("/") > 1}
    assert folders == {"agent", "common", "compat", "events", "probe", "findings"} and "pynvml.py" in names


#: Of all annotations of an object together; `kubectl apply` keeps the whole manifest in one of them.
#: Source: kubernetes apimachinery pkg/api/validation/objectmeta.go, TotalAnnotationSizeLimitB.
ANNOTATIONS_BYTES = 256 * 1024


@pytest.fixture(scope="module")
def of_pods(tmp_path_factory):
    return agent_archive.build_for_pods(tmp_path_factory.mktemp("agent"), ())


def within(archive: Path) -> dict[str, bytes]:
    """The files of the archive within the archive."""
    inner = zipfile.ZipFile(BytesIO(lzma.decompress(zipfile.ZipFile(archive).read("agent.xz"))))
    return {name: inner.read(name) for name in inner.namelist()}


def test_kubectl_apply_takes_the_manifests_of_a_run_of_several_nodes(tmp_path, of_pods):
    (tmp_path / "project").mkdir()
    script = DDP + "# sixteen letters\n" * 900
    plan = a_cluster_plan(tmp_path / "project", script=script, nodes=2, gpus="8", secrets=["WANDB_API_KEY"])
    manifests = cluster_manifests(plan, of_pods)
    sizes = [len(json.dumps(manifest)) for manifest in manifests]
    whole = len(as_yaml(manifests))
    assert whole < 255_000 < ANNOTATIONS_BYTES, f"{whole:,} bytes: leave out what pods never run"
    assert max(sizes) < 255_000 and len(sizes) == 4


@pytest.mark.parametrize(
    "python", [sys.executable, pytest.param(FLOOR, marks=pytest.mark.skipif(FLOOR is None, reason="no Python 3.8"))]
)
def test_an_archive_runs_without_anything_installed(of_pods, tmp_path, python):
    for archive in (of_pods, agent_archive.build(tmp_path)):
        argv, env = [python, "-I", "-S", str(archive)], {"TMPDIR": str(tmp_path)}
        done = subprocess.run(argv, capture_output=True, text=True, check=False, env=env)
        assert done.returncode == 2 and "usage: agent.pyz PLAN_JSON" in done.stderr, done.stderr


def test_the_archive_of_pods_has_the_same_code_on_the_same_lines(of_pods, tmp_path):
    def code(source: bytes) -> list[tuple[str, int | None]]:
        tree = ast.parse(source)
        for node in ast.walk(tree):
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
                node.value.value = ""  # a docstring
        return [(ast.dump(node), getattr(node, "lineno", None)) for node in ast.walk(tree)]

    whole, lean = zipfile.ZipFile(agent_archive.build(tmp_path)), within(of_pods)
    sources = [name for name in lean if name.endswith(".py")]
    for name in sources:
        assert code(lean[name]) == code(whole.read(name)), name
    assert len(sources) > 60 and b"Copyright" in lean["pynvml.py"]


def test_the_archive_of_pods_has_every_failure_that_the_agent_names(of_pods):
    lean, known = within(of_pods), {entry.id: layer for layer in LAYERS for entry in entries((layer,))}
    catalog = json.loads(lean["seatrial/findings/catalog.json"])
    words = {
        node.value
        for name, source in lean.items()
        if name.startswith(("seatrial/agent/", "seatrial/probe/", "seatrial/findings/gpu_missing"))
        and name.endswith(".py")
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    named = words & set(known)
    assert len(named) > 15 and all(catalog[known[id]].get(id) for id in named)


def test_horovods_stand_in_comes_along_where_a_run_needs_it(of_pods, tmp_path):
    with_it = within(agent_archive.build_for_pods(tmp_path, ("horovod",)))
    assert {name for name in with_it if "horovod" in name} and not {
        name for name in within(of_pods) if "horovod" in name
    }
