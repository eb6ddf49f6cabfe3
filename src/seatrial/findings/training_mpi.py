"""Failures of MPI and Ray, with which some scripts start their processes."""

from seatrial.findings.known import Known

TRAINING_MPI = (
    Known(
        id="mpi-slots",
        title="mpirun was asked for more processes than it has slots",
        symptoms=("There are not enough slots available in the system to satisfy the",),
        cause="Open MPI counts the cores, or the slots of its host file, and refuses to start more",
        fix="mpirun --oversubscribe …   # or name the slots: mpirun -H localhost:8 …",
        sources=("open-mpi/ompi#5789", "https://docs.open-mpi.org/en/main/launching-apps/scheduling.html"),
    ),
    Known(
        id="mpi-as-root",
        title="Open MPI refuses to run as root",
        symptoms=("has detected an attempt to run as root",),
        cause="In containers root is usual, and mpirun wants to be told that it is meant",
        fix="seatrial run --env OMPI_ALLOW_RUN_AS_ROOT=1 --env OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 …",
        sources=("chainer/chainermn#70",),
    ),
    Known(
        id="mpi-copy-forbidden",
        title="Open MPI may not read another process's memory",
        symptoms=("Read -1, expected {bytes}, errno = 1",),
        cause="It copies between ranks with process_vm_readv, which takes the capability SYS_PTRACE in a container",
        fix="seatrial run --env OMPI_MCA_btl_vader_single_copy_mechanism=none …   # Open MPI 5: OMPI_MCA_smsc=^cma",
        sources=("open-mpi/ompi#4948",),
    ),
    Known(
        id="mpi-no-ssh",
        title="The image has no ssh, with which mpirun starts its processes",
        symptoms=("plm_rsh_agent: ssh : rsh", "The value of the MCA parameter 'plm_rsh_agent' was set to a path"),
        cause="Open MPI looks for ssh when it starts, and slim images have none",
        fix='in seatrial.toml: [image] system_packages = ["openssh-client"]',
        sources=("chainer/chainermn#70",),
    ),
    Known(
        id="mpi-node-not-reached",
        title="mpirun could not start its daemon on another machine",
        symptoms=(
            "ORTE was unable to reliably start one or more daemons",
            "PRTE was unable to reliably start one or more daemons",
            "ORTE has lost communication with a remote daemon",
        ),
        cause="ssh from here to that machine asks for a password or does not know the host's key; or Open MPI is not "
        "installed there at the same place",
        fix="ssh -o BatchMode=yes HOST which orted   # has to answer; under Slurm: srun --mpi=pmix … without mpirun",
        sources=("NVIDIA/pyxis#164",),
    ),
    Known(
        id="mpi-not-launched",
        title="MPI could not start in this process",
        symptoms=("*** An error occurred in MPI_Init",),
        cause="The script was started without mpirun or srun, or by one whose PMI does not fit the image's MPI",
        fix="srun --mpi=pmix python train.py   # or mpirun -np N; srun --mpi=list names what there is",
        sources=("NVIDIA-NeMo/Megatron-Bridge#650",),
    ),
    Known(
        id="mpi-no-transport",
        title="Open MPI finds no way to send messages",
        symptoms=("No components were able to be opened in the pml framework",),
        cause="UCX was asked for and finds no device it can use, or its library is not in the image",
        fix="seatrial run --env OMPI_MCA_pml=ob1 …   # over TCP and shared memory; ucx_info -d shows what UCX has",
        sources=("openucx/ucx#5284",),
    ),
    Known(
        id="pmix-security",
        title="PMIx cannot speak to the launcher: its plug-in for munge is not there",
        symptoms=("pmix_psec_base_open failed", "PMIX ERROR: NOT-FOUND in file server/pmix_server.c"),
        cause="Slurm's PMIx proves who it is with munge, which is not installed in the image or on this machine",
        fix="export PMIX_MCA_psec=native   # before srun or mpirun; or install libmunge2",
        sources=("NVIDIA/pyxis#88", "openpmix/prrte#1127"),
    ),
    Known(
        id="ray-worker-died",
        title="A worker process of Ray died",
        symptoms=(
            "ActorDiedError: The actor died unexpectedly before finishing this task",
            "Worker unexpectedly exits with a connection error code",
            "A worker died or was killed while executing a task by an unexpected system error",
        ),
        cause="Most often the kernel killed it as host memory ran out; else it crashed in compiled code",
        fix="sudo dmesg | grep -i 'killed process'   # and the worker's own log: /tmp/ray/session_latest/logs",
        sources=("ypwang61/One-Shot-RLVR#14", "hkust-nlp/simpleRL-reason#80"),
    ),
    Known(
        id="ray-too-few-gpus",
        title="More GPUs are asked for than Ray has",
        symptoms=(
            "The number of required GPUs exceeds the total number of available GPUs",
            "ValueError: placement group bundle index {index} is invalid",
        ),
        cause="The parts of the training that hold GPUs (actors, rollouts, tensor parallelism) want more in sum",
        fix="ray status   # what there is; then fewer: tensor_parallel_size, or the GPUs of each actor",
        sources=("vllm-project/vllm#2416", "OpenRLHF/OpenRLHF#728"),
    ),
)
