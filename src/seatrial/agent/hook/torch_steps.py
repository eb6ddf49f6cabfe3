"""Report where a training step ends: eager, compiled, with a closure, in a CUDA graph, or without an optimizer."""

import sys
from threading import get_ident
from typing import Any, Callable

from .observe import wrap
from .steps import Recorder
from .torch_windows import Windows

#: So many backward passes in a row without any optimizer's step: gradients are gathered over fewer of them.
_PASSES = 32


class HandSteps:
    """Counts backward passes as steps, once there were many and nobody has stepped. It goes at the first step that
    an optimizer makes.

    Args:
        compiling: whether torch.compile is looking (compiling_check).
    """

    def __init__(self, torch: Any, recorder: Recorder, compiling: Callable[[], bool]) -> None:
        self._torch, self._recorder, self._compiling = torch, recorder, compiling
        self._original = self._ours = torch.autograd.backward
        self._passes = 0
        self._on, self._counts, self._inside = True, False, False

    def place(self) -> None:
        wrap(self._torch.autograd, "backward", self._around)
        self._ours = self._torch.autograd.backward

    def _around(self, original: Any) -> Any:
        recorder, compiling = self._recorder, self._compiling

        def backward(*args: Any, **kwargs: Any) -> Any:
            if not self._on or self._inside or compiling() or get_ident() != recorder.thread:
                return original(*args, **kwargs)
            self._inside = True
            try:
                result = original(*args, **kwargs)
            finally:
                self._inside = False
            self._passed(args)
            return result

        return backward

    def optimizer_stepped(self, optimizer: Any) -> None:
        """There is an optimizer after all."""
        if not self._on:
            return
        self._on = False
        if self._counts:
            self._recorder.bounded_by(optimizer)
        if self._torch.autograd.backward is self._ours:
            self._torch.autograd.backward = self._original

    def _passed(self, args: Any) -> None:
        recorder = self._recorder
        try:
            self._passes += 1
            if self._passes <= _PASSES:
                return
            if not self._counts:
                if recorder.steps:  # another framework's steps are counted
                    self._on = False
                    return
                self._counts = True
                recorder.facts.update(optimizer="none, a step is a backward pass", **_of_loss(args))
            recorder.stepped(self)
        except Exception as error:  # noqa: BLE001  never the script's trouble
            recorder.stop(error)


def _of_loss(args: Any) -> Any:
    loss = args[0] if args else None
    loss = loss[0] if isinstance(loss, (list, tuple)) and loss else loss
    device = getattr(loss, "device", None)
    return {"device": device.type} if device is not None else {}


#: Whether torch.compile is used. A plain name: its tracer guards it.
COMPILES = False


def no_break() -> None:
    """Until torch.compile is used."""


#: Lets torch.compile's tracer end its graph there, once it is used: torch._dynamo.graph_break.
end_graph = no_break


