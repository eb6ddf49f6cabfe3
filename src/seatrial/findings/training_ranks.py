"""Failures between ranks: who cannot be reached, who is gone, who did something else."""

from seatrial.findings.known import Known

_C10D = "pytorch: torch/csrc/distributed/c10d/"
_NCCL = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html"

TRAINING_RANKS = (
    Known(
        id="first-node-not-reached",
        title="A rank cannot reach the first node",
        symptoms=(
            "The client socket has failed to connect to any network address of",
            "The client socket has timed out after",
        ),
        cause="The address or the port is wrong, a firewall closes it, or the first node has not started yet",
        fix="nc -vz HOST PORT   # from the other node, with the host and port of the message",
        sources=(_C10D + "socket.cpp",),
    ),
    Known(
        id="ranks-missing",
        title="Not all ranks came to the meeting point in time",
        symptoms=(
            "seconds waiting for clients. ",
            "RuntimeError: Socket Timeout",
            "DEADLINE_EXCEEDED: Barrier timed out",
        ),
        cause="Fewer were started than the world size says, one of them failed before, or it cannot reach this machine",
        fix="compare --nodes, --gpus or WORLD_SIZE with what runs; then the log of the rank that is missing",
        sources=(_C10D + "TCPStore.cpp", "NVIDIA/nccl#1105"),
    ),
    Known(
        id="ranks-diverge",
        title="The ranks called different collective operations",
        symptoms=("Detected mismatch between collectives on ranks", "disagreement between rank0 and rank"),
        cause="A branch of the script that only some ranks take has a collective in it: saving, evaluation, logging",
        fix="call it on every rank; only what prints or writes belongs behind `if rank == 0`",
        sources=(_C10D + "ProcessGroupWrapper.cpp",),
    ),
    Known(
        id="ranks-other-models",
        title="The ranks built different models, or do not hear each other",
        symptoms=("DDP expects same model across all ranks",),
        cause="A branch of the script makes another model on some ranks; where one has 0 parameters, peer-to-peer "
        "traffic arrives damaged",
        fix="seatrial run --env NCCL_P2P_DISABLE=1 …   # if that changes nothing, print the model on each rank",
        sources=("zhengchen1999/DAT#29",),
    ),
    Known(
        id="peer-gone",
        title="Another rank ended the connection",
        symptoms=(
            "Connection closed by peer [",
            "store->get('{key}') got error: Connection reset by peer",
            "store->get('{key}') got error: Broken pipe",
            "NCCL WARN …Connection closed by remote peer",
            "gloo/transport/tcp/pair.cc…Connection reset by peer",
            "NET/IB : Got completion from peer",
            "NET/IB: Got completion from peer",
        ),
        cause="It failed or was killed; its own log says why",
        fix="seatrial runs ls   # on the other machine: the log of its run, or the first traceback here, has the cause",
        sources=("pytorch: third_party/gloo",),
    ),
    Known(
        id="store-gone",
        title="The meeting point of the ranks does not answer",
        symptoms=(
            "The connection to the C10d store has failed",
            "WatchTasksAsync failed for task",
            "CoordinationService/WatchTasks: UNAVAILABLE",
        ),
        cause="The first node's process has ended or never started, or it cannot be reached from here",
        fix="nc -vz HOST PORT   # its address and port; if it ran and ended, its own log says why",
        sources=(_C10D + "TCPStore.cpp",),
    ),
    Known(
        id="nccl-no-connection",
        title="NCCL cannot connect to another rank at {address}",
        symptoms=(
            "NCCL WARN …Connect to {address} returned",
            "NCCL WARN …Connect to {address} failed",
        ),
        cause="A firewall closes the port, NCCL took an interface that does not lead there, or that rank is gone",
        fix="seatrial run --env NCCL_SOCKET_IFNAME=eth0 …   # your own: `ip route get ADDRESS` names it",
        sources=("sgl-project/sglang#3820", "NVIDIA/nccl#1105", _NCCL),
    ),
    Known(
        id="interface-unknown",
        title="There is no network interface {interface}",
        symptoms=(
            "Unable to find address for: {interface}",
            "Bootstrap : no socket interface found",
            "No interface found with name {interface}",
        ),
        cause="NCCL_SOCKET_IFNAME or GLOO_SOCKET_IFNAME names one that this machine or container does not have",
        fix="ip -brief address   # lists them; in a container those of the host need: seatrial run --network host …",
        sources=("NVIDIA/nccl#210", _NCCL),
    ),
)
