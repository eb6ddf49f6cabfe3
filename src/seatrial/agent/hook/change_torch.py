"""Change torch's arithmetic, copies, optimizers and DistributedDataParallel's buckets."""

import importlib
import inspect
import sys
import weakref
from functools import partial
from typing import Any, Dict, Optional, Set, Tuple

from .observe import accompanied, compiling_check, safely, wrap


class BackendChanges:
    """Sets tf32 and cuDNN's benchmark when training begins, after the script's own. ``changes``: see changes.py."""

    KEYS = ("tf32", "cudnn_benchmark")

    def __init__(self, changes: Any) -> None:
        self._changes, self._torch = changes, changes.torch
        self._done = False

    def place(self) -> None:
        if any(key in self._changes.wanted for key in self.KEYS):
            self._changes.at_training = self.begin
            wrap_first_backward(self._torch, lambda: self.begin(None))

    def begin(self, module: Any) -> None:
        """Make the changes as training begins with a call of ``module``, or with a backward pass if it is None."""
        if self._done:
            return
        self._done = True
        for key, change in (("tf32", self._tf32), ("cudnn_benchmark", self._cudnn_benchmark)):
            if key in self._changes.wanted:
                try:
                    self._changes.conclude(key, change(module))
                except Exception as error:  # noqa: BLE001
                    self._changes.failed([key], error)

    def _no_gpu(self, module: Any) -> bool:
        if module is not None:
            return not any(p.is_cuda for p in module.parameters())
        return not self._torch.cuda.is_initialized()

    def _tf32(self, module: Any) -> Any:
        torch = self._torch
        if self._no_gpu(module):
            return "training is not on a GPU"
        if torch.version.hip or torch.cuda.get_device_capability()[0] < 8:
            return "this GPU has no TF32"
        if torch.get_float32_matmul_precision() != "highest":
            return "the script allows TF32 already"
        torch.set_float32_matmul_precision("high")
        if not torch.backends.cudnn.allow_tf32:
            torch.backends.cudnn.allow_tf32 = True
        return None

    def _cudnn_benchmark(self, module: Any) -> Any:
        torch = self._torch
        cudnn = torch.backends.cudnn
        if self._no_gpu(module):
            return "training is not on a GPU"
        if cudnn.benchmark:
            return "the script has switched it on already"
        if cudnn.deterministic or torch.are_deterministic_algorithms_enabled():
            return "the script asks for deterministic algorithms"
        if module is not None and not any("Conv" in type(m).__name__ for m in module.modules()):
            return "the model has no convolutions"
        cudnn.benchmark = True
        return None


def wrap_first_backward(torch: Any, begin: Any) -> None:
    """Call ``begin`` at the first backward pass, for scripts that call no module; torch is as it was from then on."""

    def around(original: Any) -> Any:
        def backward(*args: Any, **kwargs: Any) -> Any:
            if torch.autograd.backward is backward:
                torch.autograd.backward = original
            begin()
            return original(*args, **kwargs)

        return backward

    wrap(torch.autograd, "backward", around)


class Copies:
    """``.to(device)`` and ``.cuda()`` of a pinned host tensor get non_blocking=True.

    The GPU works in order, so what follows sees the copy done. A tensor in ordinary memory is left: its copy is staged
    anyway. The other direction is left, too: there the script would read what has not come yet. So is a script that
    fills a pinned buffer again, which may be while it is being copied: the first copies show whether it does.
    """

    KEYS = ("non_blocking",)

    def __init__(self, changes: Any) -> None:
        self._changes, self._torch = changes, changes.torch
        self._seen: Set[Tuple[Any, int]] = set()
        self._copied: Dict[int, Any] = {}  # id of a pinned tensor → a reference to it
        self._copies, self._reuses = 0, False

    def reuses(self, tensor: Any) -> bool:
        """Return whether pinned memory is copied again, or too few copies were seen to exclude it."""
        owner = tensor if tensor._base is None else tensor._base
        known = self._copied.get(id(owner))
        if known is not None and known() is owner and not self._reuses:
            self._reuses = True
            self._changes.take_back("non_blocking", "the script copies a pinned buffer that it may fill again")
        self._copied[id(owner)] = weakref.ref(owner)
        self._copies += 1
        if len(self._copied) > _MOST_PINNED:
            self._copied = {key: each for key, each in self._copied.items() if each() is not None}
        return self._reuses or self._copies <= _PINNED

    def place(self) -> None:
        if "non_blocking" not in self._changes.wanted:
            return
        if not self._torch.cuda.is_available():
            self._changes.refuse("non_blocking", "no GPU found")
            return
        tensor = self._torch.Tensor
        compiling = compiling_check(self._torch)
        wrap(tensor, "to", lambda original: self._around(original, compiling, self._to_a_gpu))
        wrap(tensor, "cuda", lambda original: self._around(original, compiling, lambda args, kwargs: True))

    def _around(self, original: Any, compiling: Any, to_a_gpu: Any) -> Any:
        def copy(tensor: Any, *args: Any, **kwargs: Any) -> Any:
            if compiling():
                return original(tensor, *args, **kwargs)
            try:
                if (
                    not tensor.is_cuda
                    and not self._goes_on_already(kwargs)
                    and not any(isinstance(arg, bool) for arg in args)
                    and to_a_gpu(args, kwargs)
                    and tensor.is_pinned()
                    and not self.reuses(tensor)
                ):
                    kwargs["non_blocking"] = True
                    self._note(sys._getframe(1))
            except Exception as error:  # noqa: BLE001
                self._changes.failed(self.KEYS, error)
            return original(tensor, *args, **kwargs)

        return copy

    def _goes_on_already(self, kwargs: Any) -> bool:
        if not kwargs.get("non_blocking"):
            return False
        self._changes.refuse("non_blocking", "the script's copies are non_blocking already")
        return True

    def _to_a_gpu(self, args: Any, kwargs: Any) -> bool:
        where = kwargs.get("device", kwargs.get("other", args[0] if args else None))
        if isinstance(where, str):
            return where.startswith("cuda")
        if isinstance(where, int) and not isinstance(where, bool):
            return True
        device = where if isinstance(where, self._torch.device) else getattr(where, "device", None)
        return getattr(device, "type", None) == "cuda"

    def _note(self, frame: Any) -> None:
        key = (frame.f_code, frame.f_lineno)
        if key not in self._seen:
            self._seen.add(key)
            self._changes.apply("non_blocking", self._changes.where.here())


