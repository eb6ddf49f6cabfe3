"""Measure steps of Keras and TensorFlow: ``fit`` by its list of callbacks, own loops by the optimizer or tf.function.

For JAX, report the version, the compilations and the backends, and join its processes on several nodes. Compiled
functions run in C++ without Python, so neither calls nor steps are counted. Source: jax.monitoring; the names in
jax/_src/dispatch.py; jax/_src/distributed.py of 0.10.2.

No callback is added: Keras looks at what its callbacks override, and is faster if none looks at batches. The list's own
methods are wrapped, in Keras 3 (each backend) and in tf.keras 2.13 and later.
"""

import inspect
import math
import os
import sys
from threading import get_ident
from typing import Any, Callable, Dict, List

from . import report
from .observe import accompanied, safely, wrap
from .steps import Recorder, shared
from .torch_loader import tensors_in

#: The one of this process, once it is there.
_BEGUN: Dict[str, "KerasSteps"] = {}


def keras_is_here(module: Any) -> None:
    """Measure ``module``, which has CallbackList, or an optimizer that applies gradients, or tf.function's class."""
    recorder = shared()
    safely(recorder.stop, lambda: _BEGUN.setdefault("keras", KerasSteps(recorder)).place(module))


class KerasSteps:
    """The patches of Keras, and the recorder that they call."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.fitting = self.fetching = False
        self.batch_size = self.partial = self.batch = self.epochs = 0
        self.passed: List[int] = []
        self.functions: List[Any] = []  # tf.functions that are being called, the outermost first
        recorder.extras.append(self.extra)

    def place(self, module: Any) -> None:
        """Wrap the methods of this table that the module's classes have; of Keras 2's optimizers, another one."""
        for kind, name, act, before in (
            ("CallbackList", "on_train_begin", self.train_began, True),
            ("CallbackList", "on_train_end", self.train_ended, False),
            ("CallbackList", "on_train_batch_begin", self.batch_began, True),
            ("CallbackList", "on_train_batch_end", self.batch_ended, False),
            ("CallbackList", "on_epoch_end", self.epoch_ended, False),
            *(("CallbackList", "on_%s_begin" % name, self.evaluation_began, True) for name in ("test", "predict")),
            *(("CallbackList", "on_%s_end" % name, self.evaluation_ended, False) for name in ("test", "predict")),
            ("BaseOptimizer", "apply", self.applied, False),
            ("Optimizer", "apply_gradients", self.applied, False),
        ):
            owner = vars(module).get(kind)
            if owner is not None and name in vars(owner):
                wrap(owner, name, accompanied(self._if_on(act), self.recorder.stop, before=before))
        if module.__name__.startswith("tensorflow"):
            wrap(module.Function, "__call__", self._calls)

    def _if_on(self, act: Callable[..., None]) -> Callable[..., None]:
        return lambda *args: act(*args) if self.recorder.on else None

    # fit

    def train_began(self, callbacks: Any, args: Any, kwargs: Any) -> None:
        self.recorder.take_thread()
        self.fitting = True
        self.batch_size = 0

    def train_ended(self, callbacks: Any, args: Any, kwargs: Any) -> None:
        self._fetched()
        self.fitting = False

    def batch_began(self, callbacks: Any, args: Any, kwargs: Any) -> None:
        self._fetched()
        self.batch = int(args[0]) if args else 0
        if not self.batch_size:
            self._look_at(callbacks, sys._getframe(4).f_locals)

    def batch_ended(self, callbacks: Any, args: Any, kwargs: Any) -> None:
        if not self.recorder.mine():
            return
        last = int(args[0]) if args else self.batch
        steps = max(1, last - self.batch + 1)
        recorder = self.recorder
        recorder.bounded_by("keras")
        if recorder.facts.get("backend") != "torch":  # torch's own loaders have counted there
            recorder.batches += 1
            recorder.examples += steps * self.batch_size
        length = (getattr(callbacks, "params", None) or {}).get("steps")
        self.passed = [last + 1, int(length)] if length else []
        if not recorder.steps:
            self._facts(getattr(callbacks, "model", None) or getattr(callbacks, "_model", None))
        recorder.stepped("keras", steps)
        if recorder.facts.get("backend") != "tensorflow":  # there the batch is fetched inside of the step
            recorder.timeline.enter("data")
            self.fetching = True

    def epoch_ended(self, callbacks: Any, args: Any, kwargs: Any) -> None:
        self._fetched()
        if self.partial and self.batch_size and self.recorder.facts.get("backend") != "torch":
            self.recorder.examples -= self.batch_size - self.partial
        if self.recorder.mine():
            self.epochs += 1  # of the script: each fit counts its own from 0
            logs = (args[1] if len(args) > 1 else kwargs.get("logs")) or {}
            of_validation = {name: value for name, value in logs.items() if name.startswith("val_")}
            trained = {name: value for name, value in logs.items() if name not in of_validation}
            report.metrics("keras", "train", self.epochs, trained)
            report.metrics("keras", "val", self.epochs, of_validation)

    def _fetched(self) -> None:
        if self.fetching:
            self.fetching = False
            self.recorder.timeline.leave()

    def evaluation_began(self, callbacks: Any, args: Any, kwargs: Any) -> None:
        self._fetched()
        if self.recorder.mine():
            self.recorder.timeline.enter("evaluation")
            self.recorder.evaluated()

    def evaluation_ended(self, callbacks: Any, args: Any, kwargs: Any) -> None:
        if self.recorder.mine():
            self.recorder.timeline.leave()
            if not self.fitting:  # evaluate() of the script's own; fit's is in the logs of its epoch
                logs = args[0] if args else kwargs.get("logs")  # by name in Keras 2
                report.metrics("keras", "test", self.epochs, logs or {})

    def _look_at(self, callbacks: Any, frame: Dict[str, Any]) -> None:
        """Read the batch size from the frame of the loop in ``fit``."""
        adapter = getattr(frame.get("epoch_iterator"), "data_adapter", None)
        adapter = adapter or getattr(frame.get("data_handler"), "_adapter", None)
        self.batch_size = _number(adapter, "batch_size")
        self.partial = _number(adapter, "partial_batch_size") if _number(adapter, "has_partial_batch") else 0

    def _facts(self, model: Any) -> None:
        keras = sys.modules.get("keras") or sys.modules.get("tf_keras")
        facts = self.recorder.facts
        facts.update(framework="keras", version=str(getattr(keras, "__version__", "")))
        backend = getattr(getattr(keras, "config", None), "backend", None)
        facts["backend"] = backend() if callable(backend) else "tensorflow"
        facts["device"] = _device(facts["backend"])
        if model is not None:
            facts["parameters"] = sum(int(math.prod(each.shape)) for each in model.trainable_variables)
            facts["parameter_dtype"] = str(getattr(getattr(model, "dtype_policy", None), "name", ""))
            facts["optimizer"] = type(getattr(model, "optimizer", None)).__name__

    # loops of the script's own

    def applied(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """Count a step when an optimizer has applied gradients; while it is traced, mark the function instead."""
        if self.fitting:
            return
        if self.functions:
            self.functions[0]._seatrial_trains = True  # it is counted when the function is called
            return
        if "tensorflow" in sys.modules and sys.modules["tensorflow"].inside_function():
            return
        jax = sys.modules.get("jax")
        if jax is not None and any(isinstance(each, jax.core.Tracer) for each in tensors_in((*args, *kwargs.values()))):
            return
        self._own_step(optimizer)

    def _own_step(self, what: Any) -> None:
        recorder = self.recorder
        if not recorder.steps:
            recorder.take_thread()
            if "backend" not in recorder.facts:
                self._facts(None)
                if not isinstance(what, str):
                    recorder.facts["optimizer"] = type(what).__name__
        if recorder.mine():
            recorder.stepped(what)

    def _calls(self, original: Any) -> Any:
        functions, recorder = self.functions, self.recorder

        def __call__(this: Any, *args: Any, **kwargs: Any) -> Any:
            if self.fitting or get_ident() != recorder.thread:
                return original(this, *args, **kwargs)
            functions.append(this)
            try:
                return original(this, *args, **kwargs)
            finally:
                functions.pop()
                if not functions and getattr(this, "_seatrial_trains", False):
                    safely(recorder.stop, self._if_on(self._own_step), "a tf.function")

        return __call__

    def extra(self) -> Dict[str, Any]:
        return {"pass": self.passed} if self.passed else {}


def _number(adapter: Any, name: str) -> int:
    """Return a value that is a property in Keras 3 and a method in Keras 2; 0 if it is not known."""
    value = getattr(adapter, name, None)
    value = value() if callable(value) else value
    return int(value) if isinstance(value, (int, bool)) else 0


def _device(backend: str) -> str:
    """Return the device that is trained on, "cuda" or "cpu": the framework has started its devices by now."""
    if backend == "tensorflow":
        devices = sys.modules["tensorflow"].config.list_logical_devices("GPU")
        return "cuda" if devices else "cpu"
    if backend == "jax":
        return "cpu" if sys.modules["jax"].default_backend() == "cpu" else "cuda"
    torch = sys.modules.get("torch")
    return "cuda" if torch is not None and torch.cuda.is_initialized() else "cpu"


COUNT, NUMBER = "JAX_NUM_PROCESSES", "JAX_PROCESS_ID"


def join_jax(distributed: Any) -> None:
    """Fill in the count and number of processes if a call leaves them open."""
    wrap(distributed.State, "initialize", _with_processes)


def _with_processes(original: Any) -> Any:
    signature = inspect.signature(original)

    def initialize(*arguments: Any, **named: Any) -> Any:
        count, number = os.environ.get(COUNT, ""), os.environ.get(NUMBER, "")
        if not (count.isdigit() and number.isdigit()):
            return original(*arguments, **named)
        call = signature.bind(*arguments, **named)
        given = call.arguments
        if given.get("num_processes") is None and given.get("process_id") is None:
            given.update(num_processes=int(count), process_id=int(number))
            # Slurm's variables would give this process the first GPU alone.
            if "cluster_detection_method" in signature.parameters and given.get("cluster_detection_method") is None:
                given["cluster_detection_method"] = "deactivate"
        return original(*call.args, **call.kwargs)

    return initialize


_COMPILED = "/jax/core/compile/backend_compile_duration"


def jax_is_here(monitoring: Any) -> None:
    """Listen to ``monitoring``: the module jax.monitoring, or the one behind it."""
    recorder = shared()
    seen: Dict[str, Any] = {"compiled": 0, "seconds": 0.0, "backends": []}

    def listen(event: str, seconds: float, **details: Any) -> None:
        if event == _COMPILED:
            seen["compiled"] += 1
            seen["seconds"] += seconds
            seen["backends"] = sorted(getattr(sys.modules.get("jax._src.xla_bridge"), "_backends", None) or ())

    def facts() -> None:
        jax = sys.modules.get("jax")
        known: Dict[str, Any] = {"jax": str(getattr(jax, "__version__", ""))}
        known.update(jax_compiled=seen["compiled"], jax_compile_s=round(seen["seconds"], 3))
        if seen["backends"]:
            known["jax_backends"] = seen["backends"]
        if "framework" not in recorder.facts:
            known.update(framework="jax", version=known["jax"])
        recorder.facts.update(known)

    try:
        monitoring.register_event_duration_secs_listener(listen)
        recorder.at_ends.append(facts)
    except Exception as error:  # noqa: BLE001  never the script's trouble
        recorder.stop(error)
