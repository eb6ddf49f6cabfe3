"""Changes of torch's arithmetic: TF32, and cuDNN's search for the quickest convolution."""

from typing import Any


class Backend:
    """Sets them when training begins, so that what the script sets itself on its way there is seen.

    Args:
        changes: what is wanted (changes.py).
    """

    KEYS = ("tf32", "cudnn_benchmark")

    def __init__(self, changes: Any) -> None:
        self._changes, self._torch = changes, changes.torch
        self._done = False

    def place(self) -> None:
        if any(key in self._changes.wanted for key in self.KEYS):
            self._changes.at_training = self.begin
            wrap_first_backward(self._torch, self._at_backward)

    def _at_backward(self) -> None:
        self.begin(None)

    def begin(self, module: Any) -> None:
        """Training begins: ``module`` is about to be called for it; None where a backward pass came first."""
        if self._done:
            return
        self._done = True
        for key, change in (("tf32", self._tf32), ("cudnn_benchmark", self._cudnn_benchmark)):
            if key in self._changes.wanted:
                try:
                    why = change(module)
                    if why is None:
                        self._changes.apply(key)
                    else:
                        self._changes.refuse(key, why)
                except Exception as error:  # noqa: BLE001
                    self._changes.failed([key], error)

    def _no_gpu(self, module: Any) -> bool:
        cuda = self._torch.cuda
        if module is not None:
            return not any(p.is_cuda for p in module.parameters())
        return not cuda.is_initialized()

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
    original = torch.autograd.backward

    def backward(*args: Any, **kwargs: Any) -> Any:
        if torch.autograd.backward is backward:
            torch.autograd.backward = original
        begin()
        return original(*args, **kwargs)

    backward.__name__, backward.__doc__ = "backward", original.__doc__
    torch.autograd.backward = backward
