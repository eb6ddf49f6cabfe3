"""The Dockerfile's text: pure, deterministic, commented for the person who reviews it.

No ``# syntax=`` line: it would pull a frontend image, and what is used here (cache, secret and bind mounts) is in
every BuildKit since Docker 18.09's default frontend of 20.10 and in Buildah since 1.24.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from seatrial.findings.cut_down import ARCHITECTURES
from seatrial.job.plan import CONTAINER_PROJECT

VENV = "/opt/venv"
VENV_PYTHON = f"{VENV}/bin/python3"

#: torch.compile's C++ back end and Triton's launcher are built at run time, against Python.h.
COMPILER_PACKAGES = ("g++", "libc6-dev")

#: Build secrets: a PEM bundle, and a pip configuration that may hold passwords.
CA_SECRET = "ca_bundle"
PIP_SECRET = "pip_conf"

REQUIREMENTS = "requirements.txt"
CONSTRAINTS = "constraints.txt"
WHEELS = "wheels"

#: The first ordinary user of Debian and Ubuntu (adduser.conf, FIRST_UID); nothing in the image needs root.
ORDINARY_USER = "1000:1000"
SLIMMER = "slim.pyz"

#: Worth 0.7 s of each `import torch` (1.6 → 2.3 s without it on 2 cores, Python 3.11, torch 2.13.0+cpu; 14 MB).
#: A file that does not compile is no reason to stop.
_COMPILE_STANDARD_LIBRARY = (
    "RUN python3 -m compileall -q -j 0 -x '(site|dist)-packages|/tests?/' "
    "$(python3 -c 'import sysconfig; print(sysconfig.get_path(\"stdlib\"))') || true"
)

_AUTHORITIES = "/tmp/authorities.pem"
_TRUST = (
    f"certifi=$({VENV_PYTHON} -c 'from pip._vendor import certifi; print(certifi.where())' 2>/dev/null || true)",
    f"for bundle in $certifi /etc/ssl/certs/ca-certificates.crt /run/secrets/{CA_SECRET}; do "
    f"if [ -e $bundle ]; then cat $bundle >> {_AUTHORITIES}; fi; done",
    f"export PIP_CERT={_AUTHORITIES} SSL_CERT_FILE={_AUTHORITIES} GIT_SSL_CAINFO={_AUTHORITIES}",
)
_APT_TRUSTING = f"apt-get -o Acquire::https::CAInfo={_AUTHORITIES}"
_DISTRUST = f"rm {_AUTHORITIES}"


@dataclass(frozen=True)
class ImageContents:
    """Everything the text depends on.

    Attributes:
        slug: name for people, in the title label.
        system_packages: Debian packages.
        compiles: the job compiles at run time.
        requirements, constraints: there is such a file in the build context, and it is not empty.
        git: a requirement comes from a git repository.
        builder: image of the builder stage, where that needs more than the base has, or None.
        index: package index to look at as well, or None. index_needed: the requirements name a build that only it
            has; otherwise a base whose pip names its own sources keeps to those.
        ca_bundle, pip_conf: these build secrets are given.
        wheels: there is a folder of wheels in the build context.
        sources: digest of index and find-links, so that other sources make other layers; None without any.
        own_wheel: file name of our wheel in the build context, or None.
        slimming: arguments of the slimming program, () for none. architectures: compute capabilities left, () for all.
        labels: further labels.
    """

    slug: str
    base: str
    system_packages: tuple[str, ...] = ()
    compiles: bool = False
    requirements: bool = True
    constraints: bool = False
    git: bool = False
    builder: str | None = None
    index: str | None = None
    index_needed: bool = False
    ca_bundle: bool = False
    pip_conf: bool = False
    wheels: bool = False
    sources: str | None = None
    own_wheel: str | None = None
    slimming: tuple[str, ...] = ()
    architectures: tuple[str, ...] = ()
    labels: dict[str, str] = field(default_factory=dict)


def render(contents: ImageContents) -> str:
    """The Dockerfile."""
    parts = [
        f"# {contents.slug}: made by seatrial. The project itself is not in here: it is mounted at\n"
        f"# {CONTAINER_PROJECT} when it runs, so editing it rebuilds nothing.",
        "\n".join(_base(contents)),
        "\n".join(_builder(contents)),
        "\n".join(_final(contents)),
    ]
    return "\n\n".join(parts) + "\n"


def _base(contents: ImageContents) -> Iterator[str]:
    yield f"FROM {contents.base} AS base"
    packages = sorted({*contents.system_packages, *(COMPILER_PACKAGES if contents.compiles else ())})
    if packages:
        yield from _debian_packages(contents, packages)
    yield "# Bytecode of the standard library: the official Python images delete it, and no run could write it."
    yield _COMPILE_STANDARD_LIBRARY


def _debian_packages(contents: ImageContents, packages: list[str]) -> Iterator[str]:
    headers = ""
    if contents.compiles:
        yield "# The job compiles when it runs: a C++ compiler, and Python.h where the base's python3 lacks it."
        headers = (
            ' $(test -e "$(python3 -c \'import sysconfig; print(sysconfig.get_path("include"))\')/Python.h"'
            " || echo python3-dev)"
        )
    yield from _run(
        contents,
        [
            "apt-get update",
            f"DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends {' '.join(packages)}{headers}",
            "rm -rf /var/lib/apt/lists/*",
        ],
    )


def _builder(contents: ImageContents) -> Iterator[str]:
    if contents.builder is None:
        yield "FROM base AS builder"
    else:
        yield "# The compiler and CUDA's headers stay in this stage."
        yield f"FROM {contents.builder} AS builder"
        yield from _debian_packages(contents, sorted({*contents.system_packages, "build-essential", "python3-dev"}))
    if contents.git:
        yield "# A requirement comes from a git repository."
        yield from _run(contents, ["apt-get update", "apt-get install -y --no-install-recommends git ca-certificates"])
    yield f"RUN python3 -m venv {VENV}"
    yield "ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1 PIP_PROGRESS_BAR=off PIP_ROOT_USER_ACTION=ignore"
    if contents.sources:
        yield "# Digest of the package sources, which are build secrets: other sources make other layers."
        yield f"ARG PACKAGE_SOURCES={contents.sources}"
    if contents.requirements:
        files = f"{REQUIREMENTS} {CONSTRAINTS}" if contents.constraints else REQUIREMENTS
        yield f"COPY {files} /build/"
        yield "# pip compiles the bytecode here, once: programs start fast. Its cache is the builder's, in no layer."
        yield from _pip_install(contents)
    if contents.slimming:
        yield "# image.slim asks for it; docs/images.md says what each level leaves out, and what to read first."
        arguments = " ".join(contents.slimming)
        yield f"RUN --mount=type=bind,source={SLIMMER},target=/build/{SLIMMER} \\"
        yield f"    {VENV_PYTHON} /build/{SLIMMER} --root {VENV} {arguments}"


def _pip_install(contents: ImageContents) -> Iterator[str]:
    commands = []
    flags = ["-r", f"/build/{REQUIREMENTS}"]
    if contents.constraints:
        flags += ["-c", f"/build/{CONSTRAINTS}"]
    if contents.wheels:
        flags += ["--find-links", f"/build/{WHEELS}"]
    if contents.index and contents.index_needed:
        yield "# The build for the target's driver and GPU is on PyTorch's own index."
        flags.append(f"--extra-index-url {contents.index}")
    elif contents.index:
        yield "# No GPU: the CPU build of torch. A base whose pip names an index or find-links keeps to those."
        commands.append(
            f"index=$({VENV_PYTHON} -m pip config list | grep -E 'index-url|find-links' > /dev/null"
            f" || echo --extra-index-url {contents.index})"
        )
        flags.append("$index")
    commands.append(f"{VENV_PYTHON} -m pip install {' '.join(flags)}")
    mounts = ["type=cache,target=/root/.cache/pip"]
    if contents.pip_conf:
        mounts.append(f"type=secret,id={PIP_SECRET}")
        commands.insert(0, f"export PIP_CONFIG_FILE=/run/secrets/{PIP_SECRET}")
    if contents.wheels:
        mounts.append(f"type=bind,source={WHEELS},target=/build/{WHEELS}")
    yield from _run(contents, commands, mounts)


def _final(contents: ImageContents) -> Iterator[str]:
    yield "FROM base"
    yield f"COPY --from=builder {VENV} {VENV}"
    yield "# Bytecode is there already; a run leaves no __pycache__ in the project, and its output is not held back."
    yield f"ENV PATH={VENV}/bin:$PATH VIRTUAL_ENV={VENV} PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1"
    if contents.architectures:
        yield "# Device code for other GPUs is not in here: the agent reads this and refuses them by name."
        yield f'ENV {ARCHITECTURES}="{" ".join(contents.architectures)}"'
    yield f"WORKDIR {CONTAINER_PROJECT}"
    yield 'CMD ["python3"]'
    if contents.own_wheel:
        yield "# The recipes and the training library of seatrial: a small layer above their requirements."
        yield f"COPY {contents.own_wheel} /opt/seatrial/"
        yield f"RUN {VENV_PYTHON} -m pip install --no-deps --no-index /opt/seatrial/{contents.own_wheel}"
    yield "# An ordinary user where nobody says otherwise. `seatrial run` says: the caller, who owns the outputs then."
    yield f"USER {ORDINARY_USER}"
    yield "# Last, so that projects with equal packages share every layer."
    yield f'LABEL org.opencontainers.image.title="{contents.slug}" \\'
    yield f'      org.opencontainers.image.base.name="{contents.base}" \\'
    labels = {"seatrial.built": "true", **contents.labels}
    lines = [f'      {name}="{value}"' for name, value in sorted(labels.items())]
    yield " \\\n".join(lines)


def _run(contents: ImageContents, commands: list[str], mounts: Sequence[str] = ()) -> Iterator[str]:
    """One RUN, a command a line; with ``ca_bundle``, inside a frame that trusts it for this step alone."""
    if contents.ca_bundle:
        yield "# Trusted in this step alone: pip's own authorities, the system's, and the extra ones."
        mounts = (*mounts, f"type=secret,id={CA_SECRET}")
        commands = [*_TRUST, *(command.replace("apt-get ", f"{_APT_TRUSTING} ") for command in commands), _DISTRUST]
    flags = "".join(f"--mount={mount} \\\n    " for mount in mounts)
    yield f"RUN {flags}" + " && \\\n    ".join(commands)
