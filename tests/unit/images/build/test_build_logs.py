"""Logs of failed builds as engines, pip, uv, apt and git print them: the first real cause is named, and its fix."""

# Logs stand here as they are printed: their lines are long.
# ruff: noqa: E501

from __future__ import annotations

from io import BytesIO

import pytest

from seatrial.doctor.explain import explain_stream
from seatrial.errors import ImageError
from seatrial.images.build.failure import explain
from seatrial.job.plan import ImagePlan

IMAGE = ImagePlan(tag="seatrial/demo:0123456789ab", build=True, base="python:3.11-slim-bookworm")
PIP = "RUN /opt/venv/bin/python3 -m pip install -r requirements.txt"

#: pip's frame around the error of a package's setup.
FRAME = """\
error: subprocess-exited-with-error

× {what} did not run successfully.
│ exit code: 1
╰─> [14 lines of output]
{inner}
      [end of output]

note: This error originates from a subprocess, and is likely not a problem with pip.
error: metadata-generation-failed

× Encountered error while generating package metadata.
╰─> See above for output.
"""
WHEEL_END = """\
ERROR: Failed building wheel for {name}
Failed to build {name}
ERROR: Could not build wheels for {name}, which is required to install pyproject.toml-based projects
"""


def framed(inner: str, what: str = "python setup.py egg_info") -> str:
    return FRAME.format(what=what, inner="\n".join("      " + line for line in inner.splitlines()))


