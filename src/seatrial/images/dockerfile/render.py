"""Write the Dockerfile's text: pure, deterministic, commented for the person who reviews it.

No ``# syntax=`` line: it would pull a frontend image, and what is used here (secret and bind mounts) is in every
BuildKit since Docker 18.09's default frontend of 20.10 and in Buildah since 1.24.

No step mounts a cache: code of packages runs in steps, and a cache would bring what one project wrote to the next.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

from seatrial.findings.device_code import ARCHITECTURES
from seatrial.images.dockerfile.layer_program import FRAMEWORK_LIST
from seatrial.images.dockerfile.layers import (
    CONSTRAINTS,
    FRAMEWORK,
    LARGE,
    LISTED,
    LOCKED,
    PROGRAM,
    REQUIRED,
    REQUIREMENTS,
    TOOLS,
    ImageContents,
)
from seatrial.images.requirements.pip_format import canonical_name
from seatrial.images.requirements.source_builds import BUILT, debian_packages, wheel_commands
from seatrial.job.in_container import CONTAINER_PROJECT

VENV = "/opt/venv"
VENV_PYTHON = f"{VENV}/bin/python3"

#: torch.compile's C++ back end and Triton's launcher are built at run time, against Python.h.
COMPILER_PACKAGES = ("g++", "libc6-dev")

#: Build secrets: a PEM bundle, and a pip configuration that may hold passwords.
CA_SECRET = "ca_bundle"
PIP_SECRET = "pip_conf"

WHEELS = "wheels"

#: Sources of the project's extensions in the build context, and where the compiled modules are in the image.
EXTENSIONS, EXTENSIONS_AT = "extensions", f"{VENV}/extensions"

#: Python looks there for a module that it found nowhere else: for all of ``pkg.ops.net_cuda``, and for its last name.
_FINDER = (
    f"{EXTENSIONS_AT}\\nimport sys, importlib.machinery; sys.meta_path.append(type('Extensions', (), "
    "{'find_spec': staticmethod(lambda n, p=None, t=None, find=importlib.machinery.PathFinder.find_spec: find(n, "
    f"['{EXTENSIONS_AT}/' + n.rpartition('.')[0].replace('.', '/'), '{EXTENSIONS_AT}']) if p else None)}}))\\n"
)

#: Mount points in steps of the program for layers, a layer's requirements, and another stage's packages. Every Debian
#: and Ubuntu has these folders: for a missing one the builder would leave an empty folder, with the time of the build.
_TOOLS_AT, _FILES_AT, _STAGE_AT = "/mnt", "/media", "/srv"
_TOOLS_MOUNT = f"type=bind,source={TOOLS},target={_TOOLS_AT}"

#: At the end of each step, where the shell reads a comment: by it `runs prune` knows our steps in a build cache.
OURS = "  # seatrial"

_PIP_SETTINGS = (
    "export PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1 PIP_PROGRESS_BAR=off "
    "PIP_ROOT_USER_ACTION=ignore"
)

_BUILD_TOOLS = "/tmp/build-tools.txt"

#: The first ordinary user of Debian and Ubuntu (adduser.conf, FIRST_UID); nothing in the image needs root.
ORDINARY_USER = "1000:1000"
SLIMMER = "slim.pyz"

_LAYER = f"{_TOOLS_AT}/{PROGRAM}"
#: File with the lines of the framework layer that _slim restores, and their hashes.
_WANTED = "/tmp/wanted.txt"

#: Where the Dockerfile in one file writes the requirements.
_LISTS = "/tmp/requirements"

_AUTHORITIES = "/tmp/authorities.pem"
_TRUST = (
    f"certifi=$({VENV_PYTHON} -c 'from pip._vendor import certifi; print(certifi.where())' 2>/dev/null || true)",
    f"for bundle in $certifi /etc/ssl/certs/ca-certificates.crt /run/secrets/{CA_SECRET}; do "
    f"if [ -e $bundle ]; then cat $bundle >> {_AUTHORITIES}; fi; done",
    f"export PIP_CERT={_AUTHORITIES} SSL_CERT_FILE={_AUTHORITIES} GIT_SSL_CAINFO={_AUTHORITIES}",
)
_APT_TRUSTING = f"apt-get -o Acquire::https::CAInfo={_AUTHORITIES}"
_DISTRUST = f"rm {_AUTHORITIES}"


def render(contents: ImageContents) -> str:
    """Return the text of the Dockerfile, with a layer for each group of requirements."""
    head = f"# {contents.slug}: made by seatrial. The project itself is not in here: it is mounted at\n"
    head += f"# {CONTAINER_PROJECT} when it runs, so editing it rebuilds nothing."
    parts = [head, "\n".join(_base(contents))]
    if FRAMEWORK in contents.layers.folders:
        parts.append("\n".join(_framework(contents)))
    if contents.has_builder:
        system = [f"FROM {_below(contents)} AS system", *_shared_with_builder(contents)]
        parts += ["\n".join(system), "\n".join(_builder(contents))]
    parts.append("\n".join(_final(contents)))
    if contents.extensions:
        parts.append("\n".join(_extensions(contents)))
    parts[-1] += "\n" + "\n".join(_finish(contents))
    return "\n\n".join(parts) + "\n"


def render_plain(contents: ImageContents) -> str | None:
    """Return the Dockerfile as one file; None if the image needs what no text holds: wheels, secrets, nvcc, slimming.

    Files are printed: here-documents need a Dockerfile frontend of 1.4 (docs.docker.com/build/buildkit).
    """
    of_base = contents.base.builder or contents.base.toolkit or contents.base.kept
    own = contents.extensions or contents.options.ca_bundle or contents.pip_conf or contents.own_wheel
    if of_base or own or contents.wheels or contents.in_sight:
        return None
    if contents.slimming.arguments and contents.slimming.packages:  # requested; `auto` may as well keep it
        return None
    return "\n".join(_plain_lines(contents)) + "\n"


def _base(contents: ImageContents) -> Iterator[str]:
    yield f"FROM {contents.base.image} AS base"
    yield "# Here, because it makes a folder, and so a layer, with the time of the build."
    yield f"WORKDIR {CONTAINER_PROJECT}"
    if contents.base_packages:
        yield from _debian_packages(contents, sorted(contents.base_packages))
    if contents.base.system_packages:
        yield from _toolkit(contents)
    yield "# Bytecode of the standard library: the official Python images delete it, and no run could write it."
    yield "# layer.py gives everything one time, so that a layer is the same bytes wherever it is built."
    yield f"ARG FILES={contents.digests[TOOLS]}"
    yield f"RUN --mount={_TOOLS_MOUNT} python3 {_LAYER} standard-library || true{OURS}"
    how, keep = "", ""
    if contents.base.kept:
        yield "# The base's own framework stays: packages are installed above it, and none of these is replaced."
        how = " --system-site-packages --without-pip"
        keep = f" && {VENV_PYTHON} {_LAYER} keep {shlex.join(contents.base.kept)}"
    yield f"RUN --mount={_TOOLS_MOUNT} python3 -m venv{how} {VENV}{keep} && {VENV_PYTHON} {_LAYER} finish{OURS}"


def _toolkit(contents: ImageContents) -> Iterator[str]:
    if contents.base.toolkit:
        release = ".".join(contents.base.toolkit.partition(":")[2].split(".")[:2])
        yield "# nvcc and CUDA's headers, from an image that has another Python."
        yield f"COPY --from={contents.base.toolkit} /usr/local/cuda-{release} /usr/local/cuda"
        yield "ENV CUDA_HOME=/usr/local/cuda PATH=/usr/local/cuda/bin:$PATH"


def _framework(contents: ImageContents) -> Iterator[str]:
    yield "# The framework and what it needs of CUDA: one layer for all projects that use this release and build of it."
    yield "FROM base AS framework"
    yield from _install(contents, FRAMEWORK)
    if REQUIRED in contents.layers.folders:
        yield "# What it requires besides. A project that asks for another version of it shares all that is above."
        yield from _install(contents, REQUIRED)


def _shared_with_builder(contents: ImageContents) -> Iterator[str]:
    yield from _of_the_project(contents)
    if LARGE in contents.layers.folders:
        yield "# What is large, apart: adding a small package does not install it again."
        yield from _install(contents, LARGE)
    if LOCKED in contents.layers.folders:
        yield "# All other packages that have a hash."
        yield from _install(contents, LOCKED)


def _of_the_project(contents: ImageContents, also: Sequence[str] = ()) -> Iterator[str]:
    """Write the step with the project's Debian packages, and a compiler if the job compiles at run time."""
    packages = sorted({*contents.system_packages, *also, *(COMPILER_PACKAGES if contents.compiles else ())})
    if packages:
        yield from _debian_packages(contents, packages)


