"""Failures of training code: ranks, precision, checkpoints, and code that was written for other versions."""

from seatrial.findings.known import Known
from seatrial.findings.libraries import LIBRARIES_AROUND
from seatrial.findings.libraries_versions import LIBRARIES_VERSIONS
from seatrial.findings.training_fabric import TRAINING_FABRIC
from seatrial.findings.training_files import TRAINING_FILES
from seatrial.findings.training_mpi import TRAINING_MPI
from seatrial.findings.training_ranks import TRAINING_RANKS
from seatrial.findings.training_step import TRAINING_STEP

RANKS = (
    Known(
        id="ranks-share-a-gpu",
        title="Two ranks use the same GPU",
        symptoms=("Duplicate GPU detected",),
        cause="Each rank must take the GPU of its own number, and the script leaves several on one",
        fix='torch.cuda.set_device(int(os.environ["LOCAL_RANK"])) before init_process_group',
        sources=("NVIDIA/nccl: src/init.cc", "NVIDIA/Megatron-LM#661"),
    ),
    Known(
        id="nccl-invalid-usage",
        title="NCCL refused a call as invalid, most often as two ranks use one GPU",
        symptoms=("invalid usage, NCCL version", "ncclInvalidUsage: This usually reflects"),
        cause="A GPU can be in a group once: ranks that do not choose their own, or fractions of one in Ray, share it",
        fix="seatrial run --env NCCL_DEBUG=WARN …   # names the call; the GPU of each rank: LOCAL_RANK",
        sources=("https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/usage/communicators.html",),
    ),
    Known(
        id="ranks-not-set",
        title="The script wants to be started by torchrun",
        symptoms=(
            "env:// rendezvous: environment variable … expected, but not set",
            "KeyError: 'LOCAL_RANK'",
            "KeyError: 'RANK'",
            "KeyError: 'WORLD_SIZE'",
        ),
        cause="It reads LOCAL_RANK, RANK or WORLD_SIZE, which torchrun sets for each process",
        fix="seatrial run … --launcher torchrun",
        sources=("pytorch: torch/distributed/rendezvous.py",),
    ),
    Known(
        id="process-group-missing",
        title="torch.distributed is used before there is a process group",
        symptoms=("Default process group has not been initialized",),
        cause="init_process_group was not reached: the script runs as one process, or calls it later",
        fix="seatrial run … --launcher torchrun   # or ask torch.distributed.is_initialized() first",
        sources=("pytorch: torch/distributed/distributed_c10d.py",),
    ),
    Known(
        id="rank-option-unknown",
        title="torch.distributed.launch passed an option that the script does not know",
        symptoms=("unrecognized arguments: --local-rank=", "unrecognized arguments: --local_rank="),
        cause="torch 2 passes --local-rank where torch 1 passed --local_rank; torchrun passes neither",
        fix="seatrial run …   # in its place; where a subcommand has the option, let it read LOCAL_RANK instead",
        sources=("huggingface/pytorch-image-models#1724", "XPixelGroup/BasicSR#626"),
    ),
    Known(
        id="ddp-unused-parameters",
        title="Parameters got no gradient, and DistributedDataParallel waits for one",
        symptoms=("Expected to have finished reduction in the prior iteration",),
        cause="A part of the model takes no part in the loss of this step",
        fix="DistributedDataParallel(…, find_unused_parameters=True)   # or leave the part out of the model",
        sources=("pytorch: torch/csrc/distributed/c10d/reducer.cpp",),
    ),
    Known(
        id="ddp-parameter-twice",
        title="A parameter got its gradient twice in one step under DistributedDataParallel",
        symptoms=("Expected to mark a variable ready only once",),
        cause="Gradient checkpointing computes a part again, or several losses go back through the same part",
        fix="checkpoint(…, use_reentrant=False), or DistributedDataParallel(…, static_graph=True)",
        sources=("pytorch: torch/csrc/distributed/c10d/reducer.cpp",),
    ),
    Known(
        id="cuda-after-fork",
        title="A forked process uses the GPU",
        symptoms=(
            "Cannot re-initialize CUDA in forked subprocess",
            "create new processes if CUDA is already initialized",
        ),
        cause="CUDA does not survive a fork: the GPU was used before, or the data set makes tensors on it",
        fix='torch.multiprocessing.set_start_method("spawn"), and CPU tensors from the data set',
        sources=("https://docs.pytorch.org/docs/stable/notes/multiprocessing.html",),
    ),
)