#: What the step prints → (its command, the cause in the message, the fix).
CASES: dict[str, tuple[str, str, str, str]] = {
    "git clone, no DNS": (
        PIP,
        "Collecting clip@ git+https://github.com/openai/CLIP.git\n  Cloning https://github.com/openai/CLIP.git to /tmp/pip-1\n"
        "  Running command git clone --filter=blob:none --quiet https://github.com/openai/CLIP.git /tmp/pip-1\n"
        "  fatal: unable to access 'https://github.com/openai/CLIP.git/': Could not resolve host: github.com\n"
        "error: subprocess-exited-with-error\n\n× git clone --filter=blob:none --quiet did not run successfully.\n"
        "│ exit code: 128\n╰─> See above for output.\n",
        "cannot find the server github.com", "build_network"),
    "no git": (PIP, "Collecting git+https://x/y\nERROR: Error [Errno 2] No such file or directory: 'git' while executing\n"
               "ERROR: Cannot find command 'git' - do you have 'git' installed and in your PATH?\n", "git", '"git"'),
    "no compiler": (PIP, "building 'a._b' extension\n      error: command 'gcc' failed: No such file or directory\n"
                    + WHEEL_END.format(name="pycocotools"), "no C compiler (needed by pycocotools)", "build-essential"),
    "Python.h": (PIP, "      a.c:4:10: fatal error: Python.h: No such file or directory\n      compilation terminated.\n"
                 "      error: command '/usr/bin/gcc' failed with exit code 1\n" + WHEEL_END.format(name="a"),
                 "no header files of Python", "python3-dev"),
    "a library's header": (PIP, "      p.c:2:10: fatal error: portaudio.h: No such file or directory\n"
                           "      error: command '/usr/bin/gcc' failed with exit code 1\n" + WHEEL_END.format(name="pyaudio"),
                           "portaudio.h", "keywords=portaudio.h"),
    "no nvcc": (PIP, framed("Traceback (most recent call last):\n  raise EnvironmentError('CUDA_HOME environment variable is "
                "not set. Please set it to your CUDA install root.')\nOSError: CUDA_HOME environment variable is not set."),
                "no nvcc", 'flavour = "devel"'),
    "torch at build time": (PIP, framed("Traceback (most recent call last):\n  File \"setup.py\", line 9\n"
                            "ModuleNotFoundError: No module named 'torch'"), "looks for torch while it is built", "wheel"),
    "no such package": (PIP, "ERROR: Could not find a version that satisfies the requirement torhc (from versions: none)\n"
                        "ERROR: No matching distribution found for torhc\n", "no torhc", "pip index versions torhc"),
    "requires-python": (PIP, "ERROR: Package 'networkx' requires a different Python: 3.8.10 not in '>=3.9'\n",
                        "another Python than the image has: networkx", "python ="),
    "left out for Python": (
        PIP, "ERROR: Ignored the following versions that require a different python version: 1.17.4 Requires-Python "
        ">=3.5,<3.9; 1.21.2 Requires-Python >=3.7,<3.11\nERROR: Could not find a version that satisfies the requirement "
        "numpy==1.21.2 (from versions: 1.3.0, 2.4.6)\nERROR: No matching distribution found for numpy==1.21.2\n",
        "another Python than the image has: numpy==1.21.2", "python ="),
    "hashes": (PIP, "ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE. If you have updated the "
               "package versions, please update the hashes.\n    six==1.16 from https://x:\n", "hash", "generate-hashes"),
    "pip, no DNS": (
        PIP, "".join(
            f"WARNING: Retrying (Retry(total={n}, connect=None)) after connection broken by 'NewConnectionError("
            "'<HTTPSConnection>: Failed to establish a new connection: [Errno -3] Temporary failure in name resolution')"
            "': /simple/six/\n" for n in (4, 3, 2, 1, 0)) +
        "ERROR: Could not find a version that satisfies the requirement six (from versions: none)\n"
        "ERROR: No matching distribution found for six\n", "cannot reach the package index", "build_network"),
    "a retry that worked": (
        PIP, "WARNING: Retrying (Retry(total=4)) after connection broken by 'ReadTimeoutError()': /simple/a/\n"
        "Collecting a\n      error: command 'gcc' failed: No such file or directory\n" + WHEEL_END.format(name="a"),
        "no C compiler", "build-essential"),
    "git's certificate": (PIP, "  fatal: unable to access 'https://git.corp/x/': SSL certificate problem: unable to get local "
                          "issuer certificate\nerror: subprocess-exited-with-error\n", "certificate of git.corp", "ca_bundle"),
    "pip's certificate": (PIP, "WARNING: Retrying (Retry(total=0)) after connection broken by 'SSLError(SSLCertVerificationError"
                          "(1, '[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed'))': /simple/six/\nERROR: Could not "
                          "find a version that satisfies the requirement six (from versions: none)\n",
                          "certificate is not trusted", "ca_bundle"),
    "proxy 407": (PIP, "WARNING: Retrying (Retry(total=0)) after connection broken by 'ProxyError('Cannot connect to proxy.', "
                  "OSError('Tunnel connection failed: 407 Proxy Authentication Required'))': /simple/six/\nERROR: No matching "
                  "distribution found for six\n", "wants a login", "HTTPS_PROXY"),
    "index 403": (PIP, "ERROR: HTTP error 403 while getting https://pypi.corp/simple/a/a-1.whl\nERROR: 403 Client Error: "
                  "Forbidden for url: https://pypi.corp/simple/a/a-1.whl\n", "denied access", "index_url"),
    "index 404": (PIP, "ERROR: HTTP error 404 while getting https://x.org/a-1.whl\nERROR: Could not install requirement a\n",
                  "nothing at https://x.org/a-1.whl", "curl -I https://x.org/a-1.whl"),
    "index 429": (PIP, "ERROR: 429 Client Error: Too Many Requests for url: https://pypi.org/simple/six/\n",
                  "too many requests", "mirror"),
    "disk": (PIP, "Downloading torch-2.6.0.whl (766.7 MB)\nERROR: Could not install packages due to an OSError: [Errno 28] No "
             "space left on device\n", "a disk is full", "docker system df"),
    "apt 404": ("RUN apt-get install -y ffmpeg", "Err:1 http://deb.debian.org/debian bookworm/main amd64 libssl3 amd64 3.0.9-1\n"
                "  404  Not Found [IP: 151.101.2.132 80]\nE: Failed to fetch http://deb.debian.org/x.deb  404  Not Found [IP: "
                "151.101.2.132 80]\nE: Unable to fetch some archives, maybe run apt-get update or try with --fix-missing?\n",
                "not on the server any more", "builder prune"),
    "apt, an old release": ("RUN apt-get update", "Err:2 http://deb.debian.org/debian buster Release\n  404  Not Found [IP: 1.2 80]"
                            "\nE: The repository 'http://deb.debian.org/debian buster Release' does not have a Release file.\n",
                            "any more", ""),
    "apt and the clock": ("RUN apt-get update", "E: Release file for http://deb.debian.org/debian/dists/bookworm-updates/"
                          "InRelease is not valid yet (invalid for another 3h 12min 4s). Updates for this repository will not "
                          "be applied.\n", "clock", "timedatectl"),
    "apt's signature": ("RUN apt-get update", "W: GPG error: http://deb.debian.org bookworm InRelease: At least one invalid "
                        "signature was encountered.\nE: The repository 'http://deb.debian.org/debian bookworm InRelease' is not "
                        "signed.\n", "signature", "docker pull"),
    "apt, no DNS": ("RUN apt-get update && apt-get install -y git", "W: Failed to fetch http://deb.debian.org/debian/dists/"
                    "bookworm/InRelease  Temporary failure resolving 'deb.debian.org'\nW: Some index files failed to download."
                    "\nE: Unable to locate package git\n", "cannot reach", "build_network"),
    "not root": ("RUN apt-get update", "E: Could not open lock file /var/lib/apt/lists/lock - open (13: Permission denied)\n"
                 "E: Unable to lock directory /var/lib/apt/lists/\n", "may not install", "base ="),
    "killed": (PIP, "      c++: fatal error: Killed signal terminated program cc1plus\n      compilation terminated.\n"
               + WHEEL_END.format(name="flash_attn"), "out of memory", "free -h"),
    "timeout": (PIP, "pip._vendor.urllib3.exceptions.ReadTimeoutError: HTTPSConnectionPool(host='files.pythonhosted.org', "
                "port=443): Read timed out.\n", "", "index_url of a mirror"),
    "pkg_resources": (PIP, framed("Traceback (most recent call last):\nModuleNotFoundError: No module named 'pkg_resources'"),
                      "pkg_resources", "setuptools"),
    "distutils": (PIP, framed("ModuleNotFoundError: No module named 'distutils'"), "distutils", 'python = "3.11"'),
    "ImpImporter": (PIP, framed("AttributeError: module 'pkgutil' has no attribute 'ImpImporter'. Did you mean: 'zipimporter'?"),
                    "distutils", 'python = "3.11"'),
    "cython": (PIP, framed("ModuleNotFoundError: No module named 'Cython'"), "the module Cython while it is built", "wheel"),
    "sklearn": (PIP, framed("The 'sklearn' PyPI package is deprecated, use 'scikit-learn'\nrather than 'sklearn' for pip"),
                "sklearn", "scikit-learn in place of sklearn"),
    "rust": (PIP, "      error: can't find Rust compiler\n" + WHEEL_END.format(name="tokenizers"), "Rust", "wheel"),
    "cmake": (PIP, framed("RuntimeError: CMake must be installed to build dlib"), "CMake", '"cmake"'),
    "conflict": (PIP, "ERROR: Cannot install a==1 and b==2 because these package versions have conflicting dependencies.\n\n"
                 "The conflict is caused by:\n    a 1 depends on numpy<2\n    b 2 depends on numpy>=2\n\nERROR: "
                 "ResolutionImpossible: for help visit https://pip.pypa.io/\n", "a 1 depends on numpy<2; b 2", "relax"),
    "metadata, cause unknown": (PIP, framed("KeyError: '__version__'"), "its setup ended with an error", "pip download"),
    "read-only": (PIP, "ERROR: Could not install packages due to an OSError: [Errno 30] Read-only file system: '/opt/venv'\n",
                  "", "dmesg"),
    "git login": (PIP, "  git@github.com: Permission denied (publickey).\n  fatal: Could not read from remote repository.\n"
                  "error: subprocess-exited-with-error\n", "needs a login", "git ls-remote"),
    "another processor": ("RUN python3 -m venv /opt/venv", "exec /bin/sh: exec format error\n", "processor", "--platform"),
}  # fmt: skip


