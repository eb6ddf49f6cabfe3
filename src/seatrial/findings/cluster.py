"""What Slurm and Apptainer say when they do not take a job, or do not start it."""

from seatrial.findings.known import Known

_SBATCH = "https://slurm.schedmd.com/sbatch.html"

CLUSTER = (
    Known(
        id="slurm-gres",
        title="The cluster has no such GPUs, or the job was not given them",
        symptoms=("Invalid generic resource (gres) specification",),
        cause="The partition has no GRES of this name, type or number; a step may ask for no more than its job",
        fix="sinfo -o '%P %G %N'   # what the partitions have; then: sbatch --partition=P --gres=gpu:TYPE:N …",
        sources=("awslabs/awsome-distributed-ai#196", "https://slurm.schedmd.com/gres.html"),
    ),
    Known(
        id="slurm-memory-options",
        title="The job has two of Slurm's options for memory",
        symptoms=("and SLURM_MEM_PER_NODE are mutually exclusive", "--mem-per-gpu are mutually exclusive"),
        cause="A job that is submitted from another one inherits that one's variables",
        fix="unset SLURM_MEM_PER_CPU SLURM_MEM_PER_GPU SLURM_MEM_PER_NODE   # before sbatch or srun",
        sources=("mehta-lab/recOrder#482", _SBATCH),
    ),
    Known(
        id="slurm-nodes-too-small",
        title="No node is as large as the job asks for",
        symptoms=("Requested node configuration is not available",),
        cause="Its cores, memory and GPUs for one node are more than any node of the partition, or of the job, has",
        fix="sinfo -N -o '%N %P %c %m %G'   # cores, MB and GPUs of each node",
        sources=("radical-cybertools/radical.pilot#2109", _SBATCH),
    ),
    Known(
        id="slurm-feature",
        title="No node has the feature of --constraint",
        symptoms=("Invalid feature specification",),
        cause="The name is misspelled, or belongs to another cluster",
        fix="sinfo -o '%N %f'   # the features of each node",
        sources=("snakemake/snakemake-executor-plugin-slurm#104", _SBATCH),
    ),
    Known(
        id="slurm-account",
        title="The account, partition or QOS is not one that this user may use",
        symptoms=(
            "Invalid account or account/partition combination specified",
            "invalid partition specified:",
            "Invalid qos specification",
            "User's group not permitted to use this partition",
        ),
        cause="Its name is misspelled, or the user was not added to it",
        fix="sacctmgr show associations user=$USER format=account,partition,qos   # and sinfo -s for the partitions",
        sources=(_SBATCH,),
    ),
    Known(
        id="slurm-refused",
        title="Slurm did not take the job: {reason}",
        symptoms=("Batch job submission failed: {reason…}", "srun: error: Unable to allocate resources: {reason…}"),
        cause="The job's options do not fit what the cluster has, or what this user may use",
        fix="sbatch --test-only job.sh && sinfo -o '%P %a %l %D %G'",
        sources=(_SBATCH,),
    ),
    Known(
        id="slurm-step-not-started",
        title="The node did not start the job's step in time",
        symptoms=("timeout waiting for task launch, started", "aborted before step completely launched"),
        cause="Its file system, prolog or the image to unpack is slow, or the node is in trouble",
        fix="scontrol show node NODE   # State and Reason; then: srun --exclude=NODE …",
        sources=("StanfordLegion/gasnet#25",),
    ),
    Known(
        id="slurm-no-program",
        title="srun finds no program {program} on the node",
        symptoms=("slurmstepd: error: execve(): {program}: No such file or directory",),
        cause="It is not on that node or in the container's image, or PATH is another one there",
        fix="srun bash -lc 'command -v {program}; echo $PATH'   # with the same --container-image",
        sources=("openucx/ucx#8440",),
    ),
    Known(
        id="apptainer-options",
        title="An option of Apptainer stands behind the image",
        symptoms=("exec: --nv: not found", "exec: --bind: not found"),
        cause="What follows the image is the command to run in it",
        fix="apptainer exec --nv --bind /data IMAGE.sif python train.py",
        sources=("jade-hpc-gpu/jade-hpc-gpu.github.io#82",),
    ),
    Known(
        id="apptainer-namespace",
        title="Apptainer may not create a user namespace on this machine",
        symptoms=("Failed invoking the NEWUSER namespace runtime", "Failed to create user namespace"),
        cause="The kernel forbids users' namespaces, and Apptainer was installed without its set-uid helper",
        fix="sysctl user.max_user_namespaces   # 0 forbids them; its administrator: sudo apt install apptainer-suid",
        sources=("apptainer/singularity#5479", "https://apptainer.org/docs/admin/main/user_namespace.html"),
    ),
)
