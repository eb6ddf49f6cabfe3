"""Golden Dockerfiles, what changes a tag, and the packages of recipes."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion

from image_plans import SCRIPT, Planned
from image_plans import planned as plan_of
from seatrial.errors import ConfigError, GpuContractError, TargetError, UsageError
from seatrial.images.plan import plan_packages
from seatrial.images.recipes import RECIPES, TOOLS, recipe_requirements
from seatrial.images.resolve.framework import Resolved
from seatrial.images.slim import options
from seatrial.images.sources import pip_conf
from seatrial.job.model import ImageOptions, Job, Target
from seatrial.job.plan import ImagePlan
from seatrial.job.script import ScriptFacts
from seatrial.stack.machine import parse_target
from tables import cases, constant

TORCH = frozenset({"torch", "argparse"})
GOLDEN, PLANS, REFUSED, TAGS = (constant(__file__, name) for name in ("GOLDEN", "PLANS", "REFUSED", "TAGS"))


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "My Project"
    folder.mkdir()
    (folder / "train.py").write_text("import torch\n")
    return folder


def planned(
    project: Path,
    *,
    imports: frozenset[str] = TORCH,
    compiles: bool = False,
    started: dict[str, str] | None = None,
    cpu_only: bool = False,
    **more: Any,
) -> Planned:
    script = ScriptFacts(
        imports=tuple(sorted(imports - {"seatrial"})),
        modules={**dict.fromkeys(imports, "train.py:1"), **(started or {})},
        compiler_evidence="train.py:1" if compiles else None,
    )
    return plan_of(project, script=script, cpu_only=cpu_only, **more)


def text_of(plan: ImagePlan) -> str:
    """All that a build sees of the plan, as one text; digests of our own programs left out."""
    parts = [re.sub("(FILES|PACKAGE_SOURCES)=[0-9a-f]{32}", r"\1=…", str(plan.dockerfile))]
    parts += [f"=== {name}\n{text}" for name, text in plan.context_texts.items()]
    parts += [f"=== secrets {sorted(plan.secrets)} wheel {plan.own_wheel} network {plan.network}"]
    return "\n".join(parts)


#: What a row of test_plan.toml expects. Its other keys are arguments of ``planned``, some to be read.
EXPECTED = {"base_is", "reason", "within", "without", "lists", "lists_only", "stack", "tag", "error"}
READ: dict[str, Callable[[Any], Any]] = {
    "runs": lambda words: Target(kind=words[0], value=words[1]),
    "imports": frozenset,
    "machine": parse_target,
    "ca_bundle": Path,
}


def of_row(project: Path, row: dict[str, Any]) -> Planned:
    keys = {key: READ.get(key, lambda value: value)(value) for key, value in row.items() if key not in EXPECTED}
    return planned(project, **keys)


@pytest.mark.parametrize("name", GOLDEN)
def test_golden_dockerfile(project: Path, name: str, snapshot: SnapshotAssertion) -> None:
    plan, _ = of_row(project, GOLDEN[name])
    assert text_of(plan) == snapshot
    assert "hunter2" not in plan.model_dump_json() and "packages.example" not in plan.model_dump_json()


@pytest.mark.parametrize("name", PLANS)
def test_plan_has_what_its_inputs_ask_for(project: Path, name: str) -> None:
    row = PLANS[name]
    plan, choices = of_row(project, row)
    text = "\n".join((plan.dockerfile or "", *plan.context_texts.values()))
    lines = {line for layer in plan.context_texts.values() for line in layer.splitlines()}
    assert plan.base == row.get("base_is", plan.base)
    assert plan.build is (plan.dockerfile is not None) is ("tag" not in row) and plan.tag == row.get("tag", plan.tag)
    assert row.get("reason", "") in "\n".join(choice.reason for choice in choices)
    assert all(part in text for part in row.get("within", ())) and not any(
        part in text for part in row.get("without", ())
    )
    assert lines >= set(row.get("lists", ())) and lines == set(row.get("lists_only", lines))
    assert plan.stack == row.get("stack", plan.stack)


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_built_is_named(project: Path, name: str) -> None:
    with pytest.raises((ConfigError, GpuContractError, TargetError, UsageError), match=REFUSED[name]["error"]):
        of_row(project, REFUSED[name])


@pytest.mark.parametrize("name", TAGS)
def test_what_goes_in_changes_the_tag(project: Path, name: str) -> None:
    assert of_row(project, TAGS[name])[0].tag != planned(project)[0].tag


def test_a_folder_of_wheels_goes_into_the_build(project: Path, snapshot: SnapshotAssertion) -> None:
    wheel = project / "wheels" / "thing-1.0-py3-none-any.whl"
    wheel.parent.mkdir()
    wheel.write_bytes(b"x")
    plan, _ = planned(project, find_links=str(wheel.parent))
    assert plan.context_files == {"wheels/thing-1.0-py3-none-any.whl": str(wheel)}
    assert text_of(plan) == snapshot


def test_a_folder_of_too_many_wheels_is_not_sent(project: Path) -> None:
    (project / "wheels").mkdir()
    with (project / "wheels" / "big-1.0-py3-none-any.whl").open("wb") as file:
        file.truncate(50_000_000_000)  # takes no disk
    with pytest.raises(ConfigError, match="are 50 GB") as raised:
        planned(project, find_links="wheels")
    assert raised.value.cause == "the largest: big-1.0-py3-none-any.whl 50.0 GB"


#: Framework → what the target imports.
FRAMEWORKS = constant(__file__, "FRAMEWORKS")


@pytest.mark.parametrize("flavour", ["cpu", "slim", "base", "runtime", "cudnn-runtime", "devel"])
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_every_framework_on_every_flavour(
    project: Path, framework: str, flavour: str, snapshot: SnapshotAssertion
) -> None:
    options = {} if flavour in ("cpu", "slim") else {"flavour": flavour}
    machine = parse_target("driver=580.65.06,gpu=H100")
    plan, choices = planned(
        project, imports=set(FRAMEWORKS[framework]), cpu_only=flavour == "cpu", machine=machine, **options
    )
    reasons = "\n".join(f"{choice.what}: {choice.value}: {choice.reason}" for choice in choices)
    assert f"{text_of(plan)}\n{reasons}" == snapshot


def test_slimming_follows_what_the_source_shows(project: Path, snapshot: SnapshotAssertion) -> None:
    (project / "train.py").write_text("import torch\ntorch.fft.fft(x)\nmodel = DataParallel(model)\n")
    plan, _ = planned(project, slim="arch", target="h100")
    assert plan.architectures == ("9.0",)
    assert "--unused compile,linalg,nvshmem,random,sparse,sparselt --arch 90" in str(plan.dockerfile)
    assert text_of(plan) == snapshot
    assert planned(project, slim="unused", target="h100", compiles=True)[0].tag != plan.tag


@cases("line", "packages", "options", "stubbed")
def test_auto_leaves_out_what_the_job_cannot_call(
    project: Path, line: str, packages: str, options: dict[str, Any], stubbed: str
) -> None:
    (project / "train.py").write_text(f"import torch\n{line}\n")
    (project / "requirements.txt").write_text(packages.replace(" ", "\n") + "\n")
    dockerfile = str(planned(project, target="h100", **options)[0].dockerfile)
    slimmer = f"slim.pyz --root /opt/venv --level unused --keep-headers --unused {stubbed} "
    layers = len(re.findall("pip install --no-compile .*-r /media", dockerfile))
    # Above the framework what others are linked to comes back, and nothing else goes.
    assert dockerfile.count(slimmer) == layers
    assert (dockerfile.count(f"{slimmer}--keep-metadata"), dockerfile.count(f"{slimmer}--wanted")) == (1, layers - 1)


def test_auto_proves_nothing_of_more_source_than_is_read(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (project / "more.py").write_text("")
    monkeypatch.setattr(options, "_MOST_FILES", 1)
    assert "--unused none " in str(planned(project, target="h100")[0].dockerfile)


EVERYTHING = "compile fft libclang linalg nccl nvcc nvshmem random rnn sparse sparselt"


@pytest.mark.parametrize("framework", ["tensorflow", "jax"])
@cases("line", "kept")
def test_slimming_tensorflow_and_jax(project: Path, framework: str, line: str, kept: str) -> None:
    (project / "train.py").write_text(f"import {framework}\n{line}\n")
    plan, _ = planned(project, imports=frozenset({framework}), slim="unused", target="h100")
    [unused] = set(re.findall(r"--unused (\S+)", str(plan.dockerfile)))
    assert set(unused.split(",")) == set(EVERYTHING.split()) - set(kept.split())


@pytest.mark.parametrize("name", sorted({**RECIPES, **TOOLS}))
def test_slimming_reads_the_source_of_every_recipe(project: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[Path] = []
    monkeypatch.setattr(
        options, "read_sources", lambda paths, *_: [read.append(path) or path.read_text() for path in paths]
    )
    plan, _ = planned(project, runs=Target(kind="recipe", value=name), slim="unused", target="h100")
    assert "--level unused" in str(plan.dockerfile) and [path.is_file() for path in read] == [True]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"index_url": "https://me:one@e.org/simple"}, {"index_url": "https://me:two@e.org/simple"}),
        ({}, {"files": {"train.py": "import torch\nprint('edited')\n"}}),
        ({"files": {"requirements.txt": "torch\n"}}, {"files": {"requirements.txt": "# that\ntorch  # here\n"}}),
    ],
    ids=["a password", "the script", "comments"],
)
def test_what_changes_no_contents_is_no_new_image(project: Path, one: dict[str, Any], other: dict[str, Any]) -> None:
    tag = planned(project, **one).image.tag
    assert re.fullmatch(r"seatrial/my-project:[0-9a-f]{20}", tag) and planned(project, **other).image.tag == tag


def test_pip_conf() -> None:
    assert pip_conf(ImageOptions(find_links="/wheels")) is None
    options = ImageOptions(index_url="https://e.org/simple", find_links="https://e.org/wheels")
    assert pip_conf(options) == "[global]\nindex-url = https://e.org/simple\nfind-links = https://e.org/wheels\n"


@pytest.mark.parametrize(("imports", "shown"), [("argparse", False), ("numpy", True)])
def test_image_without_packages_has_no_disk_line(project: Path, imports: str, shown: bool) -> None:
    assert bool(planned(project, imports=frozenset({imports})).chosen("disk")) is shown


def test_environment_of_another_python_gets_a_warning(project: Path) -> None:
    (project / "pyproject.toml").write_text(
        '[project]\nname = "x"\nrequires-python = ">=3.12"\ndependencies = ["tqdm"]\n'
    )
    job = Job(project=project, target=SCRIPT)

    def on(python: str) -> Resolved:
        return plan_packages(job, script=ScriptFacts(imports=("tqdm",)), cpu_only=True, python=python)

    assert on("3.11").warnings == ("the project requires Python >=3.12, and this is Python 3.11",)
    assert on("3.12").warnings == ()
    assert "python" not in [choice.what for choice in on("3.12").choices]


def needs(recipe: str, *args: str) -> set[str]:
    return set(recipe_requirements(Target(kind="recipe", value=recipe, args=args)))


@pytest.mark.parametrize("recipe", ["bench", "predict"])
def test_recipe_that_names_another_gets_its_requirements(recipe: str) -> None:
    assert needs(recipe, "train", "spam") >= {"torch", "safetensors", "transformers", "tokenizers"}
    assert "transformers" not in needs(recipe, "train", "mnist")
