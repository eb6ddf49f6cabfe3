"""Report where a training step ends: eager, compiled, with a closure, in a CUDA graph, or without an optimizer."""

import sys
import weakref
from threading import get_ident
from time import perf_counter
from typing import Any, Callable, List, Optional

from .observe import compiling_check, wrap
from .steps import NEVER, Recorder
from .torch_windows import Windows

#: Steps without an optimizer before they count as steps by hand; a script with an optimizer has used it by then.
_PASSES = 32
#: Most leaves whose change shows a step by hand, and most nodes of the graph searched for them.
_MOST_LEAVES, _MOST_NODES = 4, 400
#: torch.autograd.backward and grad, and so torch.func, start the engine with this private function (torch 2.2 and
#: later). Before it, the function is torch.autograd.backward.
_ENGINE = "_engine_run_backward"


class HandSteps:
    """Counts and times backward passes, and counts steps that no optimizer makes.

    Such a step begins with a pass that finds its parameters changed, or their gradients taken away, since the pass
    before. They are counted once there were many and nobody has stepped; it ends at the first step of an optimizer.
    """

    def __init__(self, torch: Any, recorder: Recorder, compiling: Callable[[], bool], windows: Windows) -> None:
        self._torch, self._recorder, self._compiling, self._windows = torch, recorder, compiling, windows
        self._name = _ENGINE if hasattr(torch.autograd, _ENGINE) else "backward"
        self._waiting: List[Any] = []  # when each of the first steps began
        self._leaves: List[Any] = []  # weak references, and what they were after the last pass
        self._on, self._counts, self._inside = True, False, False
        self._kept_s = 0.0
        self._passes = self._passes_before = 0  # of this step, and of the one before

    def place(self) -> None:
        theirs = wrap(self._torch.autograd, self._name, self._around)
        self._functions = theirs, getattr(self._torch.autograd, self._name)

    def watch(self, watches: bool) -> None:
        """Install the wrapper of backward passes, or torch's own function while no pass is counted."""
        there, instead = self._functions if watches else reversed(self._functions)
        if getattr(self._torch.autograd, self._name) is there:
            setattr(self._torch.autograd, self._name, instead)

    def _around(self, original: Any) -> Any:
        recorder, compiling, windows = self._recorder, self._compiling, self._windows

        def run_backward(*args: Any, **kwargs: Any) -> Any:
            if compiling():
                return original(*args, **kwargs)
            mine = get_ident() == recorder.thread
            recorder.passes += mine or not recorder.taken
            if mine:
                recorder.without = NEVER  # an optimizer's closure, and no evaluation
            if self._inside or not mine or not (self._on or windows.open):
                return original(*args, **kwargs)
            self._inside = True
            if self._on:
                self._begins(args)
            timed = windows.open
            if timed:
                windows.mark("backward")
                recorder.timeline.backward_began()
            try:
                result = original(*args, **kwargs)
            finally:
                self._inside = False
                if timed:
                    recorder.timeline.backward_ended()
            if self._on:
                self._keep()
            return result

        return run_backward

    def optimizer_stepped(self, optimizer: Any) -> None:
        """Leave the counting of steps to the optimizer that stepped after all."""
        if self._on and self._counts:
            self._recorder.bounded_by(optimizer)
        self._on, self._waiting, self._leaves = False, [], []

    def at_end(self) -> None:
        """End the last step, too, unless gradients were still gathered."""
        complete = self._passes >= self._passes_before or self._has_changed()
        if self._on and (self._counts or self._waiting) and complete:
            self._ended(self._kept_s)

    def _begins(self, args: Any) -> None:
        recorder = self._recorder
        try:
            if not self._counts and recorder.steps:  # another framework's steps are counted
                self._on = False
                return
            if not self._leaves:
                self._leaves = _leaves(args)
                if not recorder.facts.get("device"):
                    recorder.facts.update(_of_loss(args))
            elif not self._has_changed():
                self._passes += 1
                return
            self._passes_before, self._passes = self._passes, 1
            if self._counts or self._waiting:
                self._ended()
            else:
                self._waiting.append((perf_counter(), recorder.timeline.totals(), recorder.examples))
        except Exception as error:  # noqa: BLE001  never the script's trouble
            recorder.stop(error)

    def _ended(self, now_s: Optional[float] = None) -> None:
        """End a step as the next one begins; at the end of the process, as its last pass ends."""
        recorder = self._recorder
        if self._counts:
            recorder.stepped(self, now_s=now_s)
            return
        recorder.trains()
        self._waiting.append((perf_counter(), recorder.timeline.totals(), recorder.examples))
        if len(self._waiting) > _PASSES:
            self._counts = True
            recorder.facts.update(optimizer="none, a step is a backward pass")
            recorder.begin_at(*self._waiting[1])
            recorder.bounded_by(self)
            recorder.stepped(self, len(self._waiting) - 1)
            self._waiting = []

    def _has_changed(self) -> bool:
        """Return whether a leaf, or its gradient, is another than after the last pass. Without any leaf, each pass
        counts (torch.func)."""
        for leaf, version, gradient, gradient_version in self._leaves:
            tensor = leaf()
            if tensor is None or tensor._version != version or tensor.grad is not gradient():
                return True
            if gradient() is not None and gradient()._version != gradient_version:
                return True
        return not self._leaves or self._leaves[0][2]() is None

    def _keep(self) -> None:
        """Note how the leaves are after a pass."""
        kept = []
        for leaf, *_ in self._leaves:
            tensor = leaf()
            if tensor is not None:
                gradient = tensor.grad
                reference = _none if gradient is None else weakref.ref(gradient)
                kept.append((leaf, tensor._version, reference, None if gradient is None else gradient._version))
        self._leaves, self._kept_s = kept, perf_counter()