PRECISION = (
    Known(
        id="bf16-not-on-this-gpu",
        title="This GPU does not compute in bf16",
        symptoms=(
            "Bfloat16 is only supported on GPUs with compute capability of at least",
            "Your setup doesn't support bf16/gpu",
        ),
        cause="bf16 begins with compute capability 8.0 (A100, RTX 30); V100, T4 and RTX 20 have fp16",
        fix="fp16 in its place: fp16=True for bf16=True, torch.float16, or --dtype half",
        sources=("vllm-project/vllm#946", "substratusai/vllm-docker#37"),
    ),
    Known(
        id="fp16-weights-with-scaler",
        title="GradScaler was given a model in half precision",
        symptoms=("Attempting to unscale FP16 gradients",),
        cause="Mixed precision keeps the weights in fp32 and computes in fp16; model.half() leaves nothing to unscale",
        fix="leave out model.half() or torch_dtype=torch.float16: autocast chooses the precision",
        sources=("pytorch: torch/amp/grad_scaler.py",),
    ),
    Known(
        id="double-precision",
        title="Double precision was mixed with single precision",
        symptoms=(
            "expected scalar type Float but found Double",
            "expected scalar type Double but found Float",
            "but got Float and Double",
            "but got Double and Float",
            "Found dtype Double but expected Float",
        ),
        cause="NumPy's numbers have 64 bits, and the weights of torch 32",
        fix=".float() on what comes from NumPy, or dtype=numpy.float32 where it is made",
        sources=("https://docs.pytorch.org/docs/stable/tensor_attributes.html",),
    ),
    Known(
        id="mixed-precisions",
        title="Tensors of different precisions were mixed",
        symptoms=(
            "must have the same dtype, but got",
            "expected m1 and m2 to have the same dtype",
            "expected scalar type Half but found",
            "expected scalar type Float but found",
            "expected scalar type BFloat16 but found",
            "Input type (torch.cuda.HalfTensor) and weight type (torch.cuda.FloatTensor)",
            "Input type (torch.cuda.FloatTensor) and weight type (torch.cuda.HalfTensor)",
            "Input type (float) and bias type (c10::Half)",
            "Input type (float) and bias type (c10::BFloat16)",
            "assert len(set(t.dtype for t in tensors)) == 1",
        ),
        cause="A part of the model or the batch is in half precision and the rest is not",
        fix='with torch.autocast("cuda", dtype=torch.bfloat16): around forward and loss, the model itself in fp32',
        sources=("https://docs.pytorch.org/docs/stable/amp.html",),
    ),
    Known(
        id="no-half-precision-here",
        title="An operation does not exist in half precision on this device",
        symptoms=("not implemented for 'Half'",),
        cause="fp16 is made for GPUs, and the model is on the CPU; a few operations exist in fp32 alone",
        fix="seatrial run --gpus 1 …   # on a CPU torch.float32 or torch.bfloat16",
        sources=("huggingface/transformers#18703",),
    ),
    Known(
        id="cudnn-no-algorithm",
        title="cuDNN found no way to compute a convolution",
        symptoms=(
            "Unable to find a valid cuDNN algorithm to run convolution",
            "unable to find an engine to execute this computation",
            "Failed to get convolution algorithm. This is probably because cuDNN failed",
        ),
        cause="As a rule the GPU's free memory is too small; else another cuDNN was found than torch brought",
        fix="halve the batch size; if that changes nothing, look for a second cuDNN: seatrial doctor",
        sources=("pytorch: aten/src/ATen/native/cudnn/Conv_v8.cpp", "replicate/cog#1430"),
    ),
)

