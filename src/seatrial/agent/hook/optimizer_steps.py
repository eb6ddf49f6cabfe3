"""OptimizerSteps: where a training step ends, from torch 1.13 on: eager, compiled, with a closure, in a CUDA graph."""

import functools
import sys
from threading import get_ident
from typing import Any, Callable, List

from .recorder import Recorder
from .windows import Windows

#: Called when a compiled step has run; it is empty until torch.compile is used.
_TOLD: List[Callable[[str], None]] = []
#: Whether torch.compile is used. Plain names: its tracer guards them.
COMPILES = False
#: Whether torch.compile moves a call of step_was_compiled behind its graph.
MOVES = False


def step_was_compiled(name: str) -> None:
    """A step of an optimizer of this class has run inside a compiled function."""
    for tell in _TOLD:
        tell(name)


class OptimizerSteps:
    """Tells the recorder of each optimizer's step.

    torch 2.0 and later have hooks for all optimizers. Before, and where torch.compile takes them away (up to 2.4:
    ``TorchPatcher.patch`` in torch/_dynamo/eval_frame.py), the class's ``step`` is wrapped.

    Attributes:
        capturing: a CUDA graph is being captured: its steps are counted in ``captured_steps``, and happen when it is
            replayed.
    """

    def __init__(self, torch: Any, recorder: Recorder, windows: Windows) -> None:
        self.torch, self.recorder, self.windows = torch, recorder, windows
        self.capturing = False
        self.captured_steps = 0
        self._compiling = compiling_check(torch)
        self._place_before: Callable[[], Any] = lambda: None
        self._handle: Any = None
        self._before, self._after = self._before_step(), self._after_step()

    def place(self, optimizer: Any) -> None:
        """``optimizer`` is the module torch.optim.optimizer. The hook before steps is placed in windows only."""
        if hasattr(optimizer, "register_optimizer_step_post_hook"):
            optimizer.register_optimizer_step_post_hook(self._after)
            self._place_before = lambda: optimizer.register_optimizer_step_pre_hook(self._before)
            return
        place_profiler = optimizer.Optimizer._hook_for_profile

        def _hook_for_profile(made: Any) -> None:
            place_profiler(made)
            self._wrap_step(type(made))

        optimizer.Optimizer._hook_for_profile = _hook_for_profile

    def window(self, opens: bool) -> None:
        """A window opens or closes."""
        if opens and self._handle is None:
            self._handle = self._place_before()
        elif not opens and self._handle is not None and not COMPILES:
            self._handle.remove()
            self._handle = None

    def dynamo_is_here(self, config: Any, eval_frame: Any) -> None:
        """torch.compile is about to be used. A step that it compiles calls no hook; what is known as a logging function
        is called behind the graph, which stays as it is. Source: reorderable_logging_functions in
        torch/_dynamo/config.py, 2.3 and later."""
        global COMPILES, MOVES
        COMPILES = True
        self.window(opens=True)  # compiled code may have looked at the hooks: they stay as they are from now on
        movable = getattr(config, "reorderable_logging_functions", None)
        if isinstance(movable, set):
            movable.add(step_was_compiled)
            _TOLD.append(self._compiled_step)
            MOVES = True
        patcher = getattr(eval_frame, "TorchPatcher", None)
        if patcher is None:
            return
        patch = patcher.patch

        def patch_and_wrap() -> None:
            patch()
            for optimizer in list(vars(self.torch.optim).values()):
                step = vars(optimizer).get("step") if isinstance(optimizer, type) else None
                if getattr(step, "hooked", False) and not _calls_hooks(step):
                    self._wrap_step(optimizer)

        patcher.patch = staticmethod(patch_and_wrap)

    def _wrap_step(self, optimizer: Any) -> None:
        original = optimizer.step
        if getattr(original, "_seatrial_step", False):
            return
        before, after, compiling = self._before, self._after, self._compiling

        @functools.wraps(original)
        def step(*args: Any, **kwargs: Any) -> Any:
            if compiling():
                return original(*args, **kwargs)
            before(args[0], args, kwargs)
            result = original(*args, **kwargs)
            after(args[0], args, kwargs)
            return result

        marked: Any = step
        marked.hooked = marked._seatrial_step = True
        optimizer.step = step

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
                if MOVES:
                    step_was_compiled(optimizer.__class__.__name__)
                return
            if get_ident() != recorder.thread and (recorder.steps or not recorder.on):
                return
            try:
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

    def _compiled_step(self, name: str) -> None:
        try:
            if self.recorder.mine() and not self.capturing:
                self.recorder.facts["compiled_step"] = name
                self.recorder.stepped(sys.intern("compiled " + name))
        except Exception as error:  # noqa: BLE001
            self.recorder.stop(error)

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


def compiling_check(torch: Any) -> Callable[[], bool]:
    """A function that torch.compile's tracer takes for True, and that is False otherwise."""
    places = (("compiler", "is_dynamo_compiling"), ("compiler", "is_compiling"), ("_utils", "is_compiling"))
    for module, name in places:
        found = getattr(getattr(torch, module, None), name, None)
        if found is not None:
            return found  # type: ignore[no-any-return]
    return lambda: False


def _calls_hooks(step: Any) -> bool:
    """Whether the profiler's wrapper, which calls the hooks, is around this step."""
    while step is not None:
        code = getattr(step, "__code__", None)
        if code is not None and code.co_name == "wrapper" and code.co_filename.endswith("optimizer.py"):
            return True
        step = getattr(step, "__wrapped__", None)
    return False
