"""Failures of conda and apt to put packages together in an image build."""

from seatrial.findings.known import Known

_CONDA = "https://docs.conda.io/projects/conda/en/stable/user-guide/"

BUILD_CONDA = (
    Known(
        id="conda-wants-a-gpu",
        title="conda takes the machine of the build for one without a GPU",
        symptoms=("nothing provides __cuda", "feature:/linux-64::__cuda"),
        cause="Builds of CUDA want the driver's version, __cuda, and an image build has no driver",
        fix="RUN CONDA_OVERRIDE_CUDA=12.6 conda env create -f environment.yml",
        sources=(_CONDA + "tasks/manage-virtual.html", "nicklashansen/tdmpc2#13"),
    ),
    Known(
        id="conda-conflict",
        title="The packages of the conda environment contradict each other",
        symptoms=("UnsatisfiableError: The following specifications were found", "LibMambaUnsatisfiableError"),
        cause="Two of them need different versions of one package, or builds for another Python or CUDA",
        fix="take the pins off environment.yml but those of python and the framework; pip's packages under pip:",
        sources=("NVIDIA/cuml#135", _CONDA + "tasks/manage-environments.html"),
    ),
    Known(
        id="conda-package-missing",
        title="conda's channels have no such package",
        symptoms=("ResolvePackageNotFound", "PackagesNotFoundError: The following packages"),
        cause="The version, or its build for this system (=py37_0, win-64), is not in the channels, or in none of "
        "those that are named",
        fix="conda search -c conda-forge NAME   # then that version; made elsewhere: conda env export --no-builds",
        sources=("RosettaCommons/RFdiffusion#101", "sbi-dev/sbi#5"),
    ),
    Known(
        id="conda-environment-missing",
        title="There is no conda environment {name}",
        symptoms=(
            "EnvironmentLocationNotFound: Not a conda environment: {name}",
            "EnvironmentNameNotFound: Could not find conda environment: {name}",
        ),
        cause="It was not created, or by another user, or in another installation of conda",
        fix="conda env list   # in a Dockerfile, RUN conda run -n NAME … in place of conda activate",
        sources=("anibali/docker-pytorch#3",),
    ),
    Known(
        id="debian-conflict",
        title="The Debian packages contradict each other",
        symptoms=("you have held broken packages", "The following packages have unmet dependencies"),
        cause="One of them is from another release or source (a PPA, NVIDIA's) than what it needs, or was pinned",
        fix="apt-cache policy NAME   # the version of each source; then: apt-get install NAME=VERSION for all of them",
        sources=("https://wiki.debian.org/DontBreakDebian",),
    ),
    Known(
        id="debian-hash",
        title="apt got another file than the package list says",
        symptoms=("Hash Sum mismatch",),
        cause="The mirror was in the middle of an update, or a proxy keeps old files or changes them",
        fix="{engine} builder prune   # and build again in some minutes; a proxy: Acquire::http::No-Cache true",
        sources=("https://manpages.debian.org/bookworm/apt/apt.conf.5.en.html",),
    ),
)
