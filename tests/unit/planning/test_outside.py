"""Paths that a script names and the container would not have."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from seatrial.errors import UsageError
from seatrial.job.keys import Mount
from seatrial.job.model import DataMount, Job, Target
from seatrial.job.script import script_facts
from seatrial.planning import process as process_parts
from seatrial.planning.container import outside
from seatrial.planning.container.outside import (
    refuse_lost_writes,
    warn_of_lost_writes,
    warn_of_missing_data,
    warn_of_outside,
    with_models,
)
from tables import cases

TARGET = Target(kind="script", value="code/train.py")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for folder in ("project/code", "project/inside", "data", "models v2"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "data" / "x.csv").touch()
    (tmp_path / "inside").mkdir()
    (tmp_path / "inside" / "x").touch()
    (tmp_path / "project" / "inside" / "x").touch()
    return tmp_path / "project"


def warnings(project: Path, source: str, **job: Any) -> list[str]:
    (project / "code" / "train.py").write_text(source)
    made = Job(project=project, target=TARGET, **job)
    return list(warn_of_outside(made, script_facts(TARGET, project)))


def test_an_absolute_path(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = project.parent / "data"
    monkeypatch.setattr(outside, "_IN_IMAGES", (str(data.parent / "inside"),))  # a test's folder may be under /tmp
    [reported] = warnings(project, f"open('{data}/x.csv')\nopen('{data.parent}/inside/x')\n")
    assert reported.endswith(f"--mount {data}/x.csv:{data}/x.csv")


def missing_data(project: Path, source: str, **job: Any) -> list[str]:
    (project / "code" / "train.py").write_text(source)
    return list(warn_of_missing_data(Job(project=project, target=TARGET, **job), script_facts(TARGET, project)))


def test_data_set_in_no_mount_is_named(project: Path) -> None:
    source = "import torchvision\ntorchvision.datasets.MNIST(root='/input/MNIST', train=True)\n"
    [reported] = missing_data(project, source)
    assert reported.startswith("code/train.py:2 reads a data set in /input/MNIST") and reported.endswith(
        "--mount DIR:/input/MNIST"
    )
    [reported] = missing_data(project, "from torchvision import datasets\ndatasets.CIFAR10('/data')\n")
    assert reported.endswith("--data DIR")
    folder = project.parent / "data"
    assert missing_data(project, source, mounts=(Mount(source=folder, target="/input"),)) == []


def lost(project: Path, source: str, *, build: bool = True, **job: Any) -> str:
    """The refusal's advice, or the warnings."""
    (project / "code" / "train.py").write_text(source)
    made = Job(project=project, target=TARGET, **job)
    script = script_facts(TARGET, project)
    made, _ = with_models(made, script)
    try:
        refuse_lost_writes(made, script, build=build)
    except UsageError as error:
        return f"refused: {error.run}"
    return "\n".join(warn_of_lost_writes(made, script))


@cases("path", "mount")
def test_certain_write_outside_is_refused_with_its_mount(project: Path, path: str, mount: str) -> None:
    assert lost(project, f"torch.save(m, '{path}')") == f"refused: seatrial run … --mount {mount}"


def test_write_to_read_only_data_is_a_warning(project: Path) -> None:
    source = "open('/data/a', 'w')"
    assert lost(project, source).endswith("--mount ./data:/data")
    data = DataMount(source=project / "inside", read_only=True)
    assert lost(project, source, data=data).endswith("--data DIR:rw")
    assert lost(project, source, data=data.model_copy(update={"read_only": False})) == ""


def test_models_is_mounted_where_the_script_writes_or_reads_it(project: Path) -> None:
    def models(source: str, **job: Any) -> tuple[DataMount | None, str]:
        (project / "code" / "train.py").write_text(source)
        made, choices = with_models(Job(project=project, target=TARGET, **job), script_facts(TARGET, project))
        return made.models, choices[0].reason if choices else ""

    mounted = DataMount(source=project / "models", read_only=False)
    certain = models("torch.save(m, '/models/a.pt')")
    assert certain == (mounted, "code/train.py:1 writes /models/a.pt; another folder: --models DIR")
    assert models("if x:\n    torch.save(m, '/models/run/a.pt')")[0] == mounted
    assert models("torch.load('/models/a.pt')") == (None, "")
    (project / "models").mkdir()
    assert models("torch.load('/models/a.pt')")[0] == mounted
    assert models("torch.save(m, '/models2/a.pt')") == (None, "")
    own = DataMount(source=project / "inside", read_only=False)
    assert models("torch.save(m, '/models/a.pt')", models=own) == (own, "")
    mount = Mount(source=project / "inside", target="/models")
    assert models("torch.save(m, '/models/a.pt')", mounts=(mount,)) == (None, "")


def test_local_run_refuses_a_certain_write_where_the_user_cannot(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def plan(source: str) -> None:
        (project / "code" / "train.py").write_text(source)
        process_parts._refuse_unwritable(script_facts(TARGET, project))

    plan("open('/missing/folder/a', 'w')")
    monkeypatch.setattr(process_parts.os, "access", lambda path, mode: str(path) != "/")
    for source in ("open('/missing/folder/a', 'w')", "import os\nos.makedirs(f'/missing/folder/{x}')"):
        with pytest.raises(UsageError, match="this user cannot write to /:") as refused:
            plan(source)
        assert refused.value.run is not None and "/missing/folder " in refused.value.run
    plan("if x: open('/missing/folder/a', 'w')")
    plan(f"open('{project}/new/a', 'w')")