def _debian_packages(contents: ImageContents, packages: list[str], *, headers: bool = False) -> Iterator[str]:
    python_h = ""
    if contents.compiles and not headers:
        yield "# The job compiles when it runs: a C++ compiler, and Python.h where the base's python3 lacks it."
    if contents.compiles or headers:
        include = "$(python3 -c 'import sysconfig; print(sysconfig.get_path(\"include\"))')"
        python_h = f' $(test -e "{include}/Python.h" || echo python3-dev)'
    install = "DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends"
    install += f" {' '.join(packages)}{python_h}"
    yield from _run(contents, ["apt-get update", install, "rm -rf /var/lib/apt/lists/*"])


def _builder(contents: ImageContents) -> Iterator[str]:
    if contents.base.builder is None:
        yield "FROM system AS builder"
        tools = {*debian_packages(contents.builds), *(("build-essential",) if contents.base.toolkit else ())}
        if tools:
            yield "# Compilers of packages without a wheel stay in this stage."
            yield from _debian_packages(contents, sorted(tools), headers=True)
        if not contents.base.system_packages:
            yield from _toolkit(contents)
    else:
        yield "# The compiler and CUDA's headers stay in this stage."
        yield f"FROM {contents.base.builder} AS builder"
        packages = {*contents.base_packages, *contents.system_packages, "build-essential", "python3-dev"}
        yield from _debian_packages(contents, sorted({*packages, *debian_packages(contents.builds)}))
        yield f"COPY --from=system {VENV} {VENV}"
    if contents.git:
        yield "# A requirement comes from a git repository."
        yield from _run(contents, ["apt-get update", "apt-get install -y --no-install-recommends git ca-certificates"])
    yield from _install(contents, LISTED)


