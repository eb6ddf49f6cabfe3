"""Inside of any module: batch normalisation with the sum and activation after it, run by kernels of this library.

The model stays as it is: its layers, its state, its class. While a training step runs, the ``forward`` of those modules
whose own code puts such layers one after the other is another that does the same; evaluation, copies and files never
see it. What such a code does is read by torch.fx, once, with every module that it calls as a black box. A module that
fx cannot read (it branches on tensors), or whose settings have changed since, runs as it is written.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import Graph, GraphModule, Node
from torch.nn import functional as F

from seatrial.train.autocast_weights import AutocastLayers
from seatrial.train.kernels import batch_norm, runtime
from seatrial.train.kernels.ops import REALS, KernelModule
from seatrial.train.precision import Precision
from seatrial.train.traced_code import NotTraceable, hooked, read, running_by, settings_of

_SUMS = (operator.add, operator.iadd, torch.add)


class NormThen(nn.Module):
    """activation(norm(x) + residual), by kernels where they fit what comes, else by torch."""

    def __init__(self, norm: nn.BatchNorm2d, activation: str) -> None:
        super().__init__()
        self.norm, self.activation = norm, activation
        #: Totals for the next call alone, and those of the last one.
        self.totals: batch_norm.Totals | None = None
        self.given: batch_norm.Totals | None = None

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """Normalise x [B, C, H, W], add the residual of the same shape, and activate."""
        alike = residual is None or (residual.dtype == x.dtype and residual.shape == x.shape)
        fits = alike and x.dtype in REALS and x.ndim == 4 and self.norm.weight.dtype == torch.float32
        if not (fits and self.norm.training and not hooked(self.norm) and runtime.usable(x.device)):
            return self._plain(x, residual)
        layout = torch.channels_last
        x = x.contiguous(memory_format=layout)
        if residual is not None:
            residual = residual.contiguous(memory_format=layout)
        norm = self.norm
        totals, self.totals = self.totals, None
        if totals is None or totals.zeros.device != x.device:
            totals = batch_norm.Totals(torch.zeros(2, 2, norm.num_features, dtype=torch.double, device=x.device))
        else:
            self.given = totals
        given = (x, norm.weight, norm.bias, residual)
        return batch_norm.norm_act(*given, norm=norm, activation=self.activation, totals=totals)

    def _plain(self, x: Tensor, residual: Tensor | None) -> Tensor:
        x = self.norm(x)
        x = x if residual is None else x + residual
        return F.relu(x) if self.activation == "relu" else F.gelu(x) if self.activation == "gelu" else x


def prepare(model: nn.Module, precision: Precision) -> tuple[str, ModuleKernels | None]:
    """Begin to compile the kernels that fit inside of any module; return a line that describes them, and those found.

    None if no layer of the model runs by kernels here.
    """
    if precision.device.type != "cuda" or precision.dtype not in REALS:
        return f"layers: torch's own, in {precision.name} on {precision.device.type}", None
    if reason := runtime.unavailable():
        return f"layers: torch's own, for kernels cannot be compiled here ({reason})", None
    found = ModuleKernels(model)
    if precision.dtype == torch.bfloat16 and (products := AutocastLayers(model)).layers:
        found.products = products
    for each in found.modules(precision.dtype):
        runtime.build(each.text, precision.device.index or 0)
    if precision.name != "fp32" and any(isinstance(layer, nn.Conv2d) for layer in model.modules()):
        torch.backends.cudnn.benchmark = True  # it measures its ways when a shape is first met: a second for ResNet-18
    return f"layers: {found}", found if found.used else None


class ModuleKernels:
    """The layers found inside of a model, and the way to run them.

    Attributes:
        norms: taken by kernels. left: names of those that stay torch's, with why.
        products: layers that multiply by bf16 copies of their weights, made when ``running`` begins; or None.
    """

    def __init__(self, model: nn.Module) -> None:
        self.products: AutocastLayers | None = None
        self._forwards: list[tuple[nn.Module, Callable[..., Any]]] = []
        self._fused: list[NormThen] = []
        self._totals: Tensor | None = None
        self.norms: list[tuple[nn.BatchNorm2d, str]] = []
        self.left: dict[str, str] = {}
        names = {module: name for name, module in model.named_modules()}
        held = [norm for norm in names if isinstance(norm, nn.modules.batchnorm._BatchNorm)]
        reasons: dict[nn.Module, str] = {}
        for module in names:
            if any(isinstance(child, nn.modules.batchnorm._BatchNorm) for child in module.children()):
                self._read(module, reasons)
        taken = {norm for norm, _ in self.norms}
        for norm in held:
            if norm not in taken:
                self.left[names[norm] or type(norm).__name__] = reasons.get(norm, "of a kind that no kernel fits")

    @property
    def used(self) -> bool:
        """Return True if anything runs by our kernels."""
        return bool(self.norms or self.products)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Run the modules within by kernels; one launch clears the sums of every layer to zeros."""
        if self._fused:
            device, widths = self._fused[0].norm.weight.device, [4 * part.norm.num_features for part in self._fused]
            if self._totals is None or self._totals.device != device:
                self._totals = torch.zeros(sum(widths), dtype=torch.double, device=device)
            for part, totals in zip(self._fused, torch.split(self._totals.zero_(), widths), strict=True):
                for before in (part.totals, part.given):
                    if before is not None:
                        before.current = False
                part.totals = batch_norm.Totals(totals.view(2, 2, part.norm.num_features))
        products = self.products.running() if self.products else nullcontext()
        with running_by(self._forwards), products:
            yield

    def modules(self, dtype: torch.dtype) -> list[KernelModule]:
        """Return the kernels."""
        kinds = {(norm.num_features, activation) for norm, activation in self.norms}
        return [batch_norm.norm_act_module(dtype, channels, activation) for channels, activation in sorted(kinds)]

    def __str__(self) -> str:
        """Describe which layers run by kernels, and which do not."""
        kinds = [
            (len(self.norms), "batch normalisations with what follows them run in kernels of this library"),
            (len(self.products.layers) if self.products else 0, "products use bf16 copies of their weights"),
        ]
        taken = "; ".join(f"{count} {kind}" for count, kind in kinds if count)
        if not taken and not self.left:
            return "torch's own: no batch normalisation is inside, which is what kernels of this library replace"
        if not self.left:
            return f"{taken}; everything else is torch's own"
        taken = taken or "0 batch normalisations run in kernels of this library"
        (name, why), *others = self.left.items()
        more = f" and {len(others)} more" if others else ""
        return f"{taken}; left to torch: {name}{more} ({why})"

    def _read(self, module: nn.Module, reasons: dict[nn.Module, str]) -> None:
        """Find the patterns in one module's code."""
        norms = [child for child in module.children() if isinstance(child, nn.modules.batchnorm._BatchNorm)]
        if "forward" in module.__dict__ or hooked(module):
            reasons.update(dict.fromkeys(norms, f"{type(module).__name__} has hooks or a forward of its own"))
            return
        try:
            graph = read(module)
        except NotTraceable as error:
            reasons.update(dict.fromkeys(norms, str(error)))
            return
        children = dict(module.named_modules())
        if any(node.op == "get_attr" for node in graph.nodes):
            reasons.update(dict.fromkeys(norms, f"{type(module).__name__}'s code uses weights of its own"))
            return
        found = _replace(graph, children)
        if not found:
            return
        fused = GraphModule(children, graph)
        self.norms += found
        self._fused += [part for part in children.values() if isinstance(part, NormThen)]
        settings = settings_of(module)
        written = type(module).forward

        def forward(*arguments: Any, **named: Any) -> Any:
            tensors = all(isinstance(argument, Tensor) for argument in (*arguments, *named.values()))
            same = settings_of(module) == settings
            if module.training and tensors and same:
                return fused(*arguments, **named)
            return written(module, *arguments, **named)

        self._forwards.append((module, forward))


