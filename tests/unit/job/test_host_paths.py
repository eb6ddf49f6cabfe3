"""Paths of this machine in arguments and in the configuration files that they name."""

from pathlib import Path

import pytest

from fakes import load_job
from seatrial.job.host_paths import HostPath, host_paths, missing_inputs, not_found
from seatrial.job.keys import Mount
from seatrial.job.model import Job, Target
from seatrial.job.reading.file_calls import Read


@pytest.fixture
def project(tmp_path: Path) -> Path:
    project = tmp_path / "project"
    project.mkdir()
    (tmp_path / "data").mkdir()
    (project / "train.py").write_text("import torch\n")
    return project


def paths_of(project: Path, *arguments: str, workdir: str | None = None) -> tuple[HostPath, ...]:
    target = Target(kind="script", value="train.py", args=arguments)
    return host_paths(Job(project=project, target=target, workdir=workdir))


def found(project: Path, *arguments: str) -> list[tuple[str, str, bool, bool]]:
    paths = paths_of(project, *arguments)
    return [(str(path.source), path.target, path.written, path.typed) for path in paths]


@pytest.mark.parametrize(
    ("arguments", "target"),
    [
        (("--data", "DATA"), "DATA"),
        (("--data=DATA",), "DATA"),
        (("data.root=DATA",), "DATA"),
        (("DATA",), "DATA"),
        (("-v", "--data", "DATA"), "DATA"),
        (("--config=DATA:b16,cifar10",), "DATA"),
        (("--data", "../data"), "/data"),
        (("--data", "OWN"), "OWN"),
    ],
    ids=[
        "word",
        "sign",
        "hydra",
        "alone",
        "behind a flag",
        "with its parameter",
        "above the project",
        "in it by an absolute name",
    ],
)
def test_a_path_has_its_place_in_a_container(project: Path, arguments: tuple[str, ...], target: str) -> None:
    (project / "inside").mkdir()
    places = {"DATA": str(project.parent / "data"), "OWN": str(project / "inside")}
    words = [each.replace("DATA", places["DATA"]).replace("OWN", places["OWN"]) for each in arguments]
    source = places.get(target, places["DATA"])
    assert found(project, *words) == [(source, places.get(target, target), False, True)]


def test_from_a_folder_of_the_project_a_path_above_it_is_the_projects(project: Path) -> None:
    (project / "tools").mkdir()
    assert paths_of(project, "--data", "../inside", workdir="tools") == ()
    [path] = paths_of(project, "--data", "../../data", workdir="tools")
    assert (path.source, path.target) == (project.parent / "data", "/data")


def test_an_option_for_results_names_a_folder_that_is_written(project: Path) -> None:
    for option in ("--output_dir", "--save-path", "--logDir", "trainer.out"):
        assert [path.written for path in paths_of(project, f"{option}=/mnt/x")] == [True]
    assert [path.written for path in paths_of(project, "--outer=/mnt/x")] == [False]


def test_what_is_the_projects_or_no_path_is_left_alone(project: Path) -> None:
    (project / "inside").mkdir()
    assert not found(project, "--data", "inside", "--lr", "1/2", "--name", "a/b", "/", "..", "./inside")


def test_paths_of_a_named_configuration_count_if_they_are_there(project: Path) -> None:
    data = str(project.parent / "data")
    note = f"note: x # {data}/y\n#  p: /home/nobody/d\n"
    (project / "c.yaml").write_text(f"data: {data}\nother: {data}-gone\nurl: https://host{data}\n{note}")
    [path] = paths_of(project, "--config", "c.yaml")
    assert (str(path.source), path.where, path.typed) == (data, "c.yaml:1", False)


def test_a_link_of_the_project_to_data_is_no_typed_path(project: Path) -> None:
    data = project.parent / "data"
    (project / "data").symlink_to(data)
    assert found(project, "--data", "data") == [(str(data), str(data), False, False)]


def test_a_typed_path_needs_no_consent_and_one_of_a_file_does(project: Path) -> None:
    def wishes(**flags: object) -> list[str]:
        return [ask.words for ask in load_job(project, flags).asks]

    data = str(project.parent / "data")
    (project / "c.yaml").write_text(f"data: {data}\n")
    (project / "seatrial.toml").write_text('target = "train.py"\n')
    assert wishes(args=["--data", data]) == wishes(args=["--config", "c.yaml"], on="local")[1:] == []
    [ask] = wishes(args=["--config", "c.yaml"])
    assert ask == f"mounts {data} read-only at {data}"
    (project / "seatrial.toml").write_text(f'target = "train.py"\nargs = ["--data", "{data}"]\n')
    assert wishes() == [ask]