VERSIONS = (
    Known(
        id="numpy-name-removed",
        title="The code was written for an older NumPy",
        symptoms=("module 'numpy' has no attribute '{name}'", "was removed in the NumPy 2.0 release"),
        cause="NumPy 1.24 lost bool, int, float and object, which Python has; NumPy 2 lost float_, Inf and product",
        fix="pin numpy<1.24 in requirements.txt (numpy<2 for the second), or write Python's bool, int and float",
        sources=(
            "https://numpy.org/doc/stable/release/1.24.0-notes.html",
            "https://numpy.org/doc/stable/numpy_2_0_migration_guide.html",
        ),
    ),
    Known(
        id="numpy-2-binary",
        title="A package was compiled for another NumPy than the one that is installed",
        symptoms=(
            "numpy.dtype size changed, may indicate binary incompatibility",
            "RuntimeError: Numpy is not available",
            "numpy.core.multiarray failed to import",
        ),
        cause="It was compiled for NumPy 1 and finds NumPy 2; torch knows NumPy 2 from 2.3 on",
        fix="pin numpy<2 in requirements.txt, or take a newer release of the package",
        sources=("pytorch/pytorch#107302", "pytorch/pytorch#132179"),
    ),
    Known(
        id="numpy-2-notice",
        title="A package was compiled for NumPy 1 and finds NumPy 2",
        symptoms=("A module that was compiled using NumPy 1.x cannot be run in",),
        cause="It may go on without NumPy, or fail later: the traceback below it names the package",
        fix="pin numpy<2 in requirements.txt, or take a newer release of that package",
        sources=("pytorch/pytorch#107302",),
        severity="warning",
    ),
    Known(
        id="collections-moved",
        title="The code was written for a Python before 3.10",
        symptoms=("cannot import name '{name}' from 'collections'", "module 'collections' has no attribute '{name}'"),
        cause="Mapping, Iterable and others are in collections.abc alone since Python 3.10",
        fix='in seatrial.toml: [image] base = "python:3.9-slim-bookworm", or from collections.abc import {name}',
        sources=("https://docs.python.org/3/whatsnew/3.10.html#removed",),
    ),
    Known(
        id="torch-lacks-name",
        title="The installed torch has no {name}",
        symptoms=("module 'torch' has no attribute '{name}'",),
        cause="The code was written for another torch, or a file of the project is called torch.py",
        fix="pin in requirements.txt the torch that the code was written for; compile came with 2.0",
        sources=("https://github.com/pytorch/pytorch/releases",),
    ),
    Known(
        id="extension-of-another-torch",
        title="A compiled package belongs to another torch",
        symptoms=(
            "ImportError: … undefined symbol: _ZN2at",
            "ImportError: … undefined symbol: _ZN3c10",
            "ImportError: … undefined symbol: _ZNK3c10",
            "ImportError: … undefined symbol: _ZNK2at",
            "ImportError: … undefined symbol: _ZN5torch",
            "OSError: … undefined symbol: _ZN2at",
            "OSError: … undefined symbol: _ZN3c10",
            "OSError: … undefined symbol: _ZNK3c10",
            "OSError: … undefined symbol: _ZNK2at",
            "OSError: … undefined symbol: _ZN5torch",
        ),
        cause="It calls functions of torch by names that this torch does not have",
        fix="take the package's wheel for this torch, or pin the torch that it was built for",
        sources=("Dao-AILab/flash-attention#919", "Dao-AILab/flash-attention#931"),
    ),
    Known(
        id="torch-library-missing",
        title="A compiled package does not find a library of torch",
        symptoms=tuple(
            "ImportError: %s.so: cannot open shared object" % library
            for library in (
                "libc10",
                "libc10_cuda",
                "libtorch",
                "libtorch_cpu",
                "libtorch_cuda",
                "libtorch_cuda_cu",
                "libtorch_python",
            )
        ),
        cause="It was built for another release of torch, or for CUDA and this torch is a CPU build; or torch was not "
        "imported before it",
        fix="python -c 'import torch; print(torch.__version__)'   # then the package's wheel for this torch and build",
        sources=("open-mmlab/mmsegmentation#911", "state-spaces/mamba#440", "pytorch/pytorch#54827"),
    ),
    Known(
        id="cuda-library-missing",
        title="A compiled package wants the libraries of another CUDA release: {version}",
        symptoms=(
            "ImportError: libcudart.so.{version}: cannot open shared object file",
            "OSError: libcudart.so.{version}: cannot open shared object file",
            "ImportError: libcublas.so.{version}: cannot open shared object file",
            "OSError: libcublas.so.{version}: cannot open shared object file",
        ),
        cause="It was compiled for another CUDA than the one that torch brings",
        fix="take the package's wheel for this CUDA: python -c 'import torch; print(torch.version.cuda)'",
        sources=("Dao-AILab/flash-attention#208",),
    ),
    Known(
        id="cuda-libraries-mixed",
        title="Libraries of two CUDA releases are mixed",
        symptoms=("undefined symbol: __nvJitLink",),
        cause="libcusparse and libnvJitLink belong to different releases: LD_LIBRARY_PATH leads to another CUDA than "
        "torch brought, or pip updated one of the two alone",
        fix="unset LD_LIBRARY_PATH   # and pip install --force-reinstall torch",
        sources=("pytorch/pytorch#111469",),
    ),
    Known(
        id="ninja-missing",
        title="A package compiles itself when it is used, and the image has no ninja",
        symptoms=("Ninja is required to load C++ extensions",),
        cause="torch.utils.cpp_extension builds with ninja, which is a Python package of its own",
        fix='add ninja to requirements.txt; it needs compilers too: [image] flavour = "devel"',
        sources=("pytorch: torch/utils/cpp_extension.py",),
    ),
    Known(
        id="flash-attention-missing",
        title="flash-attn was asked for and is not installed",
        symptoms=("FlashAttention2 has been toggled on, but it cannot be used", "flash_attn seems to be not installed"),
        cause="It is a package of its own, which pip compiles where there is no wheel for this torch",
        fix='attn_implementation="sdpa", which is torch\'s own; or its wheel in requirements.txt',
        sources=("https://huggingface.co/docs/transformers/attention_interface",),
    ),
    Known(
        id="nvcc-architecture",
        title="The image's nvcc does not know the GPU architecture {arch}",
        symptoms=("Unsupported gpu architecture '{arch}'",),
        cause="It is newer than the CUDA toolkit (90 came with 11.8, 100 and 120 with 12.8) or older (35 left with 12, "
        "70 with 13)",
        fix='in seatrial.toml: [image] base = "nvidia/cuda:12.8.1-devel-ubuntu22.04"; an old one: leave it out of '
        "TORCH_CUDA_ARCH_LIST or -gencode",
        sources=("https://docs.nvidia.com/cuda/cuda-toolkit-release-notes/",),
    ),
    Known(
        id="system-too-old",
        title="A library needs a newer system than the image has",
        symptoms=("version 'GLIBC_{version}' not found", "version 'GLIBCXX_{version}' not found"),
        cause="It was compiled on a newer Linux than the base image",
        fix='in seatrial.toml: [image] base = "python:3.11-slim-trixie", or a wheel for older systems',
        sources=("https://peps.python.org/pep-0600/",),
    ),
    Known(
        id="weights-only",
        title="torch.load refused a file that holds more than weights",
        symptoms=("Weights only load failed",),
        cause="Since torch 2.6 it loads weights alone unless it is told otherwise: a pickle can run code",
        fix="torch.load(…, weights_only=False) where you trust the file, or pin torch<2.6",
        sources=("https://docs.pytorch.org/docs/stable/notes/serialization.html",),
    ),
)