def _none() -> None:
    """Stand in for a reference to a gradient where there is none."""


def _leaves(args: Any) -> List[Any]:
    """Return some leaves that a loss was computed from, as HandSteps keeps them; none where that cannot be seen."""
    losses = args[0] if args else ()
    nodes = [getattr(each, "grad_fn", None) for each in (losses if isinstance(losses, (list, tuple)) else (losses,))]
    found: List[Any] = []
    for _ in range(_MOST_NODES):
        if not nodes or len(found) == _MOST_LEAVES:
            break
        node = nodes.pop()
        variable = getattr(node, "variable", None)
        if variable is not None:
            found.append((weakref.ref(variable), variable._version, _none, None))
        nodes += [each for each, _ in getattr(node, "next_functions", ()) if each is not None]
    return found


def _of_loss(args: Any) -> Any:
    loss = args[0] if args else None
    loss = loss[0] if isinstance(loss, (list, tuple)) and loss else loss
    device = getattr(loss, "device", None)
    return {"device": device.type} if device is not None else {}


#: True once torch.compile is used. A plain name, because its tracer guards it.
COMPILES = False


def no_break() -> None:
    """Do nothing until torch.compile is used."""


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
        """Register the hook after steps with ``optimizer``, torch.optim.optimizer; the other one in windows only."""
        optimizer.register_optimizer_step_post_hook(self._after)
        self._place_before = lambda: optimizer.register_optimizer_step_pre_hook(self._before)

    def window(self, opens: bool) -> None:
        """Place the hook before steps as a window opens; remove it as the window closes."""
        if opens and self._handle is None:
            self._handle = self._place_before()
        elif not opens and self._handle is not None and not COMPILES:
            self._handle.remove()
            self._handle = None
            self.recorder.timeline.optimizer_failed()  # or none is at work

    def compiling_begins(self) -> None:
        """Place the hooks for good: torch.compile is about to be used and may look at them."""
        global COMPILES
        COMPILES = True
        self.window(opens=True)

    def dynamo_is_here(self, eval_frame: Any) -> None:
        """Mark optimizers whose compiled steps must end their graph, since a compiled step calls no hook. Steps of
        torch's own end their graph before the hooks anyway (``_use_grad`` in torch/optim/optimizer.py), so that ending
        it once more changes no graph, and the hook is called. Other optimizers' compiled steps go uncounted."""
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
                if step is not None:
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
                recorder.timeline.optimizer_began(closure is not None)
            except Exception as error:  # noqa: BLE001
                recorder.stop(error)

        return before_step

    def _after_step(self) -> Any:
        recorder, compiling, windows = self.recorder, self._compiling, self.windows
        timeline = recorder.timeline

        def after_step(optimizer: Any, args: Any, kwargs: Any) -> None:
            if COMPILES and compiling():
                if getattr(optimizer, "_seatrial_ends_graph", False):
                    end_graph()
                return
            if id(optimizer) == timeline.plain:
                now_s = perf_counter()
                if now_s < timeline.plain_until_s:
                    timeline.stamps.append(now_s)
                    return
            try:
                if get_ident() != recorder.thread and (recorder.taken or recorder.steps or not recorder.on):
                    if recorder.on:
                        recorder.stepped_in_another_thread(optimizer)
                    return
                if not self._seen_one:
                    self._seen_one = True
                    self.seen(optimizer)
                if windows.open:
                    recorder.timeline.optimizer_ended()
                if self.capturing:
                    self.captured_steps += 1
                    return
                if not recorder.steps:
                    self._first_step_on_this_thread(optimizer)
                recorder.stepped(optimizer, plainly=len(args) < 2 and not kwargs)  # without a closure
            except Exception as error:  # noqa: BLE001
                recorder.stop(error)

        return after_step

    def _first_step_on_this_thread(self, optimizer: Any) -> None:
        """Record the training thread, which need not be the one that imported torch, and facts of the optimizer."""
        self.recorder.take_thread()
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        if parameters:
            device, dtype = parameters[0].device.type, str(parameters[0].dtype)[6:]
            count, name = sum(p.numel() for p in parameters), type(optimizer).__name__
            self.recorder.facts.update(device=device, parameters=count, parameter_dtype=dtype, optimizer=name)
            if all(group.get("fused") for group in optimizer.param_groups):
                self.recorder.facts["fused"] = True
            if any(p.dim() == 4 for p in parameters):
                self.recorder.facts["convolutions"] = True


def _ends_its_graph(step: Any) -> bool:
    """Return whether torch/optim/optimizer.py's ``_use_grad`` is around this step."""
    while step is not None:
        code = getattr(step, "__code__", None)
        if code is not None and code.co_name == "_use_grad" and code.co_filename.endswith("optimizer.py"):
            return True
        step = getattr(step, "__wrapped__", None)
    return False
