"""Being called before and behind each optimizer's step, in every version of torch."""

import sys
from typing import Any, Callable


def on_steps(torch: Any, before: Callable[[Any], None], after: Callable[[Any], None]) -> None:
    """torch 2.0 and later have hooks for it; before, each class's ``step`` is wrapped when one of it is made."""
    module = sys.modules["torch.optim.optimizer"]
    if hasattr(module, "register_optimizer_step_pre_hook"):
        compiling = getattr(getattr(torch, "compiler", None), "is_compiling", lambda: False)

        def before_step(optimizer: Any, args: Any, kwargs: Any) -> None:
            if not compiling():
                before(optimizer)

        def after_step(optimizer: Any, args: Any, kwargs: Any) -> None:
            if not compiling():
                after(optimizer)

        any_module: Any = module
        any_module.register_optimizer_step_pre_hook(before_step)
        any_module.register_optimizer_step_post_hook(after_step)
        return
    base = torch.optim.Optimizer
    original = base.__init__

    def __init__(optimizer: Any, *args: Any, **kwargs: Any) -> None:
        original(optimizer, *args, **kwargs)
        _wrap_step(type(optimizer), before, after)

    base.__init__ = __init__


def _wrap_step(kind: Any, before: Callable[[Any], None], after: Callable[[Any], None]) -> None:
    step = kind.step
    if getattr(step, "_seatrial", False):
        return

    def wrapped(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        before(optimizer)
        result = step(optimizer, *args, **kwargs)
        after(optimizer)
        return result

    wrapped.__name__, wrapped.__doc__ = "step", step.__doc__
    wrapped.__dict__.update(vars(step), _seatrial=True)
    kind.step = wrapped
