"""The Python of an image has wheels of all pins, as uv finds on an index of this machine; or the plan is refused."""

from __future__ import annotations

import json
import platform
import re
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from package_indexes import Index, serving
from seatrial.errors import ConfigError
from seatrial.images.requirements import pip_format
from seatrial.images.requirements.other_formats import read_list
from seatrial.images.requirements.pip_format import Needs, Requirements
from seatrial.images.resolve import check, fix, package_index
from seatrial.images.resolve.edits import written
from seatrial.job.model import Target
from seatrial.job.script import ScriptFacts
from seatrial.stack.machine import parse_target
from tables import cases

pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="the wheels are for x86-64")


@pytest.fixture
def index() -> Iterator[Index]:
    with serving() as server:
        server.wheels("numpy", "1.17.4", "35 36 37 38")
        server.has("numpy", "numpy-1.17.4.zip", requires=">=3.5")
        server.wheels("numpy", "1.23.2", "38 39 310 311")
        server.wheels("numpy", "2.5.0", "312 313 314")
        server.has("plain", "plain-1.0-py3-none-any.whl")
        server.has("old-source", "old-source-0.7.2.tar.gz")
        server.has("six", "six-1.17.0-py3-none-any.whl")
        server.wheels("scipy", "1.18.0", "312 313 314")
        yield server


@pytest.mark.parametrize("html", [False, True])
@cases("requirements", "python")
def test_the_python_follows_the_pins(plan: Any, requirements: str, python: str, html: bool) -> None:
    plan.index.html = html
    (plan.project / "pins.txt").write_text("numpy==1.17.4\n")
    made = plan(requirements)
    assert made.base == f"python:{python}-slim-bookworm"
    assert made.warnings == ()


def test_list_is_resolved_once(plan: Any) -> None:
    plan("numpy==1.17.4\nplain\nsix>=1.0\nNumPy<2\n")
    assert set(plan.index.requested) == {f"/simple/{name}/" for name in ("numpy", "plain", "six")}
    before = len(plan.index.requested)
    plan("numpy==1.17.4\nplain\nsix>=1.0\nNumPy<2\n")
    assert len(plan.index.requested) == before


@cases("requirements", "python")
def test_requirement_of_a_pinned_release_decides_too(plan: Any, requirements: str, python: str) -> None:
    plan.index.has("transformers", "transformers-4.15.0-py3-none-any.whl")
    plan.index.has("transformers", "transformers-4.24.0-py3-none-any.whl")
    plan.index.has("accelerate", "accelerate-1.0-py3-none-any.whl")
    plan.index.wheels("tokenizers", "0.10.3", "38 39")
    plan.index.needs["transformers-4.15.0"] = ("tokenizers<0.11",)
    plan.index.has("tokenizers", "tokenizers-0.10.3.tar.gz")
    plan.index.wheels("tokenizers", "0.13.3", "38 39 310 311")
    assert plan(requirements).base == f"python:{python}-slim-bookworm"
    text = plan.made.reason("python")
    assert ("tokenizers (which others need) has no wheel for Python 3.11" in text) == (python == "3.9")


def test_tensorflow_leaves_the_gpu_to_a_torch_whose_cuda_it_excludes(plan: Any) -> None:
    plan.index.wheels("tensorflow", "2.15.1", "39 310 311")
    plan.index.wheels("torch", "2.9.0", "310 311")
    plan.index.has("nvidia-x", "nvidia_x-1-py3-none-any.whl")
    plan.index.has("nvidia-x", "nvidia_x-2-py3-none-any.whl")
    plan.index.needs |= {"tensorflow-2.15.1": ('nvidia-x==1; extra == "and-cuda"',), "torch-2.9.0": ("nvidia-x==2",)}
    script = ScriptFacts(imports=("torch",), framework="torch", where={"tensorflow": "agent.py:3"})
    machine = parse_target("driver=580.95,gpu=H100")
    plan("torch==2.9.0\ntensorflow==2.15.1\n", script, cpu_only=False, machine=machine)
    assert plan.chosen("packages") == ["torch==2.9.0, tensorflow==2.15.1"]
    assert plan.made.reason("tensorflow build").endswith("TensorFlow runs on the CPU")
    trains = ScriptFacts(**{**vars(script), "modules": {"tensorflow.keras.Model": "agent.py:9"}})
    with pytest.raises(ConfigError, match="tensorflow"):
        plan("torch==2.9.0\ntensorflow==2.15.1\n", trains, cpu_only=False, machine=machine)


@cases("requirements", "part", "pyproject")
def test_list_that_cannot_be_installed_is_refused(
    plan: Any, requirements: str, part: str, pyproject: str | None
) -> None:
    (plan.project / "pyproject.toml").write_text(pyproject or "")
    plan.index.wheels("tensorflow", "1.15.0", "35 36 37")
    plan.index.wheels("tensorflow", "2.21.0", "310 311")
    plan.index.has("winonly", "winonly-1.0-cp311-cp311-win_amd64.whl")
    plan.index.wheels("early", "1.0", "37 38 39")
    plan.index.wheels("late", "1.0", "312 313 314")
    plan.index.wheels("twice", "1.0", "311")
    plan.index.wheels("twice", "2.0", "311")
    plan.index.wheels("apex", "0.9.10.dev0", "311")
    assert part in plan.refused(requirements)


def test_pin_without_a_wheel_is_built_if_other_packages_need_a_newer_python(plan: Any, index: Index) -> None:
    index.wheels("drawn", "1.0", "38")
    index.has("drawn", "drawn-1.0.zip")
    made = plan("torch==2.13.0\ndrawn==1.0\n")
    assert made.base == "python:3.11-slim-bookworm"
    assert plan.chosen("from source") == ["drawn==1.0"]
    fix = plan.refused("torch==2.13.0\nnumpy==1.17.4\n").splitlines()[-1]  # no newer Python compiles it
    assert fix == "requirements.txt:2  numpy==1.17.4 → numpy>=1.17.4"


def test_what_no_python_has_a_wheel_of_does_not_decide(plan: Any) -> None:
    """The first Python is kept, and no other one is resolved for a package without any wheel."""
    plan.index.has("trainer", "trainer-1.0-py3-none-any.whl")
    plan.index.needs["trainer-1.0"] = ("old-source",)
    assert plan("trainer==1.0\nplain==1.0\n").base == "python:3.11-slim-bookworm"
    assert plan.chosen("from source") == ["old-source==0.7.2"]
    assert plan("numpy~=1.17.2\nold-source==0.7.2\n").base == "python:3.8-slim-bookworm"


@pytest.mark.parametrize(("listed", "python", "release"), [("drug<2", "3.11", "1.6"), ("drug==1.8", "3.8", "1.8")])
def test_release_for_older_pythons_alone_is_not_chosen_on_a_newer_one(
    plan: Any, listed: str, python: str, release: str
) -> None:
    """uv ignores the upper bound of Requires-Python, by which pip refuses the file."""
    for minor in (6, 7, 8):
        plan.index.has("drug", f"drug-1.{minor}-py3-none-any.whl", requires=">=3.7,<3.9" if minor > 6 else ">=3.7")
    plan.index.has("drug", "drug-2.0-py3-none-any.whl", requires=">=3.11")
    made = plan(f"plain\n{listed}\n")
    assert made.base == f"python:{python}-slim-bookworm"
    [locked] = [text for name, text in made.context_texts.items() if "drug==" in text]
    assert f"drug=={release} " in locked
    (plan.project / "pyproject.toml").write_text('[project]\nname = "own"\nrequires-python = ">=3.10"\n')
    if python == "3.8":
        message, cause, fix = plan.refused(f"plain\n{listed}\n").splitlines()
        assert message.endswith("drug==1.8 (requirements.txt:2); Python >=3.10 (pyproject.toml:3)")
        assert cause == "drug 1.8 requires Python >=3.7,<3.9"
        assert fix == "requirements.txt:2  drug==1.8 → drug==2.0"