DATA = (
    Known(
        id="checkpoint-of-another-model",
        title="The checkpoint does not fit the model",
        symptoms=(
            "Error(s) in loading state_dict for",
            "loaded state dict contains a parameter group that doesn't match",
            "Missing key in checkpoint state_dict",
        ),
        cause="Names or sizes differ; names that begin with module. were saved under DataParallel or DDP",
        fix="take module. off the names, or build the model with the sizes that the checkpoint has",
        sources=("pytorch: torch/nn/modules/module.py",),
    ),
    Known(
        id="batch-of-one",
        title="Batch normalisation got a batch of one",
        symptoms=("Expected more than 1 value per channel when training",),
        cause="The last batch of the epoch, or each GPU's share of a batch, has one example",
        fix="DataLoader(…, drop_last=True), or a larger batch",
        sources=("pytorch: torch/nn/functional.py",),
    ),
    Known(
        id="ragged-batch",
        title="The examples of a batch have different shapes",
        symptoms=(
            "stack expects each tensor to be equal size",
            "you should probably activate truncation and/or padding with",
        ),
        cause="DataLoader stacks them, which takes one shape",
        fix="resize or crop them in the data set, or give DataLoader a collate_fn that pads",
        sources=("https://docs.pytorch.org/docs/stable/data.html#working-with-collate-fn",),
    ),
    Known(
        id="changed-in-place",
        title="A tensor that the backward pass needs was changed in place",
        symptoms=("needed for gradient computation has been modified by an inplace operation",),
        cause="An operation such as x += y or relu_() wrote over a value that a gradient is computed from",
        fix="torch.autograd.set_detect_anomaly(True) names the line; write x = x + y there",
        sources=("https://docs.pytorch.org/docs/stable/notes/autograd.html#in-place-correctness-checks",),
    ),
    Known(
        id="no-display",
        title="The script opens a window, and a container has no display",
        symptoms=(
            "no display name and no $DISPLAY environment variable",
            "could not connect to display",
            "cannot connect to X server",
            "Could not load the Qt platform plugin 'xcb'",
        ),
        cause="Plots and previews want a screen",
        fix="seatrial run --env MPLBACKEND=Agg --env QT_QPA_PLATFORM=offscreen …   # and save pictures to files",
        sources=("https://matplotlib.org/stable/users/explain/figure/backends.html",),
    ),
)

TRAINING = (
    RANKS
    + TRAINING_FABRIC
    + TRAINING_RANKS
    + TRAINING_MPI
    + PRECISION
    + VERSIONS
    + DATA
    + TRAINING_STEP
    + TRAINING_FILES
    + LIBRARIES_AROUND
    + LIBRARIES_VERSIONS
)
