"""What the watchdog sees while a run goes on; nothing of it is printed by programs."""

from seatrial.findings.known import Known

_MEASURED = "measured on an H200, driver 580"

RUNNING = (
    Known(
        id="gpu-memory-not-held",
        title="--gpu-memory was not held: the framework could not be given the limit",
        symptoms=(),
        cause="It is a release of the framework that keeps its options elsewhere than those that were tried",
        fix="seatrial run …   # without --gpu-memory, on a GPU of its own",
        sources=("docs/tensorflow-and-jax.md",),
    ),
    Known(
        id="gpu-xid",
        title="The driver reported an Xid error on a GPU",
        symptoms=("NVRM: Xid (",),
        cause="Xid 13, 31, 43 and 45 come from the program itself; 48, 63, 64, 74, 79, 94, 95, 119 from the hardware",
        fix="sudo dmesg | grep -i xid   # and look its number up: https://docs.nvidia.com/deploy/xid-errors/",
        sources=("https://docs.nvidia.com/deploy/xid-errors/",),
        severity="warning",
    ),
    Known(
        id="gpu-slowed-down",
        title="A GPU is throttled by heat or by its power supply",
        symptoms=(),
        cause="It is too hot, or the host's power supply asserts the power brake",
        fix="nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER   # then check fans, airflow and power cables",
        sources=("https://docs.nvidia.com/deploy/nvml-api/group__nvmlClocksEventReasons.html",),
        severity="warning",
    ),
    Known(
        id="gpu-power-capped",
        title="A GPU runs at its power limit",
        symptoms=(),
        cause="Expected under full load: a good matmul always reaches the limit and loses a few percent of clock",
        fix="nvidia-smi -q -d POWER   # nothing to fix, unless the limit was lowered",
        sources=(_MEASURED,),
        severity="info",
    ),
    Known(
        id="gpu-memory-nearly-full",
        title="A GPU's memory is nearly full",
        symptoms=(),
        cause="A larger batch, or a growing cache, will run out of memory",
        fix="a smaller batch, gradient checkpointing, or PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
        sources=("https://docs.pytorch.org/docs/stable/notes/cuda.html",),
        severity="warning",
    ),
    Known(
        id="host-memory-nearly-full",
        title="The run's host memory is nearly full",
        symptoms=(),
        cause="The kernel will kill one of its processes when the limit is reached, a loader worker first",
        fix="seatrial run --memory 32g …   # a higher limit, or fewer workers",
        sources=("https://docs.kernel.org/admin-guide/cgroup-v2.html",),
        severity="warning",
    ),
    Known(
        id="shared-memory-nearly-full",
        title="/dev/shm is nearly full",
        symptoms=(),
        cause="Loader workers and NCCL hand data over there and crash with a bus error when it is full",
        fix="seatrial run --shm-size 16g …   # larger, or fewer workers and a smaller prefetch_factor",
        sources=("pytorch/pytorch#5040",),
        severity="warning",
    ),
    Known(
        id="hang",
        title="The run seems to hang",
        symptoms=(),
        cause="It worked before, and now reports no step, prints nothing and computes nothing; with several GPUs one "
        "rank often waits for another in NCCL, whose kernels spin at 100 % utilisation",
        fix="seatrial runs exec RUN -- py-spy dump --pid 1   # then: seatrial runs stop RUN",
        sources=("pytorch/pytorch#50820",),
        severity="warning",
    ),
    Known(
        id="did-nothing",
        title="The script ended with exit code 0 and did nothing",
        symptoms=(),
        cause="It printed that something is missing, or how to call it, and left without reporting an error",
        fix="seatrial runs logs RUN   # what it asks for: often more GPUs (--gpus 2), arguments after --, or data",
        sources=("docs/diagnosis.md",),
        severity="warning",
    ),
    Known(
        id="zombie-holds-gpu-memory",
        title="A dead process still holds GPU memory",
        symptoms=(),
        cause="It has exited and its parent has not reaped it, or the driver is still cleaning it up",
        fix="ps -eo pid,ppid,stat,cmd | grep ' Z'   # end its parent",
        sources=("NVIDIA/open-gpu-kernel-modules#272",),
        severity="warning",
    ),
)
