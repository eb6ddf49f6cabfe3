"""Layer normalisations of any module, run by kernels of this library while a step runs.

Under autocast torch makes fp32 of their results, which the products after them turn into bf16. Where a module's code
shows that nothing else reads a result, it is written in bf16 at once: the same numbers, a third of the bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import Node

from seatrial.train.kernels import layernorm
from seatrial.train.kernels.nvrtc import REALS, usable
from seatrial.train.traced_code import NotTraceable, hooked, read, running_by, settings_of

#: Modules within modules that are read for who gets a result.
DEEP = 3


class LayerNorms:
    """The layer normalisations of a model that kernels know.

    Attributes:
        layers: these.
    """

    def __init__(self, model: nn.Module) -> None:
        self._parents: dict[nn.Module, list[nn.Module]] = {}
        for module in model.modules():
            for child in module.children():
                self._parents.setdefault(child, []).append(module)
        self.layers = [layer for layer in model.modules() if isinstance(layer, nn.LayerNorm) and plain(layer)]
        #: Layers whose results only products read, with the module that shows it and its settings then.
        self._narrow: dict[nn.Module, tuple[nn.Module, dict[str, Any]]] = {}
        self._forwards = [self._forward(layer) for layer in self.layers]

    def narrow(self, products: Collection[nn.Module]) -> None:
        """Find out whose results only these products read."""
        self._narrow = {}
        for parent in {id(found[0]): found[0] for found in self._parents.values() if len(found) == 1}.values():
            own = [layer for layer in self.layers if self._parents.get(layer) == [parent]]
            try:
                nodes = list(read(parent).nodes) if own else []
            except NotTraceable:
                continue
            children = dict(parent.named_modules())
            for layer in own:
                calls = [node for node in nodes if node.op == "call_module" and children[str(node.target)] is layer]
                if calls and all(_only_products(node, children, products, DEEP) for node in calls):
                    self._narrow[layer] = (parent, settings_of(parent))

    @contextmanager
    def running(self) -> Iterator[None]:
        """Within, the layers run by kernels."""
        with running_by(zip(self.layers, self._forwards, strict=True)):
            yield

    def sources(self, dtype: torch.dtype) -> list[str]:
        """The kernels' texts for what comes in fp32, as it does behind a sum under autocast."""
        half = torch.bfloat16 if dtype == torch.bfloat16 else torch.float32
        made = {(layer.normalized_shape[0], half if layer in self._narrow else torch.float32) for layer in self.layers}
        return [layernorm.source(width, torch.float32, kind) for width, kind in sorted(made, key=str)]

    def _forward(self, layer: nn.LayerNorm) -> Callable[[Tensor], Tensor]:
        def forward(x: Tensor) -> Tensor:
            if not _known(x, layer):
                return nn.LayerNorm.forward(layer, x)
            casts = torch.is_autocast_enabled(x.device.type)
            made = torch.float32 if casts else x.dtype
            parent, settings = self._narrow.get(layer, (None, {}))
            if casts and parent is not None and parent.training and settings_of(parent) == settings:
                made = torch.get_autocast_dtype(x.device.type)
            if made not in REALS:
                return nn.LayerNorm.forward(layer, x)
            result: Tensor = layernorm.LayerNorm.apply(x, layer.weight, layer.bias, layer.eps, made)  # type: ignore[no-untyped-call]
            return result

        return forward


def plain(layer: nn.LayerNorm) -> bool:
    """Return True if it is torch's own, over the last dimension, with an fp32 weight, of a width for the kernels."""
    if type(layer) is not nn.LayerNorm or hooked(layer) or "forward" in layer.__dict__:
        return False
    if not isinstance(layer._parameters.get("weight"), Tensor) or layer.weight.dtype != torch.float32:
        return False
    return len(layer.normalized_shape) == 1 and layernorm.fits(layer.normalized_shape[0])


def _only_products(node: Node, children: dict[str, nn.Module], products: Collection[nn.Module], deep: int) -> bool:
    """Return True if only linear layers among ``products`` read a result, maybe within modules called with it."""
    for user in node.users:
        if user.op == "call_method" and user.target in ("size", "dim"):
            continue
        if user.op == "call_function" and user.target is getattr and user.args[1:] in (("shape",), ("ndim",)):
            continue
        if user.op != "call_module" or user.args != (node,) or user.kwargs:
            return False
        called = children[str(user.target)]
        if isinstance(called, nn.Linear):
            if called not in products:
                return False
        elif not deep or hooked(called) or "forward" in called.__dict__ or not _passes_on(called, products, deep - 1):
            return False
    return True


def _passes_on(module: nn.Module, products: Collection[nn.Module], deep: int) -> bool:
    """Return True if a module gives its input to products alone."""
    try:
        nodes = list(read(module).nodes)
    except NotTraceable:
        return False
    given = [node for node in nodes if node.op == "placeholder"]
    return bool(given) and _only_products(given[0], dict(module.named_modules()), products, deep)


def _known(x: Tensor, layer: nn.LayerNorm) -> bool:
    """Return True if the kernels take such numbers, and only plain gradients are needed."""
    plain_call = torch.is_grad_enabled() and not torch._C._are_functorch_transforms_active() and layer.training
    fits = x.dtype in REALS and x.numel() > 0 and x.shape[-1] == layer.normalized_shape[0]
    return plain_call and fits and layer.weight.requires_grad and usable(x.device)