def _below(contents: ImageContents) -> str:
    """Return the name of the stage that the project's packages are installed on."""
    return FRAMEWORK if FRAMEWORK in contents.layers.folders else "base"


def _install(contents: ImageContents, folder: str) -> Iterator[str]:
    """Write one layer: pip installs the requirements of one folder of the context above what is there already."""
    by_hash = folder in contents.layers.by_hash
    if digest := contents.sources if by_hash else contents.own_sources:
        yield "# Digest of the package sources, which are build secrets: other sources make other layers."
        yield f"ARG PACKAGE_SOURCES={digest}"
    if contents.wheels:
        yield f"ARG WHEELS={contents.wheels}"
    yield "# Digest of the requirements below."
    yield f"ARG FILES={contents.digests[folder]}"
    commands = [_PIP_SETTINGS]
    if contents.pip_conf:
        commands.append(f"export PIP_CONFIG_FILE=/run/secrets/{PIP_SECRET}")
    flags = [f"-c {_FILES_AT}/{CONSTRAINTS}"] if contents.layers.folders[folder].constraints else []
    below = FRAMEWORK in contents.layers.folders or contents.base.kept
    if folder == LISTED and below and not contents.layers.hashed:
        yield "# The framework stays as it is below: what contradicts it is an error of pip's."
        flags.append(f"-c {FRAMEWORK_LIST}")
    sources = ["--find-links", f"/build/{WHEELS}"] if contents.wheels else []
    also = contents.resolved.index if not by_hash or FRAMEWORK in contents.layers.by_hash else None
    if also and (contents.resolved.index_needed or FRAMEWORK in contents.layers.by_hash):
        yield "# The build for the target's driver and GPU is on PyTorch's own index."
        sources.append(f"--extra-index-url {also}")
    elif also:
        yield "# No GPU: the CPU build of torch. A base whose pip names an index or find-links keeps to those."
        names_one = f"{VENV_PYTHON} -m pip config list | grep -E 'index-url|find-links' > /dev/null"
        commands.append(f"index=$({names_one} || echo --extra-index-url {also})")
        sources.append("$index")
    own_tools = folder == LISTED and contents.unread and not contents.layers.hashed
    if own_tools:  # pip before 25.3 gives the first variable to such builds as well
        yield "# Old source packages import pkg_resources, which setuptools 82 removed."
        commands.append(f"echo 'setuptools<82' > {_BUILD_TOOLS}")
        commands.append(f"export PIP_CONSTRAINT={_BUILD_TOOLS} PIP_BUILD_CONSTRAINT={_BUILD_TOOLS}")
    install = " ".join([f"{VENV_PYTHON} -m pip install --no-compile", *sources])
    if by_hash:
        flags.append("--no-deps --require-hashes --only-binary :all:")
    if folder == LISTED and contents.in_sight:
        yield "# Wheels are built first, against the packages of the layers below."
        commands += _wheels(contents, sources, flags)
        flags.append(f"{BUILT}/*.whl")
    commands.append(" ".join([install, "-r", f"{_FILES_AT}/{REQUIREMENTS}", *flags]))
    if folder == FRAMEWORK and not by_hash:
        yield "# What it requires besides goes again: that is the next layer."
        commands.append(f"others=$({VENV_PYTHON} {_LAYER} others)")
        commands.append(f'{{ [ -z "$others" ] || {VENV_PYTHON} -m pip uninstall -q -y $others; }}')
    if folder == FRAMEWORK:
        commands.append(f"{VENV_PYTHON} {_LAYER} freeze")
    if contents.slimming.arguments:
        yield "# image.slim; what each level saves: seatrial build --explain"
        commands += _slim(contents, folder, install)
    commands += [f"rm {_BUILD_TOOLS}"] * own_tools
    commands.append(f"{VENV_PYTHON} {_LAYER} finish")
    yield from _run(contents, commands, _mounts(contents, folder))