class OptimizerSteps:
    """Reports the step of every optimizer to the recorder, through the hooks that torch 2.0 and later have.

    Attributes:
        capturing: a CUDA graph is being captured: its steps are counted in ``captured_steps``, and happen when it is
            replayed.
        seen: called with the first optimizer that steps.
    """

    def __init__(self, torch: Any, recorder: Recorder, windows: Windows) -> None:
        self.torch, self.recorder, self.windows = torch, recorder, windows
        self.capturing = False
        self.captured_steps = 0
        self.seen: Callable[[Any], None] = lambda optimizer: None
        self._seen_one = False
        self._compiling = compiling_check(torch)
        self._place_before: Callable[[], Any] = lambda: None
        self._handle: Any = None
        self._before, self._after = self._before_step(), self._after_step()

    def place(self, optimizer: Any) -> None:
        """``optimizer`` is the module torch.optim.optimizer. The hook before steps is placed in windows only."""
        optimizer.register_optimizer_step_post_hook(self._after)
        self._place_before = lambda: optimizer.register_optimizer_step_pre_hook(self._before)

    def window(self, opens: bool) -> None:
        """A window opens or closes."""
        if opens and self._handle is None:
            self._handle = self._place_before()
        elif not opens and self._handle is not None and not COMPILES:
            self._handle.remove()
            self._handle = None

    def compiling_begins(self) -> None:
        """torch.compile is about to be used: it may look at the hooks, which stay as they are from now on."""
        global COMPILES
        COMPILES = True
        self.window(opens=True)

    def dynamo_is_here(self, eval_frame: Any) -> None:
        """torch.compile may be used. A step that it compiles calls no hook. Steps of torch's own optimizers end
        their graph before the hooks anyway (``_use_grad`` in torch/optim/optimizer.py), so that ending it once more
        changes no graph, and the hook is called as in any step. Other optimizers' compiled steps go uncounted."""
        patcher = getattr(eval_frame, "TorchPatcher", None)
        if patcher is None:
            return
        patch = patcher.patch

        def patch_and_look() -> None:
            global end_graph
            patch()
            end_graph = getattr(sys.modules.get("torch._dynamo"), "graph_break", no_break)
            for optimizer in list(vars(self.torch.optim).values()):
                step = vars(optimizer).get("step") if isinstance(optimizer, type) else None
                if step is None:
                    continue
                optimizer._seatrial_ends_graph = _ends_its_graph(step)

        patcher.patch = staticmethod(patch_and_look)

    def _before_step(self) -> Any:
        recorder, compiling, windows = self.recorder, self._compiling, self.windows

        def before_step(optimizer: Any, args: Any, kwargs: Any) -> None:
            if (COMPILES and compiling()) or not windows.open or get_ident() != recorder.thread:
                return
            try:
                windows.mark("optimizer")
                closure = args[1] if len(args) > 1 else kwargs.get("closure") if kwargs else None
                recorder.optimizer_began(closure is not None)
            except Exception as error:  # noqa: BLE001
                recorder.stop(error)

        return before_step

    def _after_step(self) -> Any:
        recorder, compiling, windows = self.recorder, self._compiling, self.windows

        def after_step(optimizer: Any, args: Any, kwargs: Any) -> None:
            if COMPILES and compiling():
                if getattr(optimizer, "_seatrial_ends_graph", False):
                    end_graph()
                return
            if get_ident() != recorder.thread and (recorder.steps or not recorder.on):
                return
            try:
                if not self._seen_one:
                    self._seen_one = True
                    self.seen(optimizer)
                if windows.open:
                    recorder.optimizer_ended()
                if self.capturing:
                    self.captured_steps += 1
                    return
                if not recorder.steps:
                    self._first_step_on_this_thread(optimizer)
                recorder.stepped(optimizer)
            except Exception as error:  # noqa: BLE001
                recorder.stop(error)

        return after_step

    def _first_step_on_this_thread(self, optimizer: Any) -> None:
        """Training may be done in another thread than the one that imported torch."""
        self.recorder.take_thread()
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        if parameters:
            self.recorder.facts.update(
                device=parameters[0].device.type,
                parameters=sum(p.numel() for p in parameters),
                parameter_dtype=str(parameters[0].dtype)[6:],
                optimizer=type(optimizer).__name__,
            )
            if all(group.get("fused") for group in optimizer.param_groups):
                self.recorder.facts["fused"] = True
            if any(p.dim() == 4 for p in parameters):
                self.recorder.facts["convolutions"] = True


def compiling_check(torch: Any) -> Callable[[], bool]:
    """A function that torch.compile's tracer takes for True, and that is False otherwise."""
    places = (("compiler", "is_dynamo_compiling"), ("compiler", "is_compiling"), ("_utils", "is_compiling"))
    for module, name in places:
        found = getattr(getattr(torch, module, None), name, None)
        if found is not None:
            return found  # type: ignore[no-any-return]
    return lambda: False


def _ends_its_graph(step: Any) -> bool:
    """Return whether torch/optim/optimizer.py's ``_use_grad`` is around this step."""
    while step is not None:
        code = getattr(step, "__code__", None)
        if code is not None and code.co_name == "_use_grad" and code.co_filename.endswith("optimizer.py"):
            return True
        step = getattr(step, "__wrapped__", None)
    return False