def test_pins_that_exclude_the_python_of_a_version_file_win(plan: Any) -> None:
    plan.index.has("drug", "drug-2.0-py3-none-any.whl", requires=">=3.10")
    (plan.project / ".python-version").write_text("3.9.12\n")
    made = plan("plain\ndrug==2.0\n")
    assert made.base == "python:3.11-slim-bookworm"
    words = ".python-version requires Python ==3.9.*, and requirements.txt's versions exclude it: not used"
    assert words in made.warnings
    assert plan("plain\n").base == "python:3.9-slim-bookworm"


def test_open_package_for_older_pythons_alone_decides_the_python(plan: Any) -> None:
    plan.index.has("drug", "drug-1.8-py3-none-any.whl", requires=">=3.7,<3.10")
    assert plan("drug\n").base == "python:3.9-slim-bookworm"
    assert "drug 1.8 requires Python >=3.7,<3.10" in plan.made.reason("python")


def test_open_package_with_a_wheel_for_an_older_python_alone_decides_the_python(plan: Any) -> None:
    plan.index.wheels("bound", "1.2", "39")
    plan.index.source("bound", "1.2", {"setup.py": "", "a.c": ""})
    assert plan("bound\nplain\n").base == "python:3.9-slim-bookworm"
    assert plan.chosen("from source") == []


def test_own_base_gets_a_warning_in_place_of_a_refusal(plan: Any) -> None:
    made = plan("numpy==1.17.4\n", base="python:3.12-bookworm")
    assert made.base == "python:3.12-bookworm"
    [warning] = made.warnings
    assert warning == (
        "numpy==1.17.4 (requirements.txt) has no wheel for Python 3.12, and the base image has Python 3.12"
    )


# ------------------------------------------------------------------- indexes


def test_an_index_that_is_not_there(plan: Any) -> None:
    plan.environ["PIP_INDEX_URL"] = "http://me:hunter2@127.0.0.1:9/simple?token=abc"
    made = plan("numpy==1.17.4\nunheard-of==1.0\n")
    assert made.base == "python:3.8-slim-bookworm"  # the table knows numpy's first wheels
    [warning] = made.warnings
    assert warning.startswith("http://127.0.0.1:9/simple cannot be read: ")
    assert warning.endswith("whether Python 3.8 has numpy==1.17.4, unheard-of==1.0 was not checked")
    assert "hunter2" not in warning and "abc" not in warning


def test_the_index_that_is_not_there_is_named_among_several(plan: Any) -> None:
    [warning] = plan("--extra-index-url http://nowhere.invalid/whl\nplain==1.0\n").warnings
    assert warning.startswith("http://nowhere.invalid/whl cannot be read: ")