def _wheels(contents: ImageContents, sources: list[str], flags: list[str]) -> Iterator[str]:
    below = (contents.layers.folders[folder].lines for folder in contents.layers.by_hash)
    installed = {canonical_name(line) for lines in below for line in lines}
    own = (shlex.join(shlex.split(each)) for each in contents.layers.folders[LISTED].options)
    pip, options = f"{VENV_PYTHON} -m pip", " ".join([*sources, *flags, *own])
    if FRAMEWORK in contents.layers.folders and FRAMEWORK not in contents.layers.by_hash:  # with its requirements
        lines = shlex.join(contents.layers.folders[FRAMEWORK].lines)
        yield " ".join(filter(None, (f"{pip} install --no-compile", options, lines)))
    yield from wheel_commands(contents.builds, pip, options, contents.resolved.stack, contents.architectures, installed)


def _mounts(contents: ImageContents, folder: str) -> list[str]:
    mounts = [_TOOLS_MOUNT, f"type=bind,source={folder},target={_FILES_AT}"]
    if "--unused" in contents.slimming.arguments and folder != FRAMEWORK and FRAMEWORK in contents.layers.by_hash:
        mounts.append(f"type=bind,source={FRAMEWORK},target={_STAGE_AT}")
    if contents.pip_conf:
        mounts.append(f"type=secret,id={PIP_SECRET}")
    if contents.wheels:
        mounts.append(f"type=bind,source={WHEELS},target=/build/{WHEELS}")
    return mounts


