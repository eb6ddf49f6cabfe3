"""Measure the wait for other ranks: in collectives that a script calls, in DDP and in both kinds of FSDP."""

import weakref
from typing import Any, Callable, Dict, List, Tuple

from . import report
from .observe import accompanied, wrap
from .steps import Recorder
from .torch_windows import Windows

_COLLECTIVES = (
    "barrier", "all_reduce", "reduce", "broadcast", "all_gather", "all_gather_into_tensor", "reduce_scatter",
    "reduce_scatter_tensor", "all_to_all", "all_to_all_single", "gather", "scatter", "send", "recv",
    "all_gather_object", "broadcast_object_list", "gather_object", "scatter_object_list", "monitored_barrier",
)  # fmt: skip

#: Functions in which each kind of FSDP waits for parameters or gradients. Source: torch/distributed, the files
#: fsdp/_runtime_utils.py (1.13 to 2.13) and fsdp/_fully_shard/_fsdp_param_group.py (before 2.6 in _composable/fsdp).
_FSDP1_WAITS = ("_pre_forward_unshard", "_pre_backward_hook", "_post_backward_final_callback")
_FSDP2_WAITS = ("wait_for_unshard", "finalize_backward")

#: First sample used of DDP's step times: the first ones include start-up, and the slowest rank's delay all others.
_DDP_FIRST_SAMPLE = 5
_DDP_TIMES = (
    *("forward_compute_time", "backward_compute_time", "backward_comm_time"),
    "backward_compute_comm_overlap_time",
)


class Communication:
    """Wraps what waits, and reads DDP's own times."""

    def __init__(self, torch: Any, recorder: Recorder, windows: Windows, compiling: Callable[[], bool]) -> None:
        self._torch, self._recorder, self._windows, self._compiling = torch, recorder, windows, compiling
        self._models: Any = weakref.WeakSet()
        self._samples: Dict[int, Tuple[float, ...]] = {}

    def place(self) -> None:
        distributed = self._torch.distributed
        if not distributed.is_available():
            return
        wrap(distributed, "init_process_group", self._joins)
        for name in _COLLECTIVES:
            wrap(distributed, name, lambda original: self._communicates(original, self._recorder.mine))
        parallel = self._torch.nn.parallel.DistributedDataParallel
        wrap(parallel, "__init__", accompanied(self._spreads, self._recorder.stop))

    def _joins(self, original: Any) -> Any:
        def init_process_group(*args: Any, **kwargs: Any) -> None:
            original(*args, **kwargs)
            report.ranked(self._torch.distributed.get_rank())

        return init_process_group

    def _spreads(self, model: Any, args: Any, kwargs: Any) -> None:
        self._models.add(model)
        self._recorder.facts.update(parallel="DDP", world=self._torch.distributed.get_world_size())

    def fsdp_is_here(self, module: Any) -> None:
        """Measure the waits of one of the modules above, which has been imported."""
        group = getattr(module, "FSDPParamGroup", None)
        owner, names, kind = (module, _FSDP1_WAITS, 1) if group is None else (group, _FSDP2_WAITS, 2)
        for name in names:
            wrap(owner, name, lambda original: self._communicates(original, self._recorder.waited_for, kind))

    def _communicates(self, original: Any, counts: Callable[[], bool], fsdp: int = 0) -> Any:
        timeline, windows, compiling = self._recorder.timeline, self._windows, self._compiling
        facts, distributed = self._recorder.facts, self._torch.distributed

        def communicates(*args: Any, **kwargs: Any) -> Any:
            if compiling() or not counts():
                return original(*args, **kwargs)
            if fsdp and "parallel" not in facts:
                facts.update(parallel="FSDP%d" % fsdp, world=distributed.get_world_size())
            phase = windows.communication_begins() if windows.open else ""
            timeline.enter("communication")
            try:
                return original(*args, **kwargs)
            finally:
                timeline.leave()
                if phase:
                    windows.mark(phase)

        return communicates

    def ddp_times(self) -> Dict[str, float]:
        """Return the means of DDP's own samples of its steps, in seconds; {} without DDP. Each is of the step that DDP
        sampled last. Source: torch/csrc/distributed/c10d/logger.cpp (nanoseconds; steps 1 to 10 and each hundredth)."""
        for model in self._models:
            data = model._get_ddp_logging_data()
            iteration = int(data.get("iteration", 0))
            times = tuple(max(0, int(data.get(name, 0))) / 1e9 for name in _DDP_TIMES)
            if iteration >= _DDP_FIRST_SAMPLE and times[1]:
                self._samples[iteration] = times
        if not self._samples:
            return {}
        columns: List[Tuple[float, ...]] = list(zip(*self._samples.values()))
        return {name[:-5] + "_s": round(sum(each) / len(each), 7) for name, each in zip(_DDP_TIMES, columns)}