def buildkit(command: str, output: str) -> list[str]:
    """Plain progress: another step that goes well beside it, its number and seconds, and the summary in the end."""
    lines = ["#5 [base 1/2] FROM docker.io/library/python:3.11-slim-bookworm", "#5 DONE 0.1s", f"#12 [builder 3/7] {command}",
             "#11 0.1 E: Unable to locate package from-another-step", "#11 0.2 debconf: delaying package configuration"]  # fmt: skip
    printed = output.rstrip("\n").splitlines()
    lines += [f"#12 {1 + at / 1000:.3f} {line}" for at, line in enumerate(printed)]
    lines += [
        "#11 CANCELED",
        f'#12 ERROR: process "/bin/sh -c {command[4:]}" did not complete successfully: exit code: 1',
    ]
    lines += ["------", f" > [builder 3/7] {command}:", *(f"{1.2:.3f} {line}" for line in printed[-10:]), "------",
              "Dockerfile:12", "--------------------", f"  12 | >>> {command}", "--------------------",
              f'ERROR: failed to build: failed to solve: process "/bin/sh -c {command[4:]}" did not complete successfully']  # fmt: skip
    return lines


def legacy(command: str, output: str) -> list[str]:
    return ["Step 1/7 : FROM python:3.11", " ---> 0123456789ab", "Step 2/7 : RUN apt-get update",
            "W: an older step warned: Temporary failure resolving 'x'", f"Step 3/7 : {command}",
            " ---> Running in abcdef012345", *output.rstrip("\n").splitlines(),
            f"The command '/bin/sh -c {command[4:]}' returned a non-zero code: 1"]  # fmt: skip


