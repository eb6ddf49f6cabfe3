"""Ways in which a setting reaches the target."""

from __future__ import annotations

from pathlib import Path

import pytest

from seatrial.errors import UsageError
from seatrial.job.model import Job, Target
from seatrial.search.set_values import check_switches, varied, ways_in
from seatrial.search.space import parse_space
from tables import cases


def _job(folder: Path, text: str) -> Job:
    (folder / "train.py").write_text(text)
    return Job(project=folder, target=Target(kind="script", value="train.py"), name="base")


def _variants(job: Job, *settings: str) -> list[Job]:
    space = parse_space(settings)
    ways = ways_in(job, space.names)
    return [varied(job, chosen, ways) for chosen in space.combinations()]


def test_a_flag_of_the_script(tmp_path: Path) -> None:
    made = _variants(_job(tmp_path, 'p.add_argument("--batch_size")'), "batch_size=64,128")
    assert [job.target.args for job in made] == [("--batch_size", "64"), ("--batch_size", "128")]
    assert [job.name for job in made] == ["base-batch_size-64", "base-batch_size-128"]


def test_a_variable_of_the_script(tmp_path: Path) -> None:
    [job] = _variants(_job(tmp_path, 'os.environ["LR"]'), "lr=0.1")
    assert job.env == {"LR": "0.1"}


def test_recipes_know_their_settings(tmp_path: Path) -> None:
    job = Job(project=tmp_path, target=Target(kind="recipe", value="digits"))
    made = _variants(job, "batch_size=32", "mixed_precision=true,false")
    assert [job.target.args for job in made] == [
        ("--batch", "32", "--precision", "bf16"),
        ("--batch", "32", "--precision", "fp32"),
    ]


def test_a_script_that_cannot_be_reported(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no way to set lr") as caught:
        _variants(_job(tmp_path, "print(1)"), "lr=1")
    assert caught.value.run is not None and 'parser.add_argument("--lr")' in caught.value.run


@pytest.mark.parametrize("text", ["LR = 0.1\nprint(LR)", "lr: float = 0.1", "def main():\n    lr = 0.1"])
def test_a_constant_is_no_way_in(tmp_path: Path, text: str) -> None:
    with pytest.raises(UsageError, match="no way to set lr") as caught:
        _variants(_job(tmp_path, text), "lr=1")
    assert caught.value.cause is not None and "constant" in caught.value.cause


def test_a_flag_of_a_module_that_the_script_imports(tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "__init__.py").write_text("")
    (tmp_path / "lib" / "options.py").write_text('import train\np.add_argument("--lr")')
    [job] = _variants(_job(tmp_path, "import os, sys\nfrom lib import options as o"), "lr=0.1")
    assert job.target.args == ("--lr", "0.1")


@cases("text", "args")
def test_flags_that_a_library_makes_of_names(tmp_path: Path, text: str, args: tuple[str, ...]) -> None:
    [job] = _variants(_job(tmp_path, text), "weight-decay=1")
    assert job.target.args == args


@cases("text", "true", "false")
def test_switches(tmp_path: Path, text: str, true: tuple[str, ...], false: tuple[str, ...]) -> None:
    made = _variants(_job(tmp_path, text), "amp=true,false")
    assert [job.target.args for job in made] == [true, false]


def test_a_switch_takes_no_value(tmp_path: Path) -> None:
    job, space = _job(tmp_path, 'p.add_argument("--amp", action="store_true")'), parse_space(["amp=fp16,bf16"])
    with pytest.raises(UsageError, match="--amp takes no value"):
        check_switches(ways_in(job, space.names), space.values())
    for typed in ("amp=0..5", "amp=int:1..3"):
        with pytest.raises(UsageError, match="--amp takes no value"):
            check_switches({"amp": "--amp?"}, parse_space([typed]).values())
    space = parse_space(["amp=yes,off", "lr=0.1..1"])
    check_switches({"amp": "--amp?", "lr": "--lr"}, space.values())


@pytest.mark.parametrize("text", ["import hydra", "from omegaconf import OmegaConf\nOmegaConf.from_cli()"])
def test_overrides_of_a_nested_configuration(tmp_path: Path, text: str) -> None:
    [job] = _variants(_job(tmp_path, text), "model.width=8", "optimizer=adam")
    assert job.target.args == ("model.width=8", "optimizer=adam")
    [job] = _variants(_job(tmp_path, "import jsonargparse\nwidth: int = 3"), "model.width=8")
    assert job.target.args == ("--model.width", "8")
    with pytest.raises(UsageError, match=r"no way to set model\.height"):
        _variants(_job(tmp_path, "import jsonargparse\nwidth: int = 3"), "model.height=8")
