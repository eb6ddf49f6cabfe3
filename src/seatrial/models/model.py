"""Original: the model that is exported, as it computes now, with inputs to compare on."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from seatrial.train.errors import InputError
from seatrial.train.saving.examples import Examples

#: Rows that are drawn where no real inputs are there.
DRAWN = 16


@dataclass(frozen=True)
class Original:
    """A model on the CPU; ``name``: of the exported files by default.

    Attributes:
        module: in evaluation mode; takes the inputs by position and returns tensors alone (see ``Flat``).
        state: its weights under the names that it was saved with.
        examples: inputs that it takes, drawn at random where none are saved; the outputs that were saved with these
            weights, {} where there are none; and what else is known of the model.
        dynamic: name → {dimension: its name} of those that vary; the batch is dimension 0.
        longest: of a dimension named ``length``. program: the file's own program, for .pt2.
    """

    name: str
    module: nn.Module
    state: Mapping[str, Tensor]
    examples: Examples
    outputs: tuple[str, ...]
    dynamic: Mapping[str, Mapping[int, str]]
    longest: int = 512
    program: Any = None

    @property
    def inputs(self) -> Mapping[str, Tensor]:
        """Return name → [N, …] of the examples."""
        return self.examples.inputs

    def rows(self, count: int) -> tuple[Tensor, ...]:
        """Return so many rows of the inputs, from the first on and repeated. A single text loses its padding."""
        taken = torch.arange(count) % len(self.examples)
        rows = {name: each[taken] for name, each in self.inputs.items()}
        if count == 1 and "attention_mask" in rows:
            length = max(2, int(rows["attention_mask"].sum()))
            rows = {name: each[:, :length] for name, each in rows.items()}
        return tuple(rows.values())

    @property
    def fixed_batch(self) -> int | None:
        """Return the only batch that it takes, or None."""
        return None if all(0 in dimensions for dimensions in self.dynamic.values()) else len(self.examples)

    @property
    def dtype(self) -> torch.dtype:
        """Return the coarsest type of its weights, which decides the tolerance."""
        kinds = {tensor.dtype for tensor in self.state.values() if tensor.is_floating_point()}
        ordered = (torch.bfloat16, torch.float16, torch.float32, torch.float64)
        return next((each for each in ordered if each in kinds), torch.float32)


class Flat(nn.Module):
    """A model whose outputs are a tensor or a plain tuple of tensors, for any return value of the inner one."""

    def __init__(self, inner: nn.Module, keywords: Sequence[str] = ()) -> None:
        """Keep the module. keywords: what the inputs are passed as; without them, by place."""
        super().__init__()
        self.inner, self.keywords = inner, tuple(keywords)
        self.training = False  # not by eval(): a .pt2 file's program refuses the call

    def forward(self, *inputs: Tensor) -> Any:
        named = outputs_of(self.call(*inputs))
        return tuple(named.values()) if len(named) > 1 else next(iter(named.values()))

    def call(self, *inputs: Tensor) -> Any:
        """Call the inner model."""
        if self.keywords:
            return self.inner(**dict(zip(self.keywords, inputs, strict=True)))
        return self.inner(*inputs)


def keywords_of(network: nn.Module, names: Sequence[str]) -> tuple[str, ...]:
    """Return the names if the network takes them in another order, else (). Raises InputError: some are elsewhere."""
    parameters = inspect.signature(network.forward).parameters.values()
    own = [each.name for each in parameters if each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)]
    if all(name in own for name in names):
        return () if [*names] == own[: len(names)] else tuple(names)
    if any(name in own and own.index(name) != place for place, name in enumerate(names)):
        problem = f"the inputs are called {', '.join(names)}, and the network takes {', '.join(own[:12])}"
        raise InputError(problem, fix="call the inputs as forward() does")
    return ()


def outputs_of(result: Any) -> dict[str, Tensor]:
    """Return name → tensor of a model's return value. Raises InputError if it holds none."""
    if isinstance(result, Tensor):
        return {"output": result}
    if isinstance(result, Mapping):
        named = {str(name): each for name, each in result.items() if isinstance(each, Tensor)}
    elif isinstance(result, Sequence):
        named = {f"output_{number}": each for number, each in enumerate(result) if isinstance(each, Tensor)}
    else:
        named = {}
    if not named:
        raise InputError(f"the model returns a {type(result).__name__}, which holds no tensor", fix="return a tensor")
    return named


def drawn(
    shapes: Mapping[str, Sequence[int]], dtypes: Mapping[str, torch.dtype], rows: int = DRAWN
) -> dict[str, Tensor]:
    """Draw inputs of these shapes from a fixed seed: normal numbers; for other types 0 and 1."""
    generator = torch.Generator().manual_seed(0)
    inputs = {}
    for name, shape in shapes.items():
        dtype, size = dtypes.get(name, torch.float32), (rows, *shape)
        if dtype.is_floating_point:
            inputs[name] = torch.randn(size, generator=generator).to(dtype)
        else:
            inputs[name] = torch.randint(0, 2, size, generator=generator).to(dtype)
    return inputs
