"""Xid: the driver's own error numbers, as NVML tells them the moment they happen; no root, no kernel log."""

from typing import Any, Dict, List

from seatrial.probe import nvml

_EVENT_XID = 8  # nvml.h: nvmlEventTypeXidCriticalError

#: Events taken at one look; a GPU in trouble repeats itself.
_MAX_AT_ONCE = 64


class XidWatch:
    """Registers for the Xid errors of GPUs. ``active`` is False, and there are none, where the driver forbids it."""

    def __init__(self, pynvml: Any, uuids: List[str]) -> None:
        self._nvml = pynvml
        self._set = nvml.optional(pynvml, "nvmlEventSetCreate")
        self.active = False
        for uuid in uuids if self._set is not None else []:
            try:
                pynvml.nvmlDeviceRegisterEvents(nvml.gpu_handle(pynvml, uuid), _EVENT_XID, self._set)
                self.active = True
            except pynvml.NVMLError:  # a MIG slice, or a driver without events
                continue

    def new(self) -> Dict[str, List[int]]:
        """UUID → numbers since the last call; never waits. Some Xids are the application's own fault (13, 31, 43)."""
        found: Dict[str, List[int]] = {}
        for _ in range(_MAX_AT_ONCE if self.active else 0):
            try:
                event = self._nvml.nvmlEventSetWait_v2(self._set, 0)
            except self._nvml.NVMLError:  # NVML_ERROR_TIMEOUT: no more; anything else: the GPU's loss is told elsewhere
                break
            if event.eventType & _EVENT_XID:
                uuid = nvml.optional(self._nvml, "nvmlDeviceGetUUID", event.device) or "?"
                found.setdefault(uuid, []).append(int(event.eventData))
        return found

    def close(self) -> None:
        """Unregister; there are no more errors to be had."""
        if self._set is not None:
            nvml.optional(self._nvml, "nvmlEventSetFree", self._set)
        self._set, self.active = None, False