def test_a_request_that_the_index_forgets_is_made_again(plan: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(package_index, "_SILENCE_S", 1)
    plan.index.forgotten = {"/simple/numpy/"}
    made = plan("numpy==1.17.4\nplain==1.0\n")
    assert made.base == "python:3.8-slim-bookworm" and made.warnings == ()
    assert plan.index.requested.count("/simple/numpy/") == 2 and plan.index.requested.count("/simple/plain/") == 1


def test_a_slow_index_gives_the_plan_of_a_quick_one(plan: Any) -> None:
    plan.index.needs["plain-1.0"] = ("six",)
    plan.index.delay_s = 0.7
    slow = plan("numpy==1.17.4\nplain==1.0\nold-source==0.7.2\n")
    assert slow.base == "python:3.8-slim-bookworm" and plan.chosen("from source") == ["old-source==0.7.2"]
    plan.index.delay_s = 0.0
    assert plan("numpy==1.17.4\nplain==1.0\nold-source==0.7.2\n") == slow


def test_what_came_in_time_is_kept_and_the_rest_is_stated_each_time(plan: Any) -> None:
    """The second page is requested when the first has come."""
    plan.index.needs["plain-1.0"] = ("six",)
    plan.index.delay_s, plan.limit_s = 1.2, 1.8
    for _ in range(2):
        [warning] = plan("plain\n").warnings
        assert "did not answer within 1.8 s (plan again to continue from the answers received" in warning
        plan.index.delay_s = 2.5
    plan.index.delay_s, plan.limit_s = 0.0, 30.0
    assert plan("plain\n").warnings == ()
    assert plan.index.requested.count("/simple/plain/") == 1


def test_an_index_that_does_not_answer_in_time(plan: Any) -> None:
    plan.index.delay_s, plan.limit_s = 300.0, 1.0
    started = time.monotonic()
    made = plan("plain==1.0\n")
    assert time.monotonic() - started < 200
    assert f"{plan.index.url} did not answer within" in made.warnings[0]


JSON = "application/vnd.pypi.simple.v1+json"


@pytest.mark.parametrize(
    ("page", "kind"),
    [
        *[(page, JSON) for page in (b"", b"{", b"[]", b'{"files": 3}', b"[" * 100_000, b'{"meta": {}}')],
        (b"numpy", "text/plain"),
    ],
)
def test_page_that_is_not_of_an_index_leaves_the_list_unchecked(plan: Any, page: bytes, kind: str) -> None:
    plan.index.broken = (page, kind)
    made = plan("numpy==1.17.4\nplain==1.0\n")
    assert made.base == "python:3.8-slim-bookworm"
    [warning] = made.warnings
    assert warning.startswith(f"{plan.index.url} cannot be read: ") and "plain==1.0 was not checked" in warning


def test_odd_files_on_a_page_are_passed_over(plan: Any) -> None:
    odd = ["numpy", "numpy-.whl", "numpy-1.17.4.whl", "numpy-1.17.4-cp39-cp39-linux.exe", "numpy-x-y-z-linux.whl"]
    plan.index.has("numpy", *odd)
    assert plan("numpy==1.17.4\n").base == "python:3.8-slim-bookworm"


def test_a_login_is_sent_to_the_index_and_shown_nowhere(plan: Any) -> None:
    plan.index.login = "me:hun:ter2"
    plan.environ["PIP_INDEX_URL"] = plan.index.with_login("me:hun%3Ater2")
    made = plan("numpy==1.17.4\n")
    assert made.base == "python:3.8-slim-bookworm"
    kept = [path for path in (plan.project / "cache").rglob("*") if path.is_file()]
    assert kept
    assert not any(b"ter2" in str(path).encode() + path.read_bytes() for path in kept)
    assert "ter2" not in made.model_dump_json()
    plan.environ["PIP_INDEX_URL"] = plan.index.with_login("me:wrong")
    made = plan("unheard-of==1.0\n")
    assert made.warnings[0].startswith(f"{plan.index.url} asks for a login: ")


def test_lines_and_settings_choose_the_index(plan: Any) -> None:
    with serving() as other:
        other.wheels("early", "1.0", "37 38 39")
        plan(f"--extra-index-url {other.url}\nearly==1.0\n")
        assert "/simple/early/" in other.requested and "/simple/early/" in plan.index.requested
        plan.index.requested.clear()
        plan(f"--index-url={other.url}\nearly==1.0\n")
        plan("early<1.1\n", index_url=other.url)
        assert plan.index.requested == []
        plan.environ["PIP_NO_INDEX"] = "1"
        assert plan("nowhere==1.0\n").warnings == ()
        del plan.environ["PIP_NO_INDEX"]
        config = plan.project / "pip.conf"
        config.write_text(f"[global]\nindex-url = {other.url}\n[install]\nextra-index-url =\n  {plan.index.url}\n")
        plan.environ = {"PIP_CONFIG_FILE": str(config)}
        other.requested.clear()
        plan("six!=2,<9,>0\nplain==1.0\n")
        assert {"/simple/six/", "/simple/plain/"} == set(other.requested)


def test_a_folder_of_wheels_counts(plan: Any) -> None:
    wheels = plan.project / "wheels"
    wheels.mkdir()
    (wheels / "mine-1.0-cp310-cp310-linux_x86_64.whl").write_bytes(b"")
    made = plan("mine==1.0\n", find_links="wheels")
    assert made.base == "python:3.10-slim-bookworm"


@pytest.mark.parametrize("kept", ["", "{", "[]", '{"at": "x"}', '{"at": 1e12}', '{"at": null, "packages": 3}'])
def test_spoilt_memory_is_resolved_again(plan: Any, kept: str) -> None:
    plan("numpy==1.17.4\n")
    locks = list((plan.project / "cache" / "locks").iterdir())
    assert locks
    for file in locks:
        file.write_text(kept)
    assert plan("numpy==1.17.4\n").base == "python:3.8-slim-bookworm"
    assert all(json.loads(file.read_text())["at"] != 1e12 for file in locks)


def test_conflict_between_dependencies_is_refused_with_the_reason(plan: Any) -> None:
    plan.index.has("trainer", "trainer-1.0-py3-none-any.whl")
    plan.index.needs["trainer-1.0"] = ("numpy<1.24",)
    text = plan.refused("trainer==1.0\nnumpy>=2\n")
    assert "the requirements contradict each other on Python 3." in text
    assert "trainer depend on numpy<1.24 and you require" in text


def test_a_framework_that_comes_with_another_package_is_chosen_too(plan: Any) -> None:
    torch_releases(plan.index)
    plan.index.has("agents", "agents-1.0-py3-none-any.whl")
    plan.index.needs["agents-1.0"] = ("torch>=2",)
    assert plan("agents\n").stack["torch"] == "2.13.0"
    assert plan.chosen("packages") == ["agents"]
    assert "torch" not in plan("plain\n").stack


@pytest.mark.parametrize(("needed", "edit"), [("plainlib<=2.0", "2.0"), ("plainlib", "3.0")])
def test_a_missing_pin_becomes_the_release_that_the_other_lines_take(plan: Any, needed: str, edit: str) -> None:
    plan.index.has("plainlib", *(f"plainlib-{release}-py3-none-any.whl" for release in ("1.0", "2.0", "3.0")))
    plan.index.has("trainer", "trainer-1.0-py3-none-any.whl", "trainer-1.1-py3-none-any.whl")
    plan.index.needs |= {"trainer-1.0": (needed,), "trainer-1.1": ("plainlib>=3",)}
    fix = plan.refused("plainlib==0.3\ntrainer==1.0\n").splitlines()[-2:]
    assert fix == ["the newest is 3.0", f"requirements.txt:1  plainlib==0.3 → plainlib=={edit}"]


@pytest.mark.parametrize(("others", "constraints"), [((), ["5.3.1"]), (("pyyaml>=5.4",), ["6.0"])])
def test_an_older_pyyaml_is_taken_for_code_of_its_time_where_it_fits(
    plan: Any, others: tuple[str, ...], constraints: list[str]
) -> None:
    for version in ("5.3.1", "6.0"):
        plan.index.has("pyyaml", f"pyyaml-{version}-py3-none-any.whl")
    plan.index.has("trainer", "trainer-1.0-py3-none-any.whl")
    plan.index.needs["trainer-1.0"] = others
    made = plan("pyyaml\ntrainer\n", ScriptFacts(modules={"yaml.load": "train.py:2 yaml.load(…)"}))
    assert re.findall(r"pyyaml==(\S+)", "\n".join(made.context_texts.values())) == constraints


def test_a_bound_of_the_code_that_does_not_fit_leaves_the_others(plan: Any) -> None:
    torch_releases(plan.index)
    plan.index.has("pyyaml", "pyyaml-5.3.1-py3-none-any.whl", "pyyaml-6.0-py3-none-any.whl")
    plan.index.has("trainer", "trainer-1.0-py3-none-any.whl")
    plan.index.needs["trainer-1.0"] = ("pyyaml>=5.4",)
    old = {"yaml.load": "train.py:2 yaml.load(…)", "torchvision.transforms.functional_tensor": "train.py:3"}
    made = plan("pyyaml\ntrainer\ntorch\n", ScriptFacts(modules=old, imports=("torch",)))
    assert made.stack["torch"] == "2.1.2"
    assert re.findall(r"pyyaml==(\S+)", "\n".join(made.context_texts.values())) == ["6.0"]


def test_dependency_without_a_wheel_is_built_in_the_image(plan: Any) -> None:
    plan.index.has("trainer", "trainer-1.0-py3-none-any.whl")
    plan.index.needs["trainer-1.0"] = ("old-source",)
    plan("trainer==1.0\n")
    assert plan.chosen("from source") == ["old-source==0.7.2"]


def test_sizes_of_pinned_packages_count(plan: Any) -> None:
    plan.index.has("huge", "huge-1.0-py3-none-any.whl", size=700_000_000)
    made = plan("huge==1.0\n")
    assert made.packages_bytes == 2_100_000_000
    assert plan.chosen("disk") == ["about 3 GB to build"] and "other packages 2.1 GB" in plan.made.reason("disk")


def test_list_is_not_checked_without_an_index(plan: Any) -> None:
    plan.environ["PIP_NO_INDEX"] = "1"
    assert plan("torch==1.4.0\nnumpy==1.17.4\n").base == "python:3.8-slim-bookworm"
    assert plan.index.requested == []


TORCH = ScriptFacts(imports=("torch",))


def torch_releases(index: Index) -> None:
    for version in ("2.1.2", "2.8.0", "2.13.0"):
        index.has("torch", f"torch-{version}-py3-none-any.whl")
    index.has("older", "older-1.0-py3-none-any.whl")
    index.needs["older-1.0"] = ("torch<2.2",)


def test_a_release_that_the_project_left_open_follows_its_other_packages(plan: Any) -> None:
    torch_releases(plan.index)
    made = plan("torch\nolder\n", TORCH)
    assert made.stack["torch"] == "2.1.2"


@pytest.mark.parametrize(
    ("old", "newer", "day"),
    [("wheel", "", ""), ("source", "", ""), ("source", "", "2023-12-20"), ("", "0.9", "2023-12-20")],
)
def test_a_framework_follows_a_package_whose_other_releases_are_of_no_use(
    plan: Any, old: str, newer: str, day: str
) -> None:
    plan.index.has("torch", *(f"torch-{each}-py3-none-any.whl" for each in ("2.1.1", "2.1.2", "2.13.0")))
    plan.index.has("exporter", *(f"exporter-{each}-py3-none-any.whl" for each in ("0.6", newer) if each))
    plan.index.needs["exporter-0.6"] = ("torch==2.1.1",)
    if old == "source":
        plan.index.source("exporter", "0.1", {"setup.py": ""})
    elif old:
        plan.index.has("exporter", "exporter-0.1-cp311-cp311-macosx_11_0_arm64.whl")
    days = {"exporter-0.9": "2024-06-01", "torch-2.13.": "2026-07-08"}
    files = [each for rows in plan.index.projects.values() for each, _, _ in rows]
    plan.index.uploaded = {each: days.get(each[:11], days.get(each[:12], "2023-11-20")) for each in files}
    made = plan("torch\nexporter\n", TORCH, **({"as_of": day} if day else {}))
    assert made.stack["torch"] == "2.1.1" and not plan.chosen("from source")
    if old == "wheel":
        assert "exporter" in plan.refused("torch==2.1.2\nexporter\n", TORCH)


def test_a_pin_at_odds_with_an_open_torchvision_is_refused(plan: Any) -> None:
    plan.index.has("torch", "torch-2.13.0-py3-none-any.whl")
    plan.index.has("torchvision", "torchvision-0.28.0-py3-none-any.whl")
    plan.index.source("torchvision", "0.1.6", {"setup.py": ""})  # requires nothing that its page shows
    plan.index.needs["torchvision-0.28.0"] = ("plain!=1.0",)
    plan.index.has("plain", "plain-2.0-py3-none-any.whl")
    refused = plan.refused("torch==2.13.0\ntorchvision\nplain==1.0\n")
    assert "plain==1.0 (requirements.txt:3); torchvision==0.28.0.*" in refused
    assert refused.endswith("requirements.txt:3  plain==1.0 → plain==2.0")


def test_a_contradiction_names_both_lines_and_whose_they_are(plan: Any) -> None:
    torch_releases(plan.index)
    text = plan.refused("# versions\ntorch>=2.5\nolder==1.0\n", TORCH)
    assert "torch==2.13.0 (requirements.txt:2; the version is seatrial's)" in text
    assert "older==1.0 (requirements.txt:3)" in text


def test_a_contradiction_names_an_extra_that_no_file_lists(plan: Any) -> None:
    plan.index.wheels("tensorflow", "2.15.0", "39 310 311")
    plan.index.has("nvidia-x", "nvidia_x-2-py3-none-any.whl")
    plan.index.needs |= {"tensorflow-2.15.0": ('nvidia-x==1; extra == "and-cuda"',)}
    script = ScriptFacts(imports=("tensorflow",), framework="tensorflow")
    with pytest.raises(ConfigError) as refused:
        plan("tensorflow==2.15.0\n", script, cpu_only=False, machine=parse_target("driver=580.95,gpu=H100"))
    assert "tensorflow[and-cuda]==2.15.0 (requirements.txt:1; [and-cuda] is seatrial's)" in str(refused.value)


@pytest.mark.parametrize(
    ("needs", "reason"),
    [
        (None, "train.py:2 imports ourthing: neither the project nor a package"),
        ("torch<2.2", "ourthing is not installed"),
    ],
    ids=["missing", "contradicts"],
)
def test_a_guess_that_does_not_fit_is_not_installed(plan: Any, needs: str | None, reason: str) -> None:
    torch_releases(plan.index)
    if needs:
        plan.index.has("ourthing", "ourthing-1.0-py3-none-any.whl")
        plan.index.needs["ourthing-1.0"] = (needs,)
    made = plan("", ScriptFacts(imports=("torch", "ourthing"), framework="torch", where={"ourthing": "train.py:2"}))
    [warning] = made.warnings
    assert warning.startswith(reason)
    assert made.stack["torch"] == "2.13.0"
    assert "ourthing" not in plan.chosen("packages")[0]


def test_a_module_that_a_dependency_brings_is_not_missing(plan: Any) -> None:
    plan.index.needs["plain-1.0"] = ("plain-runtime",)
    plan.index.has("plain-runtime", "plain_runtime-1.0-py3-none-any.whl")
    [missing] = plan("plain\n", ScriptFacts(imports=("plain_runtime", "strange"))).warnings
    assert "imports strange: neither the project nor a package of that name has it" in missing


@pytest.mark.parametrize("page", ["readme/INSTALL.md", "setup.sh"])
def test_a_module_of_a_repository_that_a_page_names_is_not_to_be_written(plan: Any, page: str) -> None:
    (file := plan.project / page).parent.mkdir(exist_ok=True)
    file.write_text("git clone https://github.com/someone/strange-things.git\n")
    [missing] = plan("plain\n", ScriptFacts(imports=("strange_things",))).warnings
    way = 'requirements = ["git+https://github.com/someone/strange-things"]'
    assert missing.endswith(f"if that is it, add in seatrial.toml: [image] {way}")


def test_a_module_is_not_denied_while_a_listed_package_is_unread(plan: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(package_index.PackageIndex, "names", lambda self, *_: self.unanswered.append("names") or {})
    [warning] = plan("plain\n", ScriptFacts(imports=("strange",))).warnings
    assert "imports strange: plain may have it (not read); plan again, or name its package in " in warning


@pytest.mark.parametrize(("module", "missing"), [("tn.chinese", False), ("tn.english", True), ("other", True)])
def test_a_module_of_a_listed_wheel_with_another_name_is_not_missing(
    plan: Any, index: Index, module: str, missing: bool
) -> None:
    index.holds("speechtext", "speechtext-1.0-py3-none-any.whl", {"tn/__init__.py": "", "tn/chinese/__init__.py": ""})
    top = module.partition(".")[0]
    script = ScriptFacts(imports=(top,), where={top: "train.py:2"}, modules={module: "train.py:2"})
    warnings = plan("speechtext\n", script).warnings
    assert [each.startswith(f"train.py:2 imports {top}") for each in warnings] == [True] * missing


def test_a_pin_of_a_lock_file_that_the_index_lost_is_left_open(plan: Any) -> None:
    (plan.project / "pyproject.toml").write_text('[project]\nname = "x"\ndependencies = ["plain"]\n')
    (plan.project / "pdm.lock").write_text('[[package]]\nname = "six"\nversion = "1.0rc1"\n')
    plan.index.needs["plain-1.0"] = ("six",)
    made = plan("")
    assert made.warnings == (
        "pdm.lock pins six==1.0rc1, which the package index does not have: its version is left open",
    )


def test_a_line_of_a_frozen_list_that_no_index_has_is_left_out_if_nothing_imports_it(
    plan: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pip_format, "_FROZEN", 4)
    monkeypatch.setattr(check, "_MOST_FROZEN", 12)
    monkeypatch.setattr(check, "_MOST_LEFT_OUT", 2)
    for at in range(4):
        plan.index.has(f"p{at}", f"p{at}-1.0-py3-none-any.whl")
    frozen = "".join(f"p{at}==1.0\n" for at in range(4))
    assert plan(frozen + "colab-only==1.0\n").warnings == (
        "colab-only==1.0 (requirements.txt) is left out: no index has it, and the target does not import it",
    )
    plan.index.has("broken", "broken-1.0-py3-none-any.whl")
    plan.index.needs["broken-1.0"] = ("six>=1.0.dev*=",)
    assert plan(frozen + "broken==1.0\n").warnings == (
        "broken==1.0 (requirements.txt) is left out: its metadata is invalid, and the target does not import it",
    )
    with pytest.raises(ConfigError, match="no package colab-only"):
        plan(frozen + "colab-only==1.0\n", script=ScriptFacts(imports=("colab_only",)))
    with pytest.raises(ConfigError, match="no package colab-only"):
        plan("plain\ncolab-only==1.0\n")
    with pytest.raises(ConfigError, match="no package gone-4"):  # each takes a run of uv
        plan(frozen + "".join(f"gone-{at}==1.0\n" for at in range(6)))


def test_a_frozen_list_that_cannot_be_installed_is_planned_for_the_imports(
    plan: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pip_format, "_FROZEN", 4)
    plan.index.has("drawn", "drawn-3.8-py3-none-any.whl")
    plan.index.has("six", "six-1.16.0-py3-none-any.whl")
    plan.index.needs |= {"drawn-3.8": ("numpy<2",), "plain-1.0": ("six",)}
    frozen, script = "drawn==3.8\nnumpy==2.5.0\nplain==1.0\nsix==1.16.0\n", ScriptFacts(imports=("plain",))
    made = plan(frozen, script)
    assert plan.chosen("packages") == ["plain==1.0"]
    assert "six==1.16.0" in "".join(made.context_texts.values())  # the list's release of what plain requires
    [warning] = made.warnings
    assert (
        warning.startswith("3 of the 4 packages that requirements.txt lists are left out") and "contradict" in warning
    )
    option = 'requirements = ["-r requirements.txt"]'
    assert warning.endswith(f"[image] {option}")
    with pytest.raises(ConfigError, match="contradict each other"):
        plan(frozen, script, requirements=("-r requirements.txt",))
    with pytest.raises(ConfigError, match="contradict each other"):
        plan(frozen, ScriptFacts(imports=("numpy", "drawn")))
    plan(frozen, ScriptFacts(imports=("plain",), optional_imports=("six",)))  # in try and except
    assert plan.chosen("packages") == ["plain==1.0, six==1.16.0"]
    [warning] = plan(f"{frozen}pywin32==225\n", script).warnings
    assert warning.startswith("3 of the 5 packages that requirements.txt lists are left out")


def test_a_frozen_list_whose_index_is_slow_is_not_said_to_be_uninstallable(
    plan: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pip_format, "_FROZEN", 4)
    plan.index.delay_s, plan.limit_s = 300.0, 1.0
    made = plan("drawn==3.8\nnumpy==2.5.0\nplain==1.0\nsix==1.16.0\n", ScriptFacts(imports=("plain",)))
    [warning] = [each for each in made.warnings if " are left out, " in each]
    assert f"no releases of all fit together ({plan.index.url} did not answer within" in warning


def test_a_release_without_a_wheel_does_not_hide_its_requirements(plan: Any) -> None:
    plan.index.wheels("drawn", "3.8", "310 311 312")
    plan.index.has("drawn", "drawn-3.8.tar.gz")
    plan.index.needs["drawn-3.8"] = ("numpy<2",)
    plan.index.has("numpy", "numpy-2.5.0-py3-none-any.whl")
    with pytest.raises(ConfigError, match=r"contradict each other on Python 3\.11: drawn==3\.8"):
        plan("drawn==3.8\nnumpy==2.5.0\n")


def test_the_edit_for_a_contradiction_is_one_that_uv_has_resolved(plan: Any) -> None:
    for version, needs in (("3.8", "numpy<2"), ("3.9", "numpy>=2")):
        plan.index.has("drawn", f"drawn-{version}-py3-none-any.whl")
        plan.index.needs[f"drawn-{version}"] = (needs,)
    plan.index.has("numpy", "numpy-2.5.0-py3-none-any.whl")
    fix = plan.refused("drawn==3.8\nnumpy==2.5.0\n").splitlines()[-1]
    assert fix == "requirements.txt:1  drawn==3.8 → drawn==3.9"
    plan("drawn==3.9\nnumpy==2.5.0\n")


@pytest.mark.parametrize(("others", "taken"), [("3.7 3.9", "3.9"), ("3.7", "3.7")])
def test_an_edit_keeps_what_the_code_bounds_and_takes_an_older_release_of_what_it_imports_at_last(
    plan: Any, others: str, taken: str
) -> None:
    for version, needs in (("3.8", "numpy>=2"), *((each, "numpy<2") for each in others.split())):
        plan.index.has("drawn", f"drawn-{version}-py3-none-any.whl")
        plan.index.needs[f"drawn-{version}"] = (needs,)
    for version in ("1.23.5", "2.5.0"):
        plan.index.has("numpy", f"numpy-{version}-py3-none-any.whl")
    modules = {"drawn": "train.py:1", "numpy": "train.py:2", "numpy.int": "train.py:3 np.int"}
    script = ScriptFacts(imports=("drawn", "numpy"), modules=modules, where=modules)
    fix = plan.refused("drawn==3.8\nnumpy\n", script).splitlines()[-1]
    assert fix == f"requirements.txt:1  drawn==3.8 → drawn=={taken}"


@pytest.mark.parametrize(
    ("file", "text", "edit"),
    [
        (
            "pyproject.toml",
            'keywords = ["torch"]\n[a.dependencies]\ntorch = "^1.4"\n',
            'pyproject.toml:3  torch = "^1.4" → torch = "==2.0.0"',
        ),
        (
            "pyproject.toml",
            "[dependencies]\ntorch = {version='1.4'}\n",
            "torch = {version='1.4'} → torch = {version='==2.0.0'}",
        ),
        ("requirements.txt", "a\ntorch=1.4=pypi_0\n", "requirements.txt:2  torch=1.4=pypi_0 → torch=2.0.0=pypi_0"),
        ("requirements.txt", "# torch==1\nTorch[x] >= 1.4, <2 # GPU\n", ":2  Torch[x] >= 1.4, <2 → Torch[x]==2.0.0"),
        ("requirements.txt", "-c limits.txt\n", "limits.txt:1  torch==1.4 → torch==2.0.0"),
        ("environment.yml", "- pytorch=1.4=py3.8_cuda10\n", "pytorch=1.4=py3.8_cuda10 → pytorch==2.0.0"),
        ("environment.yml", "a:\n  - p::pytorch=1.4\n", "environment.yml:2  pytorch=1.4 → pytorch==2.0.0"),
        ("requirements.txt", "https://x/pytorch-1.4-py3_0.conda\n", "s://x/pytorch-1.4-py3_0.conda → torch==2.0.0"),
        ("requirements.txt", "torch-geometric==1.4\n", "write torch==2.0.0 in requirements.txt"),
        ("setup.py", "x = ['a', 'torch==1.4']\n", "setup.py:1  torch==1.4 → torch==2.0.0"),
        ("setup.py", "", "write torch==2.0.0 in setup.py"),
    ],
)
def test_an_edit_has_the_place_and_the_form_of_its_file(tmp_path: Path, file: str, text: str, edit: str) -> None:
    (tmp_path / "limits.txt").write_text("torch==1.4\n")
    (tmp_path / file).write_text(text)
    needs = Needs(Requirements(("torch==1.4",)), file, "", project=tmp_path)
    assert written(["torch==2.0.0"], needs).endswith(edit)


def test_an_edit_of_an_exported_list_to_a_range_is_a_line_that_the_list_may_have(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("numpy=1.11.2=py35_0\ntqdm=4.0=pypi_0\n")
    needs = Needs(Requirements(("numpy==1.11.2",)), "requirements.txt", "", project=tmp_path)
    edit = written(["numpy>=1.11.2"], needs)
    assert edit == "requirements.txt:1  numpy=1.11.2=py35_0 → numpy>=1.11.2"
    (tmp_path / "requirements.txt").write_text(f"{edit.rpartition(' ')[2]}\ntqdm=4.0=pypi_0\n")
    assert read_list(tmp_path / "requirements.txt", tmp_path).lines == ("numpy>=1.11.2", "tqdm==4.0")


def test_a_pin_that_nothing_imports_and_no_release_mends_is_removed(plan: Any) -> None:
    plan.index.has("top", "top-1.0-py3-none-any.whl")
    plan.index.needs["top-1.0"] = ("mid==9.0",)
    plan.index.has("mid", "mid-1.0-py3-none-any.whl")
    fix = plan.refused("plain==1.0\ntop==1.0\n", ScriptFacts(imports=("plain",))).splitlines()[-1]
    assert fix == "requirements.txt:2  top==1.0 → remove it: the target does not import it"
    fix = plan.refused("plain==1.0\ntop==1.0\n", ScriptFacts(imports=("plain", "top"))).splitlines()[-1]
    assert fix.startswith("change one of these versions in requirements.txt")


def test_a_fix_has_every_edit_after_which_the_project_plans(plan: Any) -> None:
    for version, needs in (("1.0", "mid==1.0"), ("1.1", "mid>=2"), ("2.0", "mid>=2")):
        plan.index.has("top", f"top-{version}-py3-none-any.whl")
        plan.index.needs[f"top-{version}"] = (needs,)
    for version in ("1.0", "2.0"):
        plan.index.has("mid", f"mid-{version}-py3-none-any.whl")
    fix = plan.refused("plain==9.9\ntop==1.0\nmid==2.0\n").splitlines()[-2:]
    assert fix == ["requirements.txt:1  plain==9.9 → plain==1.0", "    requirements.txt:2  top==1.0 → top==1.1"]
    plan("plain==1.0\ntop==1.1\nmid==2.0\n")
    (plan.project / "README.md").write_text("```\npip install --no-deps -r requirements.txt\n```\n")
    plan("plain==1.0\ntop==1.0\nmid==2.0\n")
    (plan.project / "README.md").write_text("pip install --no-deps -e . && pip install -r requirements.txt\n")
    assert "contradict" in str(plan.refused("plain==1.0\ntop==1.0\nmid==2.0\n"))
    (plan.project / "README.md").write_text("pip install --no-deps " * 10_000)  # without backtracking
    plan("plain==1.0\n")


@pytest.mark.parametrize(
    ("section", "fix"),
    [("project", "(cd sub && uv add torch==2.0.0)"), ("dependency-groups", "torch==2.0.0\n    (cd sub && uv lock)")],
)
def test_a_package_manager_edits_its_own_list(tmp_path: Path, section: str, fix: str) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub/pyproject.toml").write_text(f'[{section}]\ntrain = [\n"torch==1.4"]\n')
    needs = Needs(Requirements(("torch==1.4",)), "sub/pyproject.toml", "uv.lock pins 9 versions", project=tmp_path)
    assert written(["torch==2.0.0"], needs).endswith(fix)
    assert written(["torch==2.0.0+cu118"], needs).endswith(fix)  # the index that uv asks has no such build
    assert "x @ git+https://e.org/x" in written(["x @ git+https://e.org/x"], needs)


def test_an_edit_against_an_assert_names_the_assert_as_well(tmp_path: Path) -> None:
    reason = "imported; train.py:4 asserts torch ==1.4, which older code does"
    needs = Needs(Requirements(("torch==1.4",)), "the imports", reason, project=tmp_path)
    lines = written(["torch==2.0.0", "numpy<2"], needs).splitlines()
    assert [each.strip() for each in lines] == [
        "write torch==2.0.0 and numpy<2 in requirements.txt",
        "train.py:4  allow this version, too",
    ]


def test_a_release_without_a_wheel_that_needs_more_than_a_compiler_is_refused(plan: Any) -> None:
    plan.index.has("scipy", "scipy-1.2.1.tar.gz")
    plan.index.has("numpy", "numpy-1.15.0.zip")
    for release in ("scipy-1.9.3", "numpy-1.23.5"):
        plan.index.has(release[:5], f"{release}-py3-none-any.whl")
    with pytest.raises(ConfigError, match=r"scipy==1\.2\.1 \(requirements\.txt\) has no wheel") as refusal:
        plan("scipy==1.2.1\nplain\nnumpy==1.15.0\n")
    assert refusal.value.cause == "compiling it needs Fortran and BLAS"
    first, second = (
        "requirements.txt:3  numpy==1.15.0 → numpy>=1.15.0",
        "requirements.txt:1  scipy==1.2.1 → scipy>=1.2.1",
    )
    assert refusal.value.run == f"{first}\n    {second}"


@pytest.mark.parametrize(
    ("file", "text", "fix"),
    [
        (
            "environment.yml",
            "dependencies:\n- python=3.8.20=he87_0\n",
            "environment.yml:2  python=3.8.20=he87_0 → python={}",
        ),
        (".python-version", "3.8\n", "requirements.txt:2  numpy==1.26.4 → numpy<=1.26.4"),
    ],
)
def test_a_release_for_newer_pythons_than_the_chosen_one_names_the_pin_to_edit(
    plan: Any, file: str, text: str, fix: str
) -> None:
    for release in ("1.26.4.tar.gz", "1.26.4-cp311-cp311-manylinux_2_17_x86_64.whl", "1.24.4-py3-none-any.whl"):
        plan.index.has("numpy", f"numpy-{release}")
    (plan.project / file).write_text(text)
    refused = plan.refused("plain\nnumpy==1.26.4\n").splitlines()
    assert refused[1:] == ["this release needs a newer Python, such as 3.11", fix.format("3.11")]
    (plan.project / file).write_text(text.replace("3.8.20=he87_0", "3.11"))
    plan("plain\nnumpy==1.26.4\n" if file == "environment.yml" else "plain\nnumpy<=1.26.4\n")


@pytest.mark.parametrize("listed", ["", "plain\n"])
def test_a_guess_is_what_a_release_holds(plan: Any, index: Index, listed: str) -> None:
    index.holds("fizzcrf", "fizzcrf-1.0-py3-none-any.whl", {"FizzCRF/__init__.py": ""})
    index.holds("buzzcrf", "buzzcrf-1.0-py3-none-any.whl", {"buzzcrf.py": "class Buzz: ..."})
    index.holds("renamed", "renamed-2.0-py3-none-any.whl", {"Renamed.py": ""})
    index.holds("renamed", "renamed-1.4-py3-none-any.whl", {"renamed.py": ""})
    index.holds("video", "video-1.0-py3-none-any.whl", {"video.py": "class Other: ..."})
    names = ("buzzcrf", "fizzcrf", "renamed", "video")
    where = dict.fromkeys(names, "train.py:1")
    modules = {"buzzcrf.Buzz": "train.py:1", "video.Recorder": "train.py:1"}
    script = ScriptFacts(imports=names, where=where, modules=modules)
    for _ in ("fetched", "remembered"):
        made = plan(listed, script)
        assert plan.chosen("packages") == [", ".join(filter(None, (listed.strip(), "buzzcrf", "renamed==1.4")))]
        fizz, video = sorted(made.warnings)
        assert fizz.startswith("train.py:1 imports fizzcrf: neither the project nor a package of that name has it")
        assert "has video.Recorder; add video.py" in video
    assert index.requested.count("/f/fizzcrf-1.0-py3-none-any.whl") == 1


def test_no_old_wheel_is_pinned_for_names_that_only_a_newer_source_may_have(plan: Any, index: Index) -> None:
    for version, text in (("0.1", "class Pad: ..."), ("0.0", "")):
        index.holds("pads", f"pads-{version}-py3-none-any.whl", {"pads.py": text})
    index.source("pads", "8.2", {"setup.py": "", "pads.py": "class JoyPad: ..."})
    script = ScriptFacts(imports=("pads",), where={"pads": "train.py:1"}, modules={"pads.JoyPad": "train.py:1"})
    (warning,) = plan("plain\n", script).warnings
    assert plan.chosen("packages") == ["plain"]
    assert "requirements.txt does not list it; pads 8.2 has this module" in warning


@pytest.mark.parametrize(("version", "line"), [("", "tern"), ("=1.0", "tern==1.0.*"), ("=7.0.1", None)])
def test_what_conda_lists_is_installed_where_the_index_has_the_module(
    plan: Any, index: Index, version: str, line: str | None
) -> None:
    index.holds("tern", "tern-1.0-py3-none-any.whl", {"tern.py": "class Bird: ..."})
    text = f"dependencies:\n- tern{version}\n- fens-dolfin\n- petsc=*=complex*\n- cudatoolkit=11.3\n- six\n- pymunk\n"
    index.holds("pymunk", "pymunk-6.2-py3-none-any.whl", {"pymunk/__init__.py": ""})
    (plan.project / "environment.yml").write_text(f"{text}- odd.\n")
    (plan.project / "env.py").write_text("def made():\n    import pymunk.vec2d\n")
    script = ScriptFacts(imports=("tern", "dolfin"), where=dict.fromkeys(("tern", "dolfin"), "train.py:2"))
    made = plan("", script)
    assert plan.chosen("packages") == [", ".join(filter(None, ["six", "pymunk", line]))]
    assert "not installed, as the target imports none: conda's petsc, cudatoolkit" in " ".join(
        map(str, plan.made.choices)
    )
    dolfin, *tern = sorted(made.warnings)
    assert dolfin.startswith("train.py:2 imports dolfin, of conda's fens-dolfin (environment.yml), which the package")
    assert (
        tern == []
        if line
        else tern[0].startswith("train.py:2 imports tern, of conda's tern==7.0.1 (environment.yml), which")
    )


@pytest.mark.parametrize("imported", [True, False])
def test_a_listed_name_of_a_module_gives_way_to_its_package(plan: Any, index: Index, imported: bool) -> None:
    index.has("parselmouth", "parselmouth-1.1.1.tar.gz")
    index.holds("praat-parselmouth", "praat_parselmouth-0.4-py3-none-any.whl", {"parselmouth.py": "class Sound: ..."})
    index.holds("umap", "umap-1.0-py3-none-any.whl", {"umap.py": "class UMAP: ..."})
    index.holds("umap-learn", "umap_learn-1.0-py3-none-any.whl", {"umap.py": ""})
    names = ("parselmouth", "umap") if imported else ()
    modules = {"umap.UMAP": "train.py:1", "parselmouth.Sound": "train.py:2"} if imported else {}
    plan("parselmouth==1.1.1\numap==1.0\n", ScriptFacts(imports=names, modules=modules))
    assert plan.chosen("packages") == [f"praat-parselmouth, {'umap==1.0' if imported else 'umap-learn'}"]


def test_a_module_that_no_empty_submodule_is_named_after_is_looked_up(plan: Any, index: Index) -> None:
    index.holds("lmdbdict", "lmdbdict-1.0-py3-none-any.whl", {"lmdbdict.py": "class lmdbdict: ..."})
    (plan.project / ".gitmodules").write_text('[submodule "cider"]\n\tpath = third/cider\n\turl = https://h/c\n')
    (plan.project / "third/cider").mkdir(parents=True)
    names = ("ciderD", "lmdbdict", "six", "unheard")
    script = ScriptFacts(imports=names, where=dict.fromkeys(names, "a.py:1"), modules={"lmdbdict.lmdbdict": "a.py:1"})
    made = plan("", script)
    assert plan.chosen("packages") == ["six, lmdbdict"]
    cider, unheard = sorted(made.warnings)
    assert cider.startswith("a.py:1 imports ciderD, which is missing, and the git submodule third/cider is empty")
    assert "has it; git has not fetched third/cider: git submodule update --init --recursive" in unheard


@pytest.mark.parametrize("wheel", [True, False])
def test_a_module_of_a_listed_package_with_another_name_is_not_warned_of(plan: Any, index: Index, wheel: bool) -> None:
    if wheel:
        index.holds("wingspan", "wingspan-9.0-py3-none-any.whl", {"albatross/__init__.py": ""})
    else:
        index.source("wingspan", "9.0", {"albatross/__init__.py": "", "setup.py": ""})
    script = ScriptFacts(imports=("albatross",), where={"albatross": "train.py:2"})
    assert plan("wingspan==9.0\n", script).warnings == ()


def _three_releases(index: Index) -> None:
    lazy = "def __getattr__(name):\n    import importlib\n    return importlib.import_module(name)\n"
    index.holds("frames", "frames-1.0-py3-none-any.whl", {"frames/io/json/__init__.py": "", "frames/__init__.py": ""})
    json = {"frames/io/json/__init__.py": "from ._json import *", "frames/io/json/_json.py": "def normalize(): ..."}
    index.holds("frames", "frames-1.5-py3-none-any.whl", json)
    index.holds("frames", "frames-2.1-py3-none-any.whl", {"frames/io/json.py": "", "frames/lazy.py": lazy})


@pytest.mark.parametrize(
    ("name", "release"),
    [("frames.io.json.normalize", "1.5"), ("frames.lazy.anything", "2.1"), ("frames.io.json", "2.1")],
)
def test_a_release_has_the_names_that_are_imported(plan: Any, index: Index, name: str, release: str) -> None:
    _three_releases(index)
    script = ScriptFacts(imports=("frames",), where={"frames": "train.py:3"}, modules={name: "train.py:3"})
    for _ in ("fetched", "remembered"):
        made = plan("frames\n", script)
        shown = " ".join(map(str, plan.made.choices))
        assert ("frames<2.1, as train.py:3 imports frames.io.json.normalize" in shown) == (release == "1.5"), shown
        assert re.findall(r"frames==(\S+)", "\n".join(made.context_texts.values())) == [release]
        assert not made.warnings
    assert index.requested.count("/f/frames-2.1-py3-none-any.whl") == 1


def test_a_patch_before_1_0_that_removed_an_imported_name_gives_way_to_the_one_before(plan: Any, index: Index) -> None:
    for release, text in (("0.0.9", "scale = 1"), ("0.1.7", "scale = 1"), ("0.1.8", ""), ("0.2.0", "")):
        index.holds("flat", f"flat-{release}-py3-none-any.whl", {"flat/__init__.py": text})
    script = ScriptFacts(imports=("flat",), where={"flat": "train.py:3"}, modules={"flat.scale": "train.py:3"})
    assert re.findall(r"flat==(\S+)", "\n".join(plan("flat\n", script).context_texts.values())) == ["0.1.7"]


@pytest.mark.parametrize("pin", ["", "==2.1"])
def test_a_release_takes_the_arguments_that_calls_give_by_name(plan: Any, index: Index, pin: str) -> None:
    for release, arguments in (("1.5", "path, fast=True"), ("2.1", "path")):
        index.holds("frames", f"frames-{release}-py3-none-any.whl", {"frames/io.py": f"def read({arguments}): ..."})
    script = ScriptFacts(imports=("frames",), keywords={"frames.io.read(fast=)": "train.py:3"})
    made = plan(f"frames{pin}\n", script)
    lacks = "train.py:3 calls frames.io.read(fast=), which frames 2.1 lacks: change the call"
    assert made.warnings == ((f"{lacks}; frames<2.1 has it, but does not fit",) if pin else ())
    why = "frames<2.1, as train.py:3 calls frames.io.read(fast=)"
    assert (why in " ".join(map(str, plan.made.choices))) is not bool(pin)
    assert re.findall(r"frames==(\S+)", "\n".join(made.context_texts.values())) == ["2.1" if pin else "1.5"]


@pytest.mark.parametrize("day", ["", "2021-01-01"])
def test_a_pin_without_an_imported_name_is_refused_with_one_that_has_it(plan: Any, index: Index, day: str) -> None:
    _three_releases(index)
    index.uploaded = {"frames-1.5-py3-none-any.whl": "2020-01-01", "frames-2.1-py3-none-any.whl": "2024-01-01"}
    modules = {"frames.io.json.normalize": "train.py:3"}
    script = ScriptFacts(imports=("frames",), where={"frames": "train.py:3"}, modules=modules)
    with pytest.raises(ConfigError, match=r"train.py:3 imports frames.io.json.normalize, which frames 2.1 lacks") as it:
        plan("frames==2.1\n", script, **({"as_of": day} if day else {}))
    assert "frames==2.1 → frames==1.5" in str(it.value.run)


def test_a_release_of_the_day_without_an_imported_name_gives_way_to_the_next(plan: Any, index: Index) -> None:
    _three_releases(index)
    days = {"1.0": "2020-01-01", "1.5": "2020-09-01", "2.1": "2024-01-01"}
    index.uploaded = {f"frames-{release}-py3-none-any.whl": day for release, day in days.items()}
    script = ScriptFacts(imports=("frames",), modules={"frames.io.json.normalize": "train.py:3"})
    made = plan("frames\n", script, as_of="2020-03-01")
    assert re.findall(r"frames==(\S+)", "\n".join(made.context_texts.values())) == ["1.5"]
    assert not made.warnings


@pytest.mark.parametrize(
    ("lines", "body", "wanted"),
    [
        ("olds==1.0\nframes\n", "", ["frames==1.5", "olds==1.0"]),
        ("olds\nframes==2.1\n", "", ["frames==2.1", "olds==1.1"]),
        ("olds==1.0\nframes==2.1\n", "", "olds 1.0 imports frames.io.json.normalize, which frames 2.1 lacks"),
        ("olds==1.0\nframes\n", "try:\n    ", ["frames==2.1", "olds==1.0"]),
    ],
    ids=["an older one has it", "a newer importer", "both are pinned", "it is optional"],
)
def test_what_a_packages_modules_import_is_in_the_release_of_the_other(
    plan: Any, index: Index, lines: str, body: str, wanted: str | list[str]
) -> None:
    _three_releases(index)
    text = f"{body}from frames.io.json import normalize\n" + "except ImportError:\n    pass\n" * bool(body)
    parts = {"olds/__init__.py": "from .parts import load\n", "olds/parts.py": f"import os.path\n{text}\nload = 1\n"}
    index.holds("olds", "olds-1.0-py3-none-any.whl", parts)
    index.holds("olds", "olds-1.1-py3-none-any.whl", {"olds/__init__.py": "load = 1\n"})
    index.uploaded = {f"frames-{each}-py3-none-any.whl": "2020-01-01" for each in ("1.0", "1.5")}
    index.uploaded |= {f"olds-1.{each}-py3-none-any.whl": f"202{each}-06-01" for each in (0, 1)}
    index.uploaded |= {"frames-2.1-py3-none-any.whl": "2020-11-01"}
    script = ScriptFacts(imports=("olds",), where={"olds": "train.py:3"}, modules={"olds": "train.py:3"})
    if isinstance(wanted, str):
        assert plan.refused(lines, script) == f"{wanted}\nNone\nrequirements.txt:1  olds==1.0 → olds>1.0"
        return
    made = plan(lines, script, as_of="2020-12-01")
    assert sorted(re.findall(r"(?:frames|olds)==[\d.]+", "\n".join(made.context_texts.values()))) == wanted
    assert not made.warnings


@pytest.mark.parametrize("pinned", [True, False])
def test_a_name_that_the_frameworks_torchvision_lacks_is_the_codes(plan: Any, index: Index, pinned: bool) -> None:
    torch_releases(index)
    for release, text in (("0.14.1", "model_urls = {}"), ("0.28.0", "")):
        file = f"torchvision-{release}-py3-none-any.whl"
        index.needs[f"torchvision-{release}"] = (f"torch=={'2.13.0' if release == '0.28.0' else '1.13.1'}",)
        index.holds("torchvision", file, {"torchvision/__init__.py": "", "torchvision/resnet.py": text})
    modules = {"torch": "train.py:1", "torchvision.resnet.model_urls": "train.py:2"}
    script = ScriptFacts(imports=("torch", "torchvision"), framework="torch", modules=modules)
    lacks = "train.py:2 imports torchvision.resnet.model_urls, which torchvision 0.28.0 lacks"
    if pinned:
        assert plan.refused("torch==2.13.0\ntorchvision==0.28.0\n", script) == f"{lacks}\nNone\nchange the import"
    else:
        made = plan("torch==2.13.0\ntorchvision\n", script)
        assert f"{lacks}: change the import; torchvision<0.28 has it, but does not fit" in made.warnings


@pytest.mark.parametrize("module", ["tool", "tool.train"])
def test_a_module_that_the_release_cannot_start_is_refused(plan: Any, index: Index, module: str) -> None:
    index.holds("tool", "tool-1.0-py3-none-any.whl", {"tool/__init__.py": "", "tool/cli.py": ""})
    index.holds(
        "tool", "tool-2.0-py3-none-any.whl", {f"{module.replace('.', '/')}/__main__.py": "", "tool/__init__.py": ""}
    )
    plan.target = Target(kind="module", value=module, args=("fit", "a b"))
    refused = plan.refused("tool==1.0")
    assert f"-m {module}: tool 1.0 has no" in refused and "its commands are toolctl" in refused
    assert refused.endswith("> run_toolctl.py && seatrial run run_toolctl.py fit 'a b'")
    plan("tool==2.0")


def test_a_release_of_which_only_old_wheels_are_there_names_the_next(plan: Any) -> None:
    plan.index.wheels("seen", "3.4.4.19", "35 36 37")
    plan.index.wheels("seen", "3.4.18.65", "311")
    plan.index.wheels("seen", "4.0.1.24", "311")
    fix = "requirements.txt:2  gone==1 → remove it: the target does not import it"
    fix += "\n    requirements.txt:1  seen==3.4.4.19 → seen==3.4.18.65"
    assert fix in plan.refused("seen==3.4.4.19\ngone==1\nplain\n")


@pytest.mark.parametrize(
    ("line", "named"), [("seen==4.1.1", "seen==4.1.1.26"), ("torch==1.2.0a0+afb7a16", "the package index has no such")]
)
def test_a_version_that_no_index_has_is_refused_with_the_nearest(plan: Any, line: str, named: str) -> None:
    torch_releases(plan.index)
    for version in ("3.4.18.65", "4.1.1.26", "5.0.0.93"):
        plan.index.has("seen", f"seen-{version}-py3-none-any.whl")
    assert named in plan.refused(f"{line}\nplain==1.0\n")


def test_a_label_of_a_cluster_or_distribution_is_left_out(plan: Any) -> None:
    assert plan("plain==1.0+computecanada\nsix==1.17.0-unsupported\npkg-resources==0.0.0\n").warnings == ()
    assert plan.chosen("packages") == ["plain==1.0, six==1.17.0"]


def test_a_line_of_pips_form_in_a_list_of_conda_is_read(plan: Any) -> None:
    made = plan("numpy=1.17.4=py38h\npip=19.3=py38\npython=3.8.1=h1\nplain==1.0\n")
    assert made.base == "python:3.8-slim-bookworm" and "plain==1.0" in plan.chosen("packages")[0]


@pytest.mark.parametrize(
    ("wanted", "numpy", "warned"),
    [("numpy", "1.26.4", ""), ("numpy>=2", "2.1.0", "imgaug 0.4.0 needs numpy<2, which does not fit the list")],
)
def test_what_a_locked_release_needs_undeclared_is_kept_or_named(
    plan: Any, wanted: str, numpy: str, warned: str
) -> None:
    plan.index.has("trainer", "trainer-1.0-py3-none-any.whl")
    plan.index.has("imgaug", "imgaug-0.4.0-py3-none-any.whl")
    plan.index.has("numpy", "numpy-1.26.4-py3-none-any.whl", "numpy-2.1.0-py3-none-any.whl")
    plan.index.needs |= {"trainer-1.0": ("imgaug",), "imgaug-0.4.0": (wanted,)}
    made = plan("trainer\n")
    assert re.findall(r"(?m)^numpy==(\S+)", "\n".join(made.context_texts.values())) == [numpy]
    assert [each for each in made.warnings if "imgaug" in each] == [f"{warned}: it may fail"] * bool(warned)


@pytest.mark.parametrize(("listed", "numpy"), [("numpy", "1.26.4"), ("numpy>=2", "2.1.0")])
def test_what_a_package_without_a_wheel_needs_undeclared_is_kept_or_named(plan: Any, listed: str, numpy: str) -> None:
    plan.index.has("matplotlib", "matplotlib-3.4.3.tar.gz")
    plan.index.has("numpy", "numpy-1.26.4-py3-none-any.whl", "numpy-2.1.0-py3-none-any.whl")
    made = plan(f"matplotlib<3.5\n{listed}\n")
    assert re.findall(r"(?m)^numpy==(\S+)", "\n".join(made.context_texts.values())) == [numpy]
    warned = "matplotlib needs numpy<2, which does not fit the list: it may fail"
    assert (warned in made.warnings) == (listed != "numpy")


@pytest.mark.parametrize(
    ("day", "wanted", "tag", "listed", "numpy"),
    [
        ("2024-03-31", "numpy", "cp3", "", "1.26.4"),
        ("2023-01-01", "numpy>=1.17.3; python_version>='3.9'", "cp3", "", "1.26.4"),
        ("2023-01-01", "numpy>=1.17.3", "cp38-abi3", "", "1.26.4"),
        ("2023-01-01", "numpy>=1.17.3", "py3-none", "", "2.1.0"),
        ("2024-04-02", "numpy", "cp3", "", "2.1.0"),
        ("2023-01-01", "numpy<2.3,>=1.17.3", "cp3", "", "2.1.0"),
        ("2023-01-01", "numpy; extra=='fast'", "cp3", "numpy", "2.1.0"),
        ("2023-01-01", "numpy", "cp3", "numpy==2.1.0", "2.1.0"),
        ("2023-01-01", "numpy", "cp3", "numpy>=2", "2.1.0"),
    ],
)
def test_a_wheel_compiled_before_numpy_2_keeps_numpy_1(
    plan: Any, day: str, wanted: str, tag: str, listed: str, numpy: str
) -> None:
    tags = [f"cp3{minor}-cp3{minor}" for minor in range(9, 15)] if tag == "cp3" else [tag]
    plan.index.has("fitted", *(f"fitted-1.0-{each}-manylinux1_x86_64.whl" for each in tags))
    plan.index.has("numpy", "numpy-1.26.4-py3-none-any.whl", "numpy-2.1.0-py3-none-any.whl")
    plan.index.uploaded |= {file: day for file, _, _ in plan.index.projects["fitted"]}
    plan.index.needs["fitted-1.0"] = (wanted,)
    made = plan(f"fitted==1.0\n{listed}\n")
    assert re.findall(r"(?m)^numpy==(\S+)", "\n".join(made.context_texts.values())) == [numpy]
    reason = next(each.reason for each in plan.made.choices if each.what == "packages")
    assert ("numpy<2 for fitted 1.0" in reason) == (numpy == "1.26.4")
    warned = ("fitted 1.0 needs numpy<2, which does not fit the list: it may fail",) * ("2" in listed)
    assert made.warnings == warned
    requested = len(plan.index.requested)
    assert plan(f"fitted==1.0\n{listed}\n").warnings == warned and len(plan.index.requested) == requested


def test_a_search_for_edits_ends_with_the_time_of_the_indexes(monkeypatch: pytest.MonkeyPatch) -> None:
    tries = list[int]()

    def choose(_: Needs) -> Any:
        tries.append(len(tries))
        edits = [f"p{len(tries)}==1"]
        raise ConfigError(f"p{len(tries)}: no such version", run="edit it", edits=lambda: edits)

    needs = Needs(Requirements(), "requirements.txt", "it is listed")
    monkeypatch.setattr(fix, "_edited", lambda *_: needs)
    resolver: Any = SimpleNamespace(began=None, left_s=lambda: 0.01)
    with pytest.raises(ConfigError, match="p1: no such version") as caught:
        fix.chosen_or_fixed(choose, needs, resolver)
    assert len(tries) == 2
    assert "again: the time limit ended the search" in (caught.value.run or "")