def _slim(contents: ImageContents, folder: str, install: str) -> list[str]:
    """Return commands that slim this layer; above the framework's, they first restore what a package needs of it."""
    slimmer = f"{VENV_PYTHON} {_FILES_AT}/{SLIMMER} --root {VENV} {' '.join(contents.slimming.arguments)}"
    if folder == FRAMEWORK:
        return [f"{slimmer} --keep-metadata"]
    commands, again = [], f"{install} --no-deps --force-reinstall"
    if FRAMEWORK in contents.layers.by_hash:
        lines = f'for each in $wanted; do grep "^$each " {_STAGE_AT}/{REQUIREMENTS} || exit 1; done'
        again = f"{{ {lines} > {_WANTED} && {again} --require-hashes -r {_WANTED} && rm {_WANTED}; }}"
    else:
        again += " $wanted"
    if "--unused" in contents.slimming.arguments and FRAMEWORK in contents.layers.folders:
        commands += [f"wanted=$({slimmer} --wanted)", f'{{ [ -z "$wanted" ] || {again}; }}']
    if not contents.slimming.packages:
        return commands
    last = "" if folder == list(contents.layers.folders)[-1] else " --keep-metadata"
    return [*commands, f"{slimmer} --above {FRAMEWORK_LIST}{last}"]


def _final(contents: ImageContents) -> Iterator[str]:
    stage = " AS packages" if contents.extensions else ""
    yield f"FROM {'system' if contents.has_builder else _below(contents)}{stage}"
    if not contents.has_builder:
        yield from _shared_with_builder(contents)
    if contents.has_builder:
        yield "# What the packages add to the layers below."
        yield f"ARG FILES={contents.digests[LISTED]}"
        mounts = [_TOOLS_MOUNT, f"type=bind,from=builder,source={VENV},target={_STAGE_AT}"]
        yield f"RUN --mount={mounts[0]} \\\n    --mount={mounts[1]} \\\n    python3 {_LAYER} mirror {_STAGE_AT}{OURS}"
    elif LISTED in contents.layers.folders:
        yield "# All that the project asks for."
        yield from _install(contents, LISTED)


def _extensions(contents: ImageContents) -> Iterator[str]:
    """Write the stage that compiles the project's own modules, and a last one that gets them in their own folder."""
    yield "# The project's extensions. Compilers stay in this stage."
    yield f"FROM {contents.base.builder or 'packages'} AS extensions"
    packages = {*contents.base_packages, *contents.system_packages} if contents.base.builder else set()
    yield from _debian_packages(contents, sorted({"build-essential", *packages}), headers=True)
    if contents.base.builder:
        yield f"COPY --from=packages {VENV} {VENV}"
    elif not contents.base.system_packages:
        yield from _toolkit(contents)
    yield f"ARG FILES={contents.digests[EXTENSIONS]}"
    yield f"COPY {EXTENSIONS}/ /build/"
    tools, *commands = contents.extensions
    conf = [f"export PIP_CONFIG_FILE=/run/secrets/{PIP_SECRET}"] if contents.pip_conf else []
    yield from _run(contents, [_PIP_SETTINGS, *conf, tools], [f"type=secret,id={PIP_SECRET}"] if conf else [])
    yield from _run(contents, [f"mkdir -p {EXTENSIONS_AT}", *commands])
    yield ""
    yield "FROM packages"
    yield f"COPY --from=extensions {EXTENSIONS_AT} {EXTENSIONS_AT}"
    write = f"printf \"{_FINDER}\" > $({VENV_PYTHON} -c 'import site; print(site.getsitepackages()[0])')/extensions.pth"
    yield f"RUN {write}{OURS}"


