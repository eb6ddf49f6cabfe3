"""Failures of InfiniBand and NVLink below NCCL."""

from seatrial.findings.known import Known

_TROUBLE = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html"

TRAINING_FABRIC = (
    Known(
        id="ib-library-missing",
        title="NCCL goes without InfiniBand: the image has no libibverbs",
        symptoms=("NCCL WARN Failed to open libibverbs.so",),
        cause="Without it NCCL sends through TCP sockets, which is slow between machines; on one machine it does no "
        "harm",
        fix='in seatrial.toml: [image] system_packages = ["libibverbs1", "ibverbs-providers"]',
        sources=("facebookresearch/detectron2#4730", "NVIDIA/nccl#766"),
        severity="info",
    ),
    Known(
        id="ib-device-closed",
        title="NCCL finds an InfiniBand adapter that it may not open",
        symptoms=("NET/IB : Unable to open device", "NCCL WARN Call to ibv_open_device failed"),
        cause="A container sees the host's list of adapters in /sys, and only those devices that were passed in",
        fix="ls /dev/infiniband   # pass them in, or name those to use: seatrial run --env NCCL_IB_HCA=mlx5_0 …",
        sources=("zai-org/ImageReward#65", "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html"),
        severity="warning",
    ),
    Known(
        id="ib-not-reached",
        title="InfiniBand adapters do not reach each other: a transfer was tried again and again",
        symptoms=(
            "NET/IB : Got completion …error 12,",
            "NET/IB: Got completion …status=12 ",
            "IBV_WC_RETRY_EXC_ERR",
        ),
        cause="The adapters are on different networks, RoCE takes the wrong address (GID), a cable or switch is at "
        "fault, or that machine is gone",
        fix="ib_write_bw   # on one machine, and `ib_write_bw OTHER` on the other; RoCE: --env NCCL_IB_GID_INDEX=3",
        sources=("NVIDIA/nccl#1170", "NVIDIA/nccl#905", _TROUBLE),
    ),
    Known(
        id="ib-link-down",
        title="An InfiniBand link went down",
        symptoms=("Got async event : port error", "Got async event: port error", "Got async error event: port error"),
        cause="A cable, an adapter or a port of the switch is at fault; NCCL then waits for ever or fails",
        fix="ibstat && ibqueryerrors   # on the machine of the message: State, and the counters that grow",
        sources=("NVIDIA/nccl#905",),
        severity="warning",
    ),
    Known(
        id="nvls-failed",
        title="NCCL cannot set up NVLink SHARP (NVLS)",
        symptoms=("nvls.cc:… NCCL WARN",),
        cause="It needs the NVSwitch fabric in order, which nvidia-fabricmanager sets up, and all GPUs of it free",
        fix="seatrial run --env NCCL_NVLS_ENABLE=0 …   # and on the host: systemctl status nvidia-fabricmanager",
        sources=("NVIDIA/nccl#1562",),
    ),
)
