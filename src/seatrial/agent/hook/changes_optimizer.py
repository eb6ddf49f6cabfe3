"""Changes of optimizers: one kernel for all parameters, where the optimizer has one."""

import importlib
import inspect
import sys
import weakref
from typing import Any, Optional

#: Those of torch that know ``fused`` in one version or another; whether this version does is asked of the optimizer.
_KNOWN = ("Adam", "AdamW", "SGD", "Adagrad")


class Optimizers:
    """Sets ``fused`` at an optimizer's first step, when its parameters are where they will be; and tells of steps."""

    KEYS = ("fused_optimizer",)

    def __init__(self, changes: Any) -> None:
        self._changes, self._torch = changes, changes.torch
        self._made: Any = weakref.WeakKeyDictionary()
        self._looked_at: Any = weakref.WeakSet()
        self._trying = False

    def place(self) -> None:
        if "fused_optimizer" in self._changes.wanted:
            self._remember_places()
        optimizer: Any = sys.modules["torch.optim.optimizer"]
        compiling = getattr(getattr(self._torch, "compiler", None), "is_compiling", lambda: False)

        def before_step(optimizer: Any, args: Any, kwargs: Any) -> None:
            if not compiling():
                self._before(optimizer)

        def after_step(optimizer: Any, args: Any, kwargs: Any) -> None:
            if not compiling():
                self._after(optimizer)

        optimizer.register_optimizer_step_pre_hook(before_step)
        optimizer.register_optimizer_step_post_hook(after_step)

    def _remember_places(self) -> None:
        base = self._torch.optim.Optimizer
        original = base.__init__

        def __init__(optimizer: Any, *args: Any, **kwargs: Any) -> None:
            original(optimizer, *args, **kwargs)
            try:
                if not self._trying:
                    self._made[optimizer] = self._changes.where.here()
            except Exception as error:  # noqa: BLE001
                self._changes.failed(self.KEYS, error)

        __init__.__doc__ = original.__doc__
        base.__init__ = __init__

    def _before(self, optimizer: Any) -> None:
        if "fused_optimizer" not in self._changes.wanted or optimizer in self._looked_at:
            return
        self._looked_at.add(optimizer)
        try:
            why = self._why_not(optimizer)
            if why is not None:
                self._changes.refuse("fused_optimizer", why)
                return
            fuse(self._torch, optimizer)
            self._changes.apply("fused_optimizer", self._made.get(optimizer))
        except Exception as error:  # noqa: BLE001
            self._changes.failed(self.KEYS, error)

    def _after(self, optimizer: Any) -> None:
        try:
            self._changes.stepped()
        except Exception as error:  # noqa: BLE001
            self._changes.failed(self.KEYS, error)

    def _why_not(self, optimizer: Any) -> Optional[str]:
        kind: Any = next((base for base in type(optimizer).__mro__ if base.__name__ in _KNOWN), None)
        if kind is None or not kind.__module__.startswith("torch.optim"):
            return "%s has no fused kernel" % type(optimizer).__name__
        if inspect.unwrap(type(optimizer).step) is not inspect.unwrap(kind.step):
            return "%s has a step of its own" % type(optimizer).__name__
        if "fused" not in optimizer.defaults:
            return "%s of torch %s knows no fused kernel" % (kind.__name__, self._torch.__version__)
        groups = optimizer.param_groups
        if all(group.get("fused") for group in groups):
            return "the script's optimizer is fused already"
        if any(group.get("differentiable") for group in groups):
            return "a differentiable optimizer cannot be fused"
        parameters = [p for group in groups for p in group["params"]]
        if any(p.grad is not None and p.grad.is_sparse for p in parameters):
            return "some gradients are sparse"
        devices = {p.device.type for p in parameters}
        if not devices <= _fused_devices():
            return "no fused kernel for parameters on %s" % ", ".join(sorted(devices))
        if any(not p.is_floating_point() for p in parameters):
            return "some parameters are not real numbers"
        return self._refused_by_its_constructor(kind, parameters)

    def _refused_by_its_constructor(self, kind: Any, parameters: Any) -> Optional[str]:
        """A small one is made with ``fused``, which knows what this version can."""
        torch = self._torch
        self._trying = True
        try:
            for device in {p.device for p in parameters}:
                small = torch.nn.Parameter(torch.zeros(1, device=device))
                kind([small], lr=0.1, fused=True)
        except (RuntimeError, TypeError, ValueError) as error:
            return (str(error).splitlines() or ["its constructor refuses"])[0][:160]
        finally:
            self._trying = False
        return None


def fuse(torch: Any, optimizer: Any) -> None:
    """What the constructor and ``__setstate__`` do for ``fused=True``. Source: torch/optim/adam.py, 2.13."""
    optimizer.defaults["fused"] = True
    for group in optimizer.param_groups:
        group["fused"] = True
        if group.get("foreach"):
            group["foreach"] = False
        for parameter in group["params"]:
            state = optimizer.state.get(parameter) or {}
            if "step" in state and type(optimizer).__name__ != "SGD":
                step = state["step"]
                value = float(step)
                state["step"] = torch.tensor(value, dtype=torch.float32, device=parameter.device)


def _fused_devices() -> Any:
    try:
        return set(importlib.import_module("torch.utils._foreach_utils")._get_fused_kernels_supported_devices())
    except (ImportError, AttributeError):
        return {"cuda"}
