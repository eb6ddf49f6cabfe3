"""What is known of a log that somebody pasted, and that a receipt knows better of its own run."""

from seatrial.findings.known import Known

PASTED = (
    Known(
        id="process-killed",
        title="A process was killed from outside (SIGKILL)",
        symptoms=(
            "Signal 9 (SIGKILL) received by PID",
            "failed (exitcode: -9)",
            "exits with return code = -9",
            "exited on signal 9 (Killed)",
            ": line {number}: {pid} Killed ",
        ),
        cause="Nearly always by the kernel, as host memory ran out; else by a scheduler's limit or by somebody",
        fix="sudo dmesg | grep -i 'killed process'   # was it memory? Then: seatrial run --memory 32g …",
        sources=("OpenBMB/MiniCPM-V#770", "deepspeedai/DeepSpeed#3232", "Kay1794/Aware-of-the-history#2"),
    ),
    Known(
        id="process-crashed",
        title="A process crashed in compiled code (SIGSEGV)",
        symptoms=(
            "Signal 11 (SIGSEGV) received by PID",
            "failed (exitcode: -11)",
            "exits with return code = -11",
            "exited on signal 11 (Segmentation fault)",
            "Segmentation fault (core dumped)",
            "]: segfault at {address} ip ",
            "Fatal Python error: Segmentation fault",
        ),
        cause="A compiled package failed: it belongs to another torch, or to another CUDA or driver",
        fix="seatrial run --env PYTHONFAULTHANDLER=1 …   # names the line of Python; begin with the last package added",
        sources=("deepspeedai/DeepSpeed#3989", "https://docs.python.org/3/library/faulthandler.html"),
    ),
    Known(
        id="processor-too-old",
        title="A package was compiled for a newer processor (SIGILL)",
        symptoms=(
            "Illegal instruction (core dumped)",
            "Signal 4 (SIGILL) received by PID",
            "exits with return code = -4",
        ),
        cause="It uses instructions, as a rule AVX or AVX-512, that this processor or virtual machine does not have",
        fix="lscpu | grep -o 'avx[^ ]*'   # what there is; then another release of the package added last",
        sources=("tensorflow/tensorflow#17411",),
    ),
    Known(
        id="rank-failed",
        title="A launcher reports that one of its processes failed",
        symptoms=(
            "torch.distributed.elastic.multiprocessing.errors.ChildFailedError",
            "mpirun detected that one or more processes exited with non-zero status",
            "Horovod detected that one or more processes exited with non-zero status",
            "Horovod has been shut down. This was caused by an exception on one of the ranks",
        ),
        cause="It does not say why; that process's own traceback stands above, in this log or in its own",
        fix="grep -n -m1 -A40 Traceback train.log   # the first one in the log is the cause",
        sources=("pytorch/pytorch#121209", "horovod/horovod#3647"),
    ),
    Known(
        id="slurm-time-limit",
        title="Slurm ended the job at its time limit",
        symptoms=("DUE TO TIME LIMIT",),
        cause="The job ran longer than --time, or than its partition allows",
        fix="sbatch --time=24:00:00 …   # and go on from the last checkpoint",
        sources=("https://slurm.schedmd.com/sbatch.html",),
    ),
    Known(
        id="program-missing",
        title="The script calls the program {program}, which is not there",
        symptoms=(),
        cause="It is a program of the system: no Python package brings it, and images have few of them",
        fix='in seatrial.toml: [image] system_packages = ["{program}"]   # or the Debian package that has it',
        sources=("https://docs.python.org/3/library/subprocess.html#subprocess.Popen",),
    ),
    Known(
        id="file-missing",
        title="The script found no file {path}",
        symptoms=("FileNotFoundError: [Errno 2] …: '{path…}'",),
        cause="A relative path begins at the working directory; of this machine, the container has the project alone",
        fix="seatrial run … --mount FOLDER:{folder}",
        sources=("https://docs.python.org/3/library/exceptions.html#FileNotFoundError",),
    ),
)