def _finish(contents: ImageContents) -> Iterator[str]:
    """Write the end of every image: environment, user, labels."""
    yield "# Bytecode is there already; a run leaves no __pycache__ in the project, and its output is not held back."
    yield f"ENV PATH={VENV}/bin:$PATH VIRTUAL_ENV={VENV} PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1"
    stack = contents.resolved.stack
    if stack.wheel and stack.wheel.unlinked and not stack.cpu:
        yield "# This build of the framework does not search the folders of its CUDA libraries."
        packages = f"{VENV}/lib/python{stack.python}/site-packages/nvidia"
        yield f"ENV LD_LIBRARY_PATH={':'.join(f'{packages}/{name}/lib' for name in stack.wheel.unlinked)}"
    if contents.slimming.architectures:
        yield "# Device code for other GPUs is not in here: the agent reads this and refuses them by name."
        yield f'ENV {ARCHITECTURES}="{" ".join(contents.slimming.architectures)}"'
    yield 'CMD ["python3"]'
    if contents.own_wheel:
        yield "# The recipes and the training library of seatrial: a small layer above their requirements."
        yield f"COPY {contents.own_wheel} /opt/seatrial/"
        yield f"RUN {VENV_PYTHON} -m pip install --no-deps --no-index /opt/seatrial/{contents.own_wheel}"
    yield "# An ordinary user where nobody says otherwise. `seatrial run` says: the caller, who owns the outputs then."
    yield f"USER {ORDINARY_USER}"
    yield "# Last, so that projects with equal packages share every layer."
    yield f'LABEL org.opencontainers.image.title="{contents.slug}" \\'
    yield f'      org.opencontainers.image.base.name="{contents.base.image}" \\'
    labels = {"seatrial.built": "true"}
    labels |= {f"seatrial.stack.{name}": value for name, value in stack.facts.items()}
    if contents.slimming.architectures:
        labels["seatrial.architectures"] = " ".join(contents.slimming.architectures)
    yield " \\\n".join(f'      {name}="{value}"' for name, value in sorted(labels.items()))


def _run(contents: ImageContents, commands: list[str], mounts: Sequence[str] = ()) -> Iterator[str]:
    """Write one RUN, a command a line; ``ca_bundle`` is trusted for this step alone."""
    if contents.options.ca_bundle:
        yield "# Trusted in this step alone: pip's own authorities, the system's, and the extra ones."
        mounts = (*mounts, f"type=secret,id={CA_SECRET}")
        commands = [*_TRUST, *(command.replace("apt-get ", f"{_APT_TRUSTING} ") for command in commands), _DISTRUST]
    flags = "".join(f"--mount={mount} \\\n    " for mount in mounts)
    yield f"RUN {flags}" + " && \\\n    ".join(commands) + OURS


def _plain_lines(contents: ImageContents) -> Iterator[str]:
    lines, constraints = contents.resolved.requirements.lines, contents.resolved.requirements.constraints
    yield f"# {contents.slug}: made by seatrial. The project is mounted at {CONTAINER_PROJECT} when it runs."
    yield f"FROM {contents.base.image}"
    yield f"WORKDIR {CONTAINER_PROJECT}"
    git = ("git", "ca-certificates") if contents.git else ()
    yield from _of_the_project(contents, (*contents.base_packages, *git, *debian_packages(contents.builds)))
    yield f"RUN python3 -m venv {VENV}"
    if lines:
        files = {"requirements.txt": lines, "constraints.txt": constraints}
        quoted = {name: " ".join(map(shlex.quote, text)) for name, text in files.items() if text}
        commands = [f"printf '%s\\n' {words} > {_LISTS}/{name}" for name, words in quoted.items()]
        flags = [f"--extra-index-url {contents.resolved.index}"] if contents.resolved.index else []
        flags += [f"-r {_LISTS}/requirements.txt"] + ([f"-c {_LISTS}/constraints.txt"] if constraints else [])
        install = f"{VENV_PYTHON} -m pip install --no-cache-dir {' '.join(flags)}"
        yield "RUN " + " && \\\n    ".join([f"mkdir -p {_LISTS}", *commands, install, f"rm -r {_LISTS}"])
    yield from _finish(contents)