def podman(command: str, output: str) -> list[str]:
    return ["[1/2] STEP 1/7: FROM python:3.11 AS base", "[1/2] STEP 2/7: RUN true", "--> 0123456789ab",
            f"[1/2] STEP 3/7: {command}", *output.rstrip("\n").splitlines(),
            f'Error: building at STEP "{command}": while running runtime: exit status 1']  # fmt: skip


def shown(lines: list[str]) -> ImageError:
    return explain(lines, image=IMAGE, engine="docker")


@pytest.mark.parametrize("engine", [buildkit, legacy, podman])
@pytest.mark.parametrize("case", CASES)
def test_the_cause_is_the_first_real_one(case: str, engine: object) -> None:
    command, output, cause, fix = CASES[case]
    error = shown(engine(command, output))  # type: ignore[operator]
    assert cause in error.message, error.message
    assert fix in (error.run or ""), error.run
    assert "\n" not in error.message and "<" not in error.message.replace("numpy<2", "")
    assert "did not complete" not in (error.cause or "") and "returned a non-zero" not in (error.cause or "")


@pytest.mark.parametrize("case", [case for case in CASES if case != "metadata, cause unknown"])
def test_with_only_the_end_of_the_log(case: str) -> None:
    """Keep the part that a terminal still shows: the step's header has scrolled away, and words behind the cause are cut."""
    command, output, cause, _ = CASES[case]
    lines = buildkit(command, output)
    kept = [line for line in lines[3:] if line]
    assert cause in shown(kept).message


@pytest.mark.parametrize("case", CASES)
def test_explain_knows_the_log_too(case: str) -> None:
    command, output, _, _ = CASES[case]
    log = "\n".join(buildkit(command, output)).encode()
    assert explain_stream(BytesIO(log))


REGISTRY = {
    "pull access denied": (
        "ERROR: failed to solve: corp/base:1: failed to resolve source metadata for docker.io/corp/base:1: pull access denied, "
        "repository does not exist or may require authorization: server message: insufficient_scope",
        "denied access", "docker login"),
    "manifest unknown": (
        "ERROR: failed to solve: python:3.99: failed to resolve source metadata for docker.io/library/python:3.99: "
        "docker.io/library/python:3.99: not found", "there is no image docker.io/library/python:3.99", "list-tags"),
    "platform": (
        "ERROR: failed to solve: x:1: failed to resolve source metadata for docker.io/x:1: no match for platform in manifest: "
        "not found", "another kind of processor", "--platform"),
    "rate limit": ("ERROR: failed to solve: toomanyrequests: You have reached your unauthenticated pull rate limit.",
                   "refused", "docker login"),
    "COPY": ('ERROR: failed to solve: failed to compute cache key: failed to calculate checksum of ref 0a::b: "/weights.pt": not '
             "found", "/weights.pt", ".dockerignore"),
    "COPY, legacy": ("COPY failed: file not found in build context or excluded by .dockerignore: stat weights.pt: file does not "
                     "exist", "weights.pt", ".dockerignore"),
    "COPY, Podman": ('Error: building at STEP "COPY weights.pt /": checking on sources under "/ctx": copier: stat: "/weights.pt": '
                     "no such file or directory", "/weights.pt", ".dockerignore"),
}  # fmt: skip


@pytest.mark.parametrize("case", REGISTRY)
def test_what_fails_before_any_command(case: str) -> None:
    line, cause, fix = REGISTRY[case]
    lines = ["#2 [internal] load metadata for docker.io/library/python:3.99", "#2 ERROR: " + line.partition("solve: ")[2] or line,
             "------", " > [internal] load metadata for docker.io/library/python:3.99:", "------", line]  # fmt: skip
    error = shown([line] if case.startswith("COPY") else lines)
    assert cause in error.message and fix in (error.run or "")