def test_a_configuration_that_is_not_there_is_named(project: Path) -> None:
    [path] = paths_of(project, "--config", "config/default.yaml")
    assert (str(path), path.is_there) == ("--config config/default.yaml", False)
    assert paths_of(project, "--cfg", "yolov3.yaml", "--annotations", "coco/train.json") == ()


def test_a_missing_file_that_is_read_is_found_where_its_folder_is_there(project: Path) -> None:
    (project / "weights").mkdir()
    words = ("--pretrained", "weights/darknet53.conv.74", "--resume", "gone/last.pt", "--save", "weights/best.pt")
    assert [path.text for path in paths_of(project, *words, "--dataset", "someone/data-v1.0")] == [words[1]]
    assert paths_of(project, "--download-to", "weights/new.zip", "--upload", "weights/new.zip") == ()


def test_a_path_of_the_authors_machine_in_a_configuration_is_found_though_it_is_missing(project: Path) -> None:
    lines = ("root: /home/nobody/data", "url: /v1/nobody/data", "{'old': '/home/nobody/my data 2021/'}")
    (project / "a.yaml").write_text("\n".join((*lines, "run: '/home/nobody/x.sh --root /home/nobody/y'\n")))
    assert [(path.text, path.where) for path in paths_of(project, "--config", "a.yaml")] == [
        ("/home/nobody/data", "a.yaml:1"),
        ("/home/nobody/my data 2021/", "a.yaml:3"),
        ("/home/nobody/x.sh", "a.yaml:4"),
        ("/home/nobody/y", "a.yaml:4"),
    ]
    assert paths_of(project, "--result_path", "a.yaml") == ()


@pytest.mark.parametrize(
    ("words", "mounts", "ways"),
    [
        ((), (), ["--mount DIR:/home/nobody/data, or override it: -- paths.root=DIR"]),
        (("++paths.root=data",), (), []),
        (("PATHS.root", "data"), (), []),
        (("root", "data"), (), ["--mount DIR:/home/nobody/data, or override it: -- paths.root=DIR"]),
        ((), ("/home/nobody",), []),
    ],
)
def test_a_missing_path_of_hydras_files_is_named_with_what_gives_it(
    project: Path, words: tuple[str, ...], mounts: tuple[str, ...], ways: list[str]
) -> None:
    (project / "conf/paths").mkdir(parents=True)
    (project / "conf/paths/a.yaml").write_text("root: /home/nobody/data\n")
    (project / "conf/c.yaml").touch()
    reads = [Read(name, name, None) for name in ("conf/c.yaml", "conf/paths/a.yaml")]
    target = Target(kind="script", value="train.py", args=words)
    job = Job(project=project, target=target, mounts=tuple(Mount(source=project, target=each) for each in mounts))
    assert [each.partition("to mount it: ")[2] for each in missing_inputs(job, reads)] == ways


def test_a_missing_path_that_a_configuration_gives_is_named_once(project: Path) -> None:
    (project / "a.yaml").write_text("root: /home/nobody/data\n")
    reads = [Read("a.yaml", "a.yaml", None), Read("/home/nobody/data", "train.py:1", None)]
    [sentence] = missing_inputs(Job(project=project, target=Target(kind="script", value="train.py")), reads)
    assert sentence.startswith("a.yaml:1 /home/nobody/data: ")


def test_a_missing_path_of_a_working_directory_is_named_with_it(project: Path) -> None:
    (project / "sub").mkdir()
    job = Job(project=project, target=Target(kind="script", value="sub/train.py"), workdir="sub")
    assert [*missing_inputs(job, [Read("x.csv", "sub/train.py:1", None)])] == [
        "sub/train.py:1 reads x.csv, which sub/ does not have"
    ]
    [sentence] = not_found(job, [Read("data/y.csv", "sub/c.py:2", None)], ())
    assert sentence.startswith("Not found in sub/: data/y.csv (sub/c.py:2)")


@pytest.mark.parametrize(("backend", "are_missing"), [("docker", False), ("local", True)])
def test_an_input_by_the_projects_place_in_a_container_is_missing_without_one(
    project: Path, backend: str, are_missing: bool
) -> None:
    job = Job(project=project, target=Target(kind="script", value="train.py"), backend=backend)
    reads = [Read("/workspace/train.py", "train.py:3", None), Read("/workspace", "train.py:4", None)]
    assert [bool([*missing_inputs(job, reads)]), bool([*not_found(job, reads, ())])] == [are_missing] * 2
