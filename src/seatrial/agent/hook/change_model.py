"""Change the outermost module: bf16 autocast, channels_last and torch.compile.

Outermost is a module with something to train that is called while no other module runs and gradients are on. There may
be several: a generator and its adversary, for example. Each gets a class of its own that changes its calls alone: it
prints, copies and is saved as before, and its state_dict, hooks and parts are untouched.
"""

import copyreg
import importlib
import threading
import weakref
from typing import Any, Callable, Dict, Optional, Tuple

from .observe import accompanied, compiling_check, wrap
from .report import in_short
from .steps import shared

#: First calls, which are watched closely and whose errors are blamed on a change.
_FIRST_CALLS = 3


class ModuleCalls:
    """Changes of one module's calls.

    Args:
        changes: what is wanted (changes.py).
        module: an outermost one.

    Attributes:
        autocast: device to autocast to bf16 on; None for no autocast.
        channels_last: whether 4-D inputs are laid out so.
        to_compile: whether ``compile`` is to be called when modules are looked for no longer.
    """

    def __init__(self, changes: Any, module: Any) -> None:
        self._changes, self._torch = changes, changes.torch
        self.module: Callable[[], Any] = weakref.ref(module)
        self._kind: Any = type(module)
        self.autocast: Optional[str] = None
        self.channels_last = self.to_compile = False
        self._compiled: Any = None
        self._inner: Optional[ModuleCalls] = None
        self._copies_outputs = False
        self._first_calls = _FIRST_CALLS

    def needed(self) -> bool:
        """Return whether there is anything to do around calls."""
        return bool(self.autocast or self.channels_last or self.to_compile or self._compiled)

    def take_over(self, module: Any) -> None:
        """Route the calls of ``module`` through this object from now on."""
        object.__setattr__(module, "__class__", self._class(self._kind))

    def _class(self, kind: Any) -> Any:
        calls = self

        def __call__(module: Any, *args: Any, **kwargs: Any) -> Any:
            if calls.module() is not module:  # a copy that was made by calling the class
                return kind.__call__(module, *args, **kwargs)
            return calls.call(module, args, kwargs)

        def __reduce_ex__(module: Any, protocol: Any) -> Any:
            reduced = kind.__reduce_ex__(module, protocol)
            if isinstance(reduced, tuple) and reduced[1] == (ours,):  # pickle would compare it with the object's class
                reduced = (copyreg._reconstructor, (kind, object, None), *reduced[2:])  # type: ignore[attr-defined]
            elif isinstance(reduced, tuple):
                reduced = (reduced[0], tuple(kind if part is ours else part for part in reduced[1]), *reduced[2:])
            return reduced

        parts = {"__call__": __call__, "__reduce_ex__": __reduce_ex__, "__module__": kind.__module__}
        ours = type(kind)(kind.__name__, (kind,), {**parts, "__qualname__": kind.__qualname__, "__doc__": kind.__doc__})
        return ours

    def compile(self) -> None:
        """Compile the module at its next call; DDP's inner one, whose gradients it waits for, and DataParallel's."""
        module = self.module()
        if module is None:
            return
        try:
            if type(module).__name__ in ("DistributedDataParallel", "DataParallel"):
                self._inner = ModuleCalls(self._changes, module.module)
                self._inner.compile()
                self._inner.take_over(module.module)
                return
            torch, mode = self._torch, self._changes.wanted["compile"]
            # Code that cannot be compiled runs as it is. Source: torch/_dynamo/config.py, 2.0 and later.
            importlib.import_module("torch._dynamo.config").suppress_errors = True  # type: ignore[attr-defined]
            self._compiled = torch.compile(self._to_trace(module), mode=mode)
            self._copies_outputs = mode == "reduce-overhead"
            self._first_calls = _FIRST_CALLS
        except Exception as error:  # noqa: BLE001
            self._compiled = None
            self._changes.pending.discard("compile")
            self._changes.take_back("compile", "torch.compile failed: %s" % in_short(error))

    def _to_trace(self, module: Any) -> Any:
        """Return the function to compile. torch.compile passes over calls of torch's own classes, nn.Sequential
        for example, unless a frame of another file is around them; ``module.compile()`` does nothing for them."""
        call = module._call_impl
        if not str(getattr(type(module).forward, "__module__", "")).startswith("torch.nn."):
            return call
        try:
            wrap = importlib.import_module("torch._dynamo.external_utils").wrap_inline
        except (ImportError, AttributeError):  # torch 2.0
            return call
        self._changes.hint("compiled", "forward")
        return wrap(call)

    def call(self, module: Any, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Any:
        if not self._first_calls:
            return self._run(module, args, kwargs)
        self._first_calls -= 1
        try:
            result = self._watched(module, args, kwargs)
        except Exception as error:
            self._report_failure(error)
            raise
        if self._compiled is not None:
            self._changes.pending.discard("compile")
            self._changes.apply("compile")
        self._hint(args, result)
        return result

    def _report_failure(self, error: BaseException) -> None:
        """Report that the model's call failed with its changes."""
        made = {"compile": self._compiled, "precision": self.autocast, "channels_last": self.channels_last}
        for key, value in made.items():
            if value:
                self._changes.pending.discard(key)
                self._changes.take_back(key, "the model's call failed with it: %s" % in_short(error))
        self._changes.report()

    def _hint(self, args: Any, result: Any) -> None:
        tensor = self._torch.Tensor
        for index, arg in enumerate(args):
            if isinstance(arg, tensor) and arg.dim() == 4:
                self._changes.hint("pictures", str(index))
        kind = "tensor" if isinstance(result, tensor) else "other"
        if isinstance(result, tuple) and all(isinstance(item, tensor) for item in result):
            kind = "tensors"
        self._changes.hint("outputs", kind)

    def _watched(self, module: Any, args: Any, kwargs: Any) -> Any:
        """Run, and see whether the model autocasts in its forward pass; from then on ours is off."""
        if self.autocast is None:
            return self._run(module, args, kwargs)
        kind = self._torch.autocast
        enter, seen = kind.__enter__, []

        def __enter__(entered: Any) -> Any:
            if getattr(entered, "_enabled", True):
                seen.append(getattr(entered, "fast_dtype", None))
            return enter(entered)

        kind.__enter__ = __enter__
        try:
            return self._run(module, args, kwargs)
        finally:
            kind.__enter__ = enter
            if len(seen) > 1:  # the first is ours
                self.autocast = None
                self._changes.take_back("precision", "the script autocasts to %s itself" % str(seen[-1])[6:])

    def _run(self, module: Any, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Any:
        torch = self._torch
        if self.channels_last:
            args = tuple(self._laid_out(arg) for arg in args)
            kwargs = {name: self._laid_out(arg) for name, arg in kwargs.items()}
        if self.autocast is not None and torch.is_grad_enabled():
            with torch.autocast(self.autocast, dtype=torch.bfloat16):
                result = self._forward(module, args, kwargs)
            return each_tensor(torch, result, lambda t: t.float() if t.dtype is torch.bfloat16 else t)
        return self._forward(module, args, kwargs)

    def _forward(self, module: Any, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Any:
        if self._compiled is None:
            return self._kind.__call__(module, *args, **kwargs)
        result = self._compiled(*args, **kwargs)
        if self._copies_outputs:  # the next replay of its CUDA graph overwrites them
            return each_tensor(self._torch, result, lambda t: t.clone() if t.is_cuda else t)
        return result

    def _laid_out(self, value: Any) -> Any:
        torch = self._torch
        if isinstance(value, torch.Tensor):
            if value.dim() == 4 and value.is_floating_point():
                return value.contiguous(memory_format=torch.channels_last)
        elif type(value) in (list, tuple) and len(value) < 64:
            return type(value)(self._laid_out(item) for item in value)
        return value


def each_tensor(torch: Any, value: Any, change: Callable[[Any], Any]) -> Any:
    """Return ``value``, its tensors changed in tuples, lists and dicts; dicts of any class stay the same object."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, dict):
        for key in list(value):
            old = value[key]
            new = each_tensor(torch, old, change)
            if new is not old:
                value[key] = new
        return value
    if isinstance(value, (list, tuple)) and value:
        items = [each_tensor(torch, item, change) for item in value]
        if all(new is old for new, old in zip(items, value)):
            return value
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    return value


#: Optimizer steps of the search for modules. torch.compile starts after them, so that it sees none of its hooks.
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
    """Looks for outermost modules in the first steps. ``changes``: see changes.py."""

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
        compiling = compiling_check(self._torch)

        def around(original: Any) -> Any:
            def __call__(module: Any, *args: Any, **kwargs: Any) -> Any:
                if compiling():
                    return original(module, *args, **kwargs)
                return self._called(module, args, kwargs)

            return __call__

        self._original = wrap(base, "__call__", around)
        self._ours = base.__call__
        changes.after_step, changes.before_ddp = self._after_step, self._before_ddp
        changes.evaluating = self._evaluating
        for name in ("to", "cuda"):
            wrap(base, name, accompanied(self._remember_move, self._failed, before=True))

    def _failed(self, error: Exception) -> None:
        self._changes.failed(self.KEYS, error)

    def _remember_move(self, module: Any, args: Any, kwargs: Any) -> None:
        place = None if self._moving else self._changes.where.here()
        if place is not None and place.package is None and module not in self._moved:
            self._moved[module] = place

    def _called(self, module: Any, args: Any, kwargs: Any) -> Any:
        running = self._running
        if getattr(running, "depth", 0):
            return self._original(module, *args, **kwargs)
        running.depth = 1
        try:
            trains = self._torch.is_grad_enabled() and any(p.requires_grad for p in module.parameters())
            if trains and id(module) not in self._module_calls:
                try:
                    self._sit(module)
                except Exception as error:  # noqa: BLE001
                    self._failed(error)
                else:
                    return module(*args, **kwargs)
            return self._original(module, *args, **kwargs)
        finally:
            running.depth = 0

    def _sit(self, module: Any) -> None:
        """Change the calls of ``module``, the outermost one."""
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
        kinds = [] if on_one_gpu(module) else [kind.__name__ for kind in type(module).__mro__]
        kept_out = {key for kind in kinds for key in _SPREAD.get(kind, ())}
        for key, change in (("channels_last", self._channels_last), ("precision", self._precision)):
            if key not in changes.wanted:
                continue
            spread = "the model is spread by %s" % type(module).__name__
            why = spread if key in kept_out else change(module, calls)
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

    def _channels_last(self, module: Any, calls: ModuleCalls) -> Optional[str]:
        if module not in self._converted and getattr(module, "module", None) not in self._converted:
            why = self._lay_out(module)
            if why is not None:
                return why
        calls.channels_last = True
        return None

    def _before_ddp(self, module: Any) -> None:
        """Lay the weights out before DDP is made, since DDP lays its buckets out as the weights lie then."""
        if "channels_last" in self._changes.wanted and self._lay_out(module) is None:
            self._converted.add(module)

    def _lay_out(self, module: Any) -> Optional[str]:
        self._moving = True  # not a move of the script's
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
        autocasts = torch.is_autocast_cpu_enabled if device == "cpu" else torch.is_autocast_enabled
        if autocasts():
            return "the script autocasts itself"
        calls.autocast = device
        return None

    def _after_step(self) -> None:
        """End the search for modules after some steps; compile those found from the next call on."""
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


def on_one_gpu(module: Any) -> bool:
    """Return whether a DataParallel calls its module itself, in this thread. Source: its forward, torch 2.13."""
    is_one = any(kind.__name__ == "DataParallel" for kind in type(module).__mro__)
    return is_one and len(getattr(module, "device_ids", (0, 0))) <= 1 and hasattr(module, "module")


def to_channels_last(torch: Any, module: Any) -> Optional[str]:
    """Lay the weights of 2-D convolutions out in channels_last; return why not, or None."""
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
    """Return True if the module is torch.compile's own wrapper, or ``module.compile()`` was called."""
    parts = [module, getattr(module, "module", None)]
    return any(
        (part is not None and (hasattr(type(part), "dynamo_ctx") or "_orig_mod" in getattr(part, "_modules", {})))
        or getattr(part, "_compiled_call_impl", None) is not None
        for part in parts
    )