def _replace(graph: Graph, children: dict[str, nn.Module]) -> list[tuple[nn.BatchNorm2d, str]]:
    """Put NormThen in the place of each pattern; the layers found."""
    found: list[tuple[nn.BatchNorm2d, str]] = []
    for node in list(graph.nodes):
        norm = children.get(node.target) if node.op == "call_module" else None
        if norm is None or not batch_norm.fits(norm) or hooked(norm) or len(node.args) != 1 or node.kwargs:
            continue
        assert isinstance(norm, nn.BatchNorm2d)
        last, residual, activation = node, None, "none"
        following = _only_user(node)
        if following is not None and (other := _other_summand(following, node)) is not None:
            after = _only_user(following)
            if after is not None and _activation(after, children) == "relu":
                last, residual, activation = after, other, "relu"
        elif following is not None and (kind := _activation(following, children)):
            last, activation = following, kind
        name = f"seatrial_{len(found)}"
        children[name] = NormThen(norm, activation)
        with graph.inserting_before(last):
            arguments = (node.args[0],) if residual is None else (node.args[0], residual)
            fused = graph.call_module(name, arguments)
        last.replace_all_uses_with(fused)
        for replaced in dict.fromkeys([last, *([following] if residual is not None and following else []), node]):
            graph.erase_node(replaced)
        found.append((norm, activation))
    return found


def _only_user(node: Node) -> Node | None:
    return next(iter(node.users)) if len(node.users) == 1 else None


def _other_summand(node: Node, summand: Node) -> Node | None:
    added = node.op == "call_function" and node.target in _SUMS
    added = added or (node.op == "call_method" and node.target in ("add", "add_"))
    if not added or len(node.args) != 2 or node.kwargs:
        return None
    first, second = node.args
    in_place = node.target in (operator.iadd, "add_")
    if in_place and first is not summand:
        return None  # the other one is changed, and may be used again
    other = second if first is summand else first
    return other if isinstance(other, Node) and other is not summand else None


def _activation(node: Node, children: dict[str, nn.Module]) -> str | None:
    """Return the activation if the kernels know it, or None."""
    if node.op == "call_module":
        layer = children.get(str(node.target))
        if layer is None or hooked(layer):
            return None
        if type(layer) is nn.ReLU:
            return "relu"
        return "gelu" if type(layer) is nn.GELU and layer.approximate == "none" else None
    if node.op == "call_method":
        return "relu" if node.target in ("relu", "relu_") else None
    if node.target in (F.relu, torch.relu, torch.relu_):
        return "relu"
    return "gelu" if node.target is F.gelu and node.kwargs.get("approximate", "none") == "none" else None