#: Copies of pinned tensors that stay as they are, to see whether a buffer comes again; and tensors that are noted.
_PINNED, _MOST_PINNED = 8, 1024

#: Optimizers of torch that take ``fused`` in some versions; the optimizer itself knows whether this version does.
_KNOWN = ("Adam", "AdamW", "SGD", "Adagrad")


class Optimizers:
    """Sets ``fused`` at an optimizer's first step, when its parameters are where they will be; and reports steps."""

    KEYS = ("fused_optimizer",)

    def __init__(self, changes: Any) -> None:
        self._changes, self._torch = changes, changes.torch
        self._made: Any = weakref.WeakKeyDictionary()
        self._looked_at: Any = weakref.WeakSet()
        self._trying = False

    def place(self) -> None:
        if "fused_optimizer" in self._changes.wanted:
            wrap(self._torch.optim.Optimizer, "__init__", accompanied(self._remember_place, self._failed))
        optimizer: Any = sys.modules["torch.optim.optimizer"]
        compiling = compiling_check(self._torch)

        def before_step(optimizer: Any, args: Any, kwargs: Any) -> None:
            if not compiling():
                safely(self._failed, self._before, optimizer)

        def after_step(optimizer: Any, args: Any, kwargs: Any) -> None:
            if not compiling():
                safely(self._failed, self._changes.stepped)

        optimizer.register_optimizer_step_pre_hook(before_step)
        optimizer.register_optimizer_step_post_hook(after_step)

    def _failed(self, error: Exception) -> None:
        self._changes.failed(self.KEYS, error)

    def _remember_place(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if not self._trying:
            self._made[optimizer] = self._changes.where.here()

    def _before(self, optimizer: Any) -> None:
        if "fused_optimizer" not in self._changes.wanted or optimizer in self._looked_at:
            return
        self._looked_at.add(optimizer)
        why = self._why_not(optimizer)
        if why is not None:
            self._changes.refuse("fused_optimizer", why)
            return
        fuse(self._torch, optimizer)
        self._changes.apply("fused_optimizer", self._made.get(optimizer))

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
        """Make a small optimizer with ``fused`` on each device; return why this torch refuses it, or None."""
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
    """Change the optimizer as constructor and ``__setstate__`` do for ``fused=True`` (torch/optim/adam.py, 2.13)."""
    optimizer.defaults["fused"] = True
    for group in optimizer.param_groups:
        group["fused"] = True
        if group.get("foreach"):
            group["foreach"] = False
        for parameter in group["params"]:
            state = optimizer.state.get(parameter) or {}
            if "step" in state and type(optimizer).__name__ != "SGD":
                state["step"] = torch.tensor(float(state["step"]), dtype=torch.float32, device=parameter.device)


def _fused_devices() -> Any:
    try:
        return set(importlib.import_module("torch.utils._foreach_utils")._get_fused_kernels_supported_devices())
    except (ImportError, AttributeError):
        return {"cuda"}


class Parallel:
    """Gives DDP's constructor other arguments than the script did, which everybody passes by name."""

    KEYS = ("bucket_cap_mb", "gradient_as_bucket_view")

    def __init__(self, changes: Any) -> None:
        self._changes, self._torch = changes, changes.torch

    def place(self) -> None:
        wanted = self._changes.wanted
        if not any(key in wanted for key in (*self.KEYS, "channels_last")):
            return
        if not self._torch.distributed.is_available():
            return
        changing = accompanied(self._change, partial(self._changes.failed, self.KEYS), before=True)
        wrap(self._torch.nn.parallel.DistributedDataParallel, "__init__", changing)

    def _change(self, model: Any, args: Any, kwargs: Any) -> None:
        """Change the keyword arguments in place, before the original gets them."""
        changes = self._changes
        changes.before_ddp(args[0] if args else kwargs["module"])
        for key in self.KEYS:
            if key not in changes.wanted:
                continue
            if kwargs.get(key) == changes.wanted[key]:
                changes.refuse(key, "the script sets it so already")
            elif len(args) > 6:
                changes.refuse(key, "the script gives DistributedDataParallel's arguments by position")
            else:
                kwargs[key] = changes.wanted[key]
                changes.apply(key, changes.where.here())
