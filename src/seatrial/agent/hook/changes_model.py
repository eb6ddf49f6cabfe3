"""Changes of the model: bf16 autocast, channels_last and torch.compile of the outermost module.

Outermost is a module with something to train that is called while no other module runs and gradients are on. There may
be several: a generator and its adversary, say. A ModuleCalls (module_calls.py) is put before each.
"""

import threading
import weakref
from typing import Any, Dict, Optional

from .module_calls import ModuleCalls
from .recorder import shared

#: Optimizer steps during which modules are looked for. torch.compile begins behind them, so that it sees a torch
#: without what looks for modules.
_LOOK_FOR_STEPS = 3

#: A script that calls more modules than this by themselves calls layers, not a model.
_MOST_MODULES = 8

#: Classes that spread a model, which a change from outside would come between.
_SPREAD = {
    "DataParallel": ("precision", "channels_last", "compile"),
    "FullyShardedDataParallel": ("channels_last", "compile"),
    "DeepSpeedEngine": ("precision", "channels_last", "compile"),
    "ScriptModule": ("compile",),
    "RecursiveScriptModule": ("compile",),
}


class Models:
    """Looks for outermost modules in the first steps.

    Args:
        changes: what is wanted (changes.py).
    """

    KEYS = ("precision", "channels_last", "compile")

    def __init__(self, changes: Any) -> None:
        self._changes, self._torch = changes, changes.torch
        self._module_calls: Dict[int, ModuleCalls] = {}
        self._moved: Any = weakref.WeakKeyDictionary()  # a module → where the script moved it to its device
        self._running = threading.local()
        self._original: Any = None
        self._ours: Any = None
        self._steps = 0
        self._moving = False
        self._converted: Any = weakref.WeakSet()

    def place(self) -> None:
        changes = self._changes
        if not any(key in changes.wanted for key in (*self.KEYS, *changes.NEED_A_MODULE)):
            return
        base = self._torch.nn.Module
        compiling = getattr(getattr(self._torch, "compiler", None), "is_compiling", lambda: False)
        original = self._original = base.__call__

        def __call__(module: Any, *args: Any, **kwargs: Any) -> Any:
            if compiling():
                return original(module, *args, **kwargs)
            return self._called(module, args, kwargs)

        self._ours = base.__call__ = __call__
        changes.after_step, changes.before_ddp, changes.evaluating = (
            self._after_step,
            self._before_ddp,
            self._evaluating,
        )
        for name in ("to", "cuda"):
            self._remember_moves(base, name)

    def _remember_moves(self, base: Any, name: str) -> None:
        original = getattr(base, name)

        def move(module: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                place = None if self._moving else self._changes.where.here()
                if place is not None and place.package is None and module not in self._moved:
                    self._moved[module] = place
            except Exception as error:  # noqa: BLE001
                self._changes.failed(self.KEYS, error)
            return original(module, *args, **kwargs)

        move.__name__, move.__doc__ = name, original.__doc__
        setattr(base, name, move)

    def _called(self, module: Any, args: Any, kwargs: Any) -> Any:
        running = self._running
        if getattr(running, "depth", 0):
            return self._original(module, *args, **kwargs)
        running.depth = 1
        try:
            if id(module) not in self._module_calls and self._trains(module):
                try:
                    self._sit(module)
                except Exception as error:  # noqa: BLE001
                    self._changes.failed(self.KEYS, error)
                else:
                    return module(*args, **kwargs)
            return self._original(module, *args, **kwargs)
        finally:
            running.depth = 0

    def _trains(self, module: Any) -> bool:
        return self._torch.is_grad_enabled() and any(p.requires_grad for p in module.parameters())

    def _sit(self, module: Any) -> None:
        """``module`` is outermost: change its calls."""
        changes = self._changes
        changes.at_training(module)
        place = changes.where.here()
        calls = self._module_calls[id(module)] = ModuleCalls(changes, module)
        if len(self._module_calls) > _MOST_MODULES:
            return
        changes.seen("model", place)
        for mover in (module, getattr(module, "module", None)):
            if mover is not None and mover in self._moved:
                changes.seen("model_to", self._moved[mover])
        kept_out = set() if on_one_gpu(module) else _kept_out(module)
        for key, change in (("channels_last", self._channels_last), ("precision", self._precision)):
            if key not in changes.wanted:
                continue
            why: Optional[str] = "the model is spread by %s" % type(module).__name__
            if key not in kept_out:
                why = change(module, calls)
            if why is None:
                changes.apply(key, place)
            else:
                changes.refuse(key, why)
        if "compile" in changes.wanted:
            if "compile" in kept_out:
                changes.refuse("compile", "the model is a %s" % type(module).__name__)
            elif compiles_itself(module):
                changes.refuse("compile", "the script compiles its model itself")
            else:
                changes.pending.add("compile")
                changes.seen("compile", place)
                calls.to_compile = True
        if calls.needed():
            calls.take_over(module)

    # the three

    def _channels_last(self, module: Any, calls: ModuleCalls) -> Optional[str]:
        if module not in self._converted and getattr(module, "module", None) not in self._converted:
            why = self._lay_out(module)
            if why is not None:
                return why
        calls.channels_last = True
        return None

    def _before_ddp(self, module: Any) -> None:
        """DDP lays its buckets out as the weights lie when it is made."""
        if "channels_last" in self._changes.wanted and self._lay_out(module) is None:
            self._converted.add(module)

    def _lay_out(self, module: Any) -> Optional[str]:
        self._moving = True  # this is no move of the script's
        try:
            return to_channels_last(self._torch, module)
        finally:
            self._moving = False

    def _precision(self, module: Any, calls: ModuleCalls) -> Optional[str]:
        torch = self._torch
        if self._changes.wanted["precision"] != "bf16":
            return "no such precision"
        trained = [p for p in module.parameters() if p.requires_grad]
        device = trained[0].device.type
        if device not in ("cuda", "cpu"):
            return "training is on %s" % device
        if device == "cuda" and not torch.version.hip and torch.cuda.get_device_capability(trained[0].device)[0] < 8:
            return "this GPU has no bf16"
        if all(p.dtype != torch.float32 for p in trained):
            return "the model's parameters are %s" % str(trained[0].dtype)[6:]
        if autocasts(torch, device):
            return "the script autocasts itself"
        calls.autocast = device
        return None

    def _after_step(self) -> None:
        """Modules are looked for no longer; what was found is compiled from the next call on."""
        self._steps += 1
        if self._steps != _LOOK_FOR_STEPS:
            return
        base = self._torch.nn.Module
        if base.__call__ is self._ours:
            base.__call__ = self._original
        if len(self._module_calls) > _MOST_MODULES:
            self._changes.refuse("compile", "the script calls %d modules by themselves" % len(self._module_calls))
            self._changes.pending.discard("compile")
            return
        to_compile = [calls for calls in self._module_calls.values() if calls.to_compile]
        if to_compile:
            shared().compile_begins_at = self._steps  # the hooks of ours that measure keep out of its sight
        for calls in to_compile:
            calls.compile()

    def _evaluating(self) -> bool:
        modules = [module for module in (calls.module() for calls in self._module_calls.values()) if module is not None]
        return bool(modules) and not any(module.training for module in modules)


def _kept_out(module: Any) -> Any:
    return {key for kind in type(module).__mro__ for key in _SPREAD.get(kind.__name__, ())}


def on_one_gpu(module: Any) -> bool:
    """Whether this is a DataParallel that calls its module itself, in this thread. Source: its forward, torch 2.13."""
    is_one = any(kind.__name__ == "DataParallel" for kind in type(module).__mro__)
    return is_one and len(getattr(module, "device_ids", (0, 0))) <= 1 and hasattr(module, "module")


def to_channels_last(torch: Any, module: Any) -> Optional[str]:
    """Lay the weights of 2-D convolutions out so. Returns why not."""
    weights = [p for m in module.modules() if isinstance(m, torch.nn.modules.conv._ConvNd) for p in [m.weight]]
    weights = [weight for weight in weights if weight.dim() == 4]
    if not weights:
        return "the model has no 2-D convolutions"
    wide = [weight for weight in weights if weight.shape[1] > 1 and weight.shape[2] * weight.shape[3] > 1]
    if wide and all(weight.is_contiguous(memory_format=torch.channels_last) for weight in wide):
        return "the model's weights are channels_last already"
    module.to(memory_format=torch.channels_last)
    return None


def compiles_itself(module: Any) -> bool:
    """torch.compile's own wrapper, or ``module.compile()``."""
    parts = [module, getattr(module, "module", None)]
    return any(
        (part is not None and (hasattr(type(part), "dynamo_ctx") or "_orig_mod" in getattr(part, "_modules", {})))
        or getattr(part, "_compiled_call_impl", None) is not None
        for part in parts
    )


def autocasts(torch: Any, device: str) -> bool:
    """Whether autocast is on here."""
    if device == "cpu":
        return bool(torch.is_autocast_cpu_enabled())
    return bool(torch.is_autocast_enabled())
