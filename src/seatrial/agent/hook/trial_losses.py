"""Losses of a trial: the values that backward passes start from, kept on their device and read at the trial's end."""

import sys
from typing import Any, Dict, List

#: Steps whose losses are kept, from the first one on.
_MOST_STEPS = 400

#: Where the value before scaling is kept, on the scaled tensor.
_UNSCALED = "_seatrial_unscaled"


class Losses:
    """Of each step the mean over its backward passes; GradScaler's as they were before scaling."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._of_step: List[Any] = []
        self._steps: List[Any] = []
        self._depth = 0
        self.codes: List[Any] = []

    def place(self) -> None:
        torch = self._torch
        self._wrap(torch.autograd, "backward", self._backward)
        for module in ("torch.amp.grad_scaler", "torch.cuda.amp.grad_scaler"):
            scaler = getattr(sys.modules.get(module), "GradScaler", None)
            if scaler is not None and "scale" in vars(scaler):
                self._wrap(scaler, "scale", self._scale)

    def _wrap(self, owner: Any, name: str, around: Any) -> None:
        wrapper = around(getattr(owner, name))
        self.codes.append(wrapper.__code__)
        setattr(owner, name, wrapper)

    def _backward(self, original: Any) -> Any:
        def backward(tensors: Any = None, *args: Any, **kwargs: Any) -> Any:
            if self._depth == 0 and len(self._steps) < _MOST_STEPS:
                self._take(tensors if tensors is not None else kwargs.get("tensors"))
            self._depth += 1
            try:
                return original(*([tensors] if tensors is not None else []), *args, **kwargs)
            finally:
                self._depth -= 1

        return backward

    def _scale(self, original: Any) -> Any:
        def scale(scaler: Any, outputs: Any) -> Any:
            scaled = original(scaler, outputs)
            try:
                setattr(scaled, _UNSCALED, outputs.detach())
            except Exception:  # noqa: BLE001  several outputs, or no tensor
                pass
            return scaled

        return scale

    def _take(self, tensors: Any) -> None:
        """A clone, as the script may change the loss in place. Nothing that waits for the GPU."""
        try:
            torch = self._torch
            loss = tensors if torch.is_tensor(tensors) else tensors[0]
            loss = getattr(loss, _UNSCALED, loss)
            if loss.numel() != 1 or (loss.is_cuda and torch.cuda.is_current_stream_capturing()):
                return
            self._of_step.append(loss.detach().reshape(()).clone())
        except Exception:  # noqa: BLE001  a step without its loss
            pass

    def step_ended(self) -> None:
        if self.codes:
            self._let_dynamo_pass()
        self._steps.append(self._of_step)
        self._of_step = []

    def _let_dynamo_pass(self) -> None:
        """torch.compile shall not look into wrappers of ours, once it is there. ``skip_code``: torch 2.0 and later."""
        eval_frame = sys.modules.get("torch._dynamo.eval_frame")
        if eval_frame is not None:
            for code in self.codes:
                getattr(eval_frame, "skip_code", lambda code: None)(code)
            self.codes = []

    def values(self) -> List[Any]:
        """By step, from the first; None for a step without a loss. Waits for the GPU."""
        flat = [loss for losses in self._steps for loss in losses]
        read = self._read(flat)
        found: List[Any] = []
        at = 0
        for losses in self._steps[:_MOST_STEPS]:
            values = read[at : at + len(losses)]
            at += len(losses)
            found.append(float("%.7g" % (sum(values) / len(values))) if values else None)
        while found and found[-1] is None:
            found.pop()
        return found

    def _read(self, tensors: List[Any]) -> List[float]:
        """One copy from each device."""
        values: Dict[int, float] = {}
        by_device: Dict[Any, List[int]] = {}
        for number, tensor in enumerate(tensors):
            by_device.setdefault(tensor.device, []).append(number)
        for numbers in by_device.values():
            stacked = self._torch.stack([tensors[number].double() for number in numbers]).tolist()
            values.update(zip(numbers, stacked))
        return [values[number] for number in range(len(tensors))]
