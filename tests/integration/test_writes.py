"""Files that a script writes outside the project, in real containers: kept, copied back, or refused before."""

from __future__ import annotations

import pytest

from cli_project import Project


@pytest.mark.both_engines
def test_models_is_mounted_by_itself(container_project: Project) -> None:
    project = container_project
    project.write("train.py", "def main():\n    open('/models/m.pth', 'w').write('weights')\nmain()\n")
    assert "train.py:2 writes /models/m.pth" in project.cli("plan", "train.py", "--on", project.backend).stdout
    assert not (project.folder / "models").exists()
    project.run("train.py", "--gpus", "none")
    saved = project.folder / "models" / "m.pth"
    assert saved.read_text() == "weights"
    assert saved.parent.stat().st_uid == saved.stat().st_uid == project.folder.stat().st_uid
    receipt = project.receipt()
    [model] = [each for each in receipt["criteria"] if each["id"] == "model-saved"]
    assert (model["verdict"], receipt["outcome"]["level"]) == ("pass", "good")
    assert "models/m.pth" in model["evidence"]


@pytest.mark.both_engines
def test_certain_write_elsewhere_is_refused_until_its_folder_is_mounted(container_project: Project) -> None:
    project = container_project
    project.write("train.py", "import os\nos.makedirs('/output', exist_ok=True)\nopen('/output/log', 'w').write('x')\n")
    for verb in ("plan", "run"):
        refused = project.cli(verb, "train.py", "--on", project.backend, exit_code=2).stderr
        assert "--mount ./output:/output" in refused
    assert project.runs == []
    project.run("train.py", "--mount", "./output:/output")
    assert (project.folder / "output" / "log").read_text() == "x"


def test_write_that_may_run_is_a_warning(container_project: Project) -> None:
    container_project.write("train.py", "import sys\nif sys.argv[1:]:\n    open('/output/log', 'w')\n")
    ended = container_project.run("train.py")
    assert "may write /output/log" in ended.stderr


@pytest.mark.both_engines
def test_results_outside_of_the_kept_folders_are_copied_and_named(container_project: Project) -> None:
    project = container_project
    project.write(
        "train.py",
        "import os, pathlib, shutil\n"
        "home = pathlib.Path.home() / 'logdir'\n"
        "home.mkdir()\n"
        "(home / 'home.pt').write_text('in home')\n"
        "pathlib.Path('/tmp/deep').mkdir()\n"
        "pathlib.Path('/tmp/deep/m.pt').write_text('in tmp')\n"
        "pathlib.Path('/tmp/x.lock').write_text('noise')\n"
        "os.symlink('/workspace/train.py', '/tmp/link.pt')\n"
        "os.symlink('/workspace', os.environ['SEATRIAL_RUN_DIR'] + '/container')\n",
    )
    ended = project.run("train.py", "--gpus", "none")
    outputs, home = project.place / "outputs", project.place / "home"
    assert (outputs / "container-2" / "tmp" / "deep" / "m.pt").read_text() == "in tmp"
    assert [path.name for path in (outputs / "container-2").rglob("*") if path.is_file()] == ["m.pt"]
    assert not (project.folder / "tmp").exists(), "the link that the script laid was not followed"
    assert (home / "logdir" / "home.pt").read_text() == "in home"
    receipt = project.receipt()
    reported = " ".join(receipt["warnings"])
    place = f".seatrial/runs/{project.last.name}"
    assert (
        f"1 file was written outside of the kept folders and copied to {place}/outputs/container-2: /tmp/deep"
        in reported
    )
    assert f"1 file was written to HOME, which is {place}/home: logdir/home.pt" in reported
    [model] = [each for each in receipt["criteria"] if each["id"] == "model-saved"]
    assert (model["verdict"], receipt["outcome"]["level"]) == ("pass", "good")
    assert "container-2" in ended.stderr + ended.stdout


@pytest.mark.both_engines
def test_writable_root_is_searched_for_results(container_project: Project) -> None:
    project = container_project
    project.write(
        "train.py", "import os\nos.makedirs('/checkpoints')\nopen('/checkpoints/m.ckpt', 'w').write('weights')\n"
    )
    project.run("train.py", "--gpus", "none", "--writable")
    assert (project.place / "outputs" / "container" / "checkpoints" / "m.ckpt").read_text() == "weights"
    assert "/checkpoints/m.ckpt" in " ".join(project.receipt()["warnings"])
