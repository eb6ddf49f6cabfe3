"""ModuleCalls: what is done around each call of one module.

The module's class becomes one of its own that is called otherwise and is all else the same: it prints, copies and is
saved as before. Its state_dict, hooks and parts are untouched.
"""

import copyreg
import importlib
import weakref
from typing import Any, Callable, Dict, Optional, Tuple

from .error_line import in_short

#: Calls that are looked at closely, and whose errors are put down to a change.
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
        """Whether there is anything to do around calls."""
        return bool(self.autocast or self.channels_last or self.to_compile or self._compiled)

    def take_over(self, module: Any) -> None:
        """From now on calls of ``module`` come here."""
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
            if not hasattr(torch, "compile"):
                raise RuntimeError("torch %s has no torch.compile" % torch.__version__)
            # What cannot be compiled runs as it is. Source: torch/_dynamo/config.py, 2.0 and later.
            importlib.import_module("torch._dynamo.config").suppress_errors = True  # type: ignore[attr-defined]
            self._compiled = torch.compile(self._to_trace(module), mode=mode)
            self._copies_outputs = mode == "reduce-overhead"
            self._first_calls = _FIRST_CALLS
        except Exception as error:  # noqa: BLE001
            self._compiled = None
            self._changes.pending.discard("compile")
            self._changes.take_back("compile", "torch.compile failed: %s" % in_short(error))

    def _to_trace(self, module: Any) -> Any:
        """What torch.compile is given: of a class of torch's own, nn.Sequential say, it passes over the call and all in
        it, without a word, unless a frame of another file is around it. ``module.compile()`` does nothing for them."""
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
        """Name the changes with which the model's call failed."""
        made = {"compile": self._compiled, "precision": self.autocast, "channels_last": self.channels_last}
        for key, value in made.items():
            if value:
                self._changes.pending.discard(key)
                self._changes.take_back(key, "the model's call failed with it: %s" % in_short(error))
        self._changes.tell()

    def _hint(self, args: Any, result: Any) -> None:
        tensor = self._torch.Tensor
        for index, arg in enumerate(args):
            if isinstance(arg, tensor) and arg.dim() == 4:
                self._changes.hint("pictures", str(index))
        if isinstance(result, tensor):
            self._changes.hint("outputs", "tensor")
        elif isinstance(result, tuple) and all(isinstance(item, tensor) for item in result):
            self._changes.hint("outputs", "tensors")
        else:
            self._changes.hint("outputs", "other")

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
    """``value`` with its tensors changed, in tuples, lists and dicts; dicts of any class stay the same object."""
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
