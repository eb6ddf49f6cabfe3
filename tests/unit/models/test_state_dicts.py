"""Files as training scripts of others write them: their weights are found, and nothing in them runs."""

from __future__ import annotations

import argparse
import datetime
import pickle
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import Tensor, nn  # noqa: E402

from seatrial.models.state_dicts import fitted, read_states, usual_first  # noqa: E402
from seatrial.train.errors import ModelFileError  # noqa: E402

pytestmark = pytest.mark.torch


class Net(nn.Module):
    """With a buffer that is not saved, and a weight under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
        self.head = nn.Linear(4, 3, bias=False)
        self.embed = nn.Linear(4, 3, bias=False)
        self.embed.weight = self.head.weight
        self.register_buffer("passing", torch.ones(2), persistent=False)


class Whatever:
    """A class of the user's; it runs code when it is made or unpickled."""

    def __init__(self) -> None:
        self.kept = {"a": 1}

    def __setstate__(self, state: Any) -> None:
        raise AssertionError("code of the file ran")


def prefixed(state: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {f"{prefix}{name}": each for name, each in state.items()}


def tied_once(state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: each for name, each in state.items() if name != "embed.weight"}


#: name → what a training script gives to torch.save.
SAVED: dict[str, Callable[[Net, dict[str, Tensor]], Any]] = {
    "a state dict": lambda net, state: state,
    "the module": lambda net, state: net,
    "DataParallel": lambda net, state: prefixed(state, "module."),
    "torch.compile": lambda net, state: prefixed(state, "_orig_mod."),
    "both": lambda net, state: prefixed(state, "module._orig_mod."),
    "a compiled part": lambda net, state: {name.replace("body.", "body._orig_mod."): x for name, x in state.items()},
    "FSDP": lambda net, state: prefixed(state, "_fsdp_wrapped_module."),
    "Lightning": lambda net, state: {
        "state_dict": prefixed(state, "model.") | {"loss.weight": torch.ones(3)},
        "hyper_parameters": {"cfg": argparse.Namespace(lr=0.1)},
        "callbacks": {},
    },
    "detr": lambda net, state: {"model": state, "args": argparse.Namespace(out=Path("x")), "epoch": 3},
    "imagenet": lambda net, state: {"epoch": 1, "arch": "a", "state_dict": prefixed(state, "module."), "best": 0.5},
    "numbers of NumPy": lambda net, state: {"model_state": state, "best": np.float64(0.3), "all": np.zeros(3)},
    "pytorch-cifar": lambda net, state: {"net": state, "acc": 93.0},
    "yolo": lambda net, state: {"model": net, "ema": None, "date": datetime.datetime.now(), "opt": Whatever()},
    "a default dict": lambda net, state: {"history": defaultdict(list, {"loss": [1.0]}), "state_dict": state},
    "nested": lambda net, state: {"state": {"models": {"net": state}}, "rng": torch.get_rng_state()},
    "one of a tied pair": lambda net, state: tied_once(state),
    "an optimizer too": lambda net, state: {
        "optimizer": torch.optim.Adam(net.parameters()).state_dict(),
        "weights": state,
    },
}


@pytest.mark.parametrize("old", [False, True], ids=["zip", "older form"])
@pytest.mark.parametrize("name", [*SAVED])
def test_the_weights_of_a_network_are_found(tmp_path: Path, name: str, old: bool) -> None:
    net = Net()
    for parameter in net.parameters():
        nn.init.normal_(parameter)
    torch.save(SAVED[name](net, net.state_dict()), tmp_path / "c.pth", _use_new_zipfile_serialization=not old)
    states = read_states(tmp_path / "c.pth")
    found = next(each for place in usual_first(states) if (each := fitted(states[place], Net())) is not None)
    assert found.keys() == net.state_dict().keys()
    assert all(torch.equal(found[key], each) for key, each in net.state_dict().items())


def test_the_usual_names_come_first(tmp_path: Path) -> None:
    state = Net().state_dict()
    torch.save({"params_ema": state, "params": state}, tmp_path / "c.pth")
    assert usual_first(read_states(tmp_path / "c.pth")) == ["params", "params_ema"]


def test_another_networks_weights_do_not_fit() -> None:
    state = Net().state_dict()
    assert fitted(tied_once(state) | {"new": torch.ones(1)}, Net()) is None
    assert fitted({name: each for name, each in state.items() if name != "body.0.bias"}, Net()) is None
    assert fitted(prefixed(state, "a.") | prefixed(state, "b."), Net()) is not None, "the first of the two"


def test_of_two_networks_of_the_same_names_the_one_that_fits_and_has_the_usual_name(
    capsys: pytest.CaptureFixture[str],
) -> None:
    state, other = Net().state_dict(), {name: each + 1 for name, each in Net().state_dict().items()}
    smaller = {name: each[:1] if each.ndim else each for name, each in state.items()}
    found = fitted(prefixed(smaller, "actor.") | prefixed(state, "critic."), Net())
    assert found is not None
    assert torch.equal(found["head.weight"], state["head.weight"])
    assert capsys.readouterr().out == ""
    found = fitted(prefixed(other, "ema_model.") | prefixed(state, "model."), Net())
    assert found is not None
    assert torch.equal(found["head.weight"], state["head.weight"])
    assert "below model, which are taken, and below ema_model" in capsys.readouterr().out


def test_tensor_with_attributes_is_a_tensor_and_a_module_within_itself_damaged(tmp_path: Path) -> None:
    tensor, net = torch.ones(3), nn.Linear(2, 2)
    tensor.note = "of the user's own"  # type: ignore[attr-defined]
    torch.save({"w": tensor}, tmp_path / "c.pth")
    assert torch.equal(read_states(tmp_path / "c.pth")[""]["w"], torch.ones(3))
    net._modules["again"] = net
    torch.save(net, tmp_path / "c.pth")
    with pytest.raises(ModelFileError, match="damaged"):
        read_states(tmp_path / "c.pth")


class Calls:
    """A pickle of it calls a function."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self.called = function, arguments

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return self.called


@pytest.mark.parametrize("old", [False, True], ids=["zip", "older form"])
@pytest.mark.parametrize(
    ("function", "text"),
    [(Path.touch, "getattr"), (eval, "builtin"), (getattr, "getattr"), (pickle.loads, "loads"), (__import__, "import")],
)
def test_a_call_is_refused_and_not_made(
    tmp_path: Path, function: Callable[..., Any], text: str, old: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    arguments = {
        Path.touch: (tmp_path / "it-ran",),
        getattr: (Path, "cwd"),
        pickle.loads: (pickle.dumps(1),),
        __import__: ("this",),
    }.get(function, ("open('it-ran', 'w')",))
    saved = {"model": Net().state_dict(), "x": Calls(function, *arguments)}
    torch.save(saved, tmp_path / "c.pth", _use_new_zipfile_serialization=not old)
    with pytest.raises(ModelFileError, match=rf"calls .*{text}.* as it is loaded: unpickling runs code"):
        read_states(tmp_path / "c.pth")
    assert not (tmp_path / "it-ran").exists()


def test_what_is_no_checkpoint(tmp_path: Path) -> None:
    torch.save({"epoch": 3, "names": ["a"]}, tmp_path / "c.pth")
    with pytest.raises(ModelFileError, match="holds a dict, which is not a state dict"):
        read_states(tmp_path / "c.pth")
    torch.save(Net().state_dict(), tmp_path / "c.pth", _use_new_zipfile_serialization=False)
    (tmp_path / "c.pth").write_bytes((tmp_path / "c.pth").read_bytes()[:-40])
    with pytest.raises(ModelFileError, match="truncated or damaged"):
        read_states(tmp_path / "c.pth")
