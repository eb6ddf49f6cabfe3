"""Failures of image builds: BuildKit, Buildah, pip and apt. What makes other steps fail comes before what they say.

The texts are those of pip 23 to 25, uv, apt 2.6, Docker 20.10 to 28 and Podman 4; tests/recorded/images has samples.
"""

from seatrial.findings.build_conda import BUILD_CONDA
from seatrial.findings.build_network import BUILD_NETWORK
from seatrial.findings.build_packages import BUILD_PACKAGES
from seatrial.findings.known import Known

_RECORDED = "seatrial: tests/recorded/images"
_MISSING = "satisfies the requirement {what…} (from versions: "

BUILD = (
    Known(
        id="build-network-refused",
        title="The builder is not allowed to use the host's network",
        symptoms=("network.host is not allowed",),
        cause="image.build_network is host, but the current buildx builder was created without that entitlement",
        fix="docker buildx use default",
        sources=("https://docs.docker.com/reference/cli/docker/buildx/create/#buildkitd-flags",),
    ),
    Known(
        id="base-image-missing",
        title="The base image {base} does not exist locally and cannot be pulled",
        symptoms=("> [internal] load metadata for {base}", "creating build container: "),
        cause="Its name is wrong, it needs a login, or the registry cannot be reached",
        fix="{engine} pull {base}",
        sources=(_RECORDED,),
    ),
    Known(
        id="copy-source-missing",
        title="COPY finds no {file} in the folder that is built",
        symptoms=(
            "failed to calculate checksum of ref …'{file}': not found",
            "failed to compute cache key: …'{file}': not found",
            "failed to compute cache key: …'{file}' not found",
            "COPY failed: file not found in build context or excluded by .dockerignore: stat {file}: ",
            "COPY failed: stat …/{file}: no such file",
            "copier: stat: '{file}': no such file",
            "no items matching glob '{file}' copied",
        ),
        cause="It is not there, is outside of the folder given to build, or .dockerignore leaves it out",
        fix="ls -la; cat .dockerignore   # paths count from the folder at the end of `docker build … .`",
        sources=("https://docs.docker.com/build/concepts/context/",),
    ),
    Known(
        id="other-processor",
        title="The base image is for another kind of processor",
        symptoms=(
            "no match for platform in manifest",
            "no matching manifest for {platform} in the manifest list",
            "exec format error",
            "exec /{program}: exec format error",
            "does not match the specified platform",
        ),
        cause="It has no variant for this machine (x86-64, arm64), or another variant is in the store",
        fix="{engine} pull --platform linux/$(uname -m) {base}   # or a base made for this processor",
        sources=("https://docs.docker.com/build/building/multi-platform/",),
    ),
    Known(
        id="base-not-root",
        title="The base image builds as a user who may not install anything",
        symptoms=(
            "Could not open lock file /var/lib/{place} - open (13: Permission denied)",
            "List directory /var/lib/apt/lists/partial is missing. - Acquire (13: Permission denied)",
            "due to an OSError: [Errno 13] Permission denied: '{path}'",
            "due to an EnvironmentError: [Errno 13] Permission denied: '{path}'",
        ),
        cause="The base's last USER is not root; {path} belongs to root",
        fix='in seatrial.toml: [image] base = "python:3.11-slim-bookworm"   # or in a Dockerfile: USER root before',
        sources=("https://docs.docker.com/reference/dockerfile/#user",),
    ),
    Known(
        id="base-without-venv",
        title="The base image's Python cannot create virtual environments",
        symptoms=("ensurepip is not available", "No module named venv"),
        cause="Debian and Ubuntu keep that part of Python in a package of its own",
        fix='in seatrial.toml: [image] system_packages = ["python3-venv"]',
        sources=("https://packages.debian.org/stable/python3-venv",),
    ),
    Known(
        id="base-without-apt",
        title="The base image {base} has no apt-get",
        symptoms=("apt-get: not found", "apt-get: command not found"),
        cause="Debian packages were requested, but the base is not Debian or Ubuntu",
        fix='in seatrial.toml: [image] base = "python:3.11-slim-bookworm"',
        sources=("https://hub.docker.com/_/python",),
    ),
    Known(
        id="debian-package-missing",
        title="Debian has no package {package} for this base image",
        symptoms=("E: Unable to locate package {package}",),
        cause="The name is wrong, or the package belongs to another release",
        fix="change image.system_packages; https://packages.debian.org/search?keywords={package}",
        sources=(_RECORDED,),
    ),
    Known(
        id="requirements-conflict",
        title="The requirements contradict each other: {sides}",
        symptoms=(
            "The conflict is caused by:",
            "these package versions have conflicting dependencies",
            "ResolutionImpossible",
            "No solution found when resolving",
        ),
        cause="Two of them, or what they depend on, need different versions of one package",
        fix="relax one of the two in requirements.txt, pyproject.toml or image.requirements",
        sources=("https://pip.pypa.io/en/latest/topics/dependency-resolution/",),
    ),
    Known(
        id="package-does-not-compile",
        title="{package} has no wheel for this image's Python and did not compile",
        symptoms=(
            "Failed building wheel for {package}",
            "Could not build wheels for {package}",
            "Failed to build installable wheels for some pyproject.toml based projects ({package})",
            "Failed to build '{package}'",
        ),
        cause="The package is compiled from source, and the image has no compiler or lacks a library that it needs",
        fix='in seatrial.toml: [image] system_packages = ["build-essential", "python3-dev"]',
        sources=(_RECORDED,),
    ),
    *BUILD_CONDA,
    *BUILD_PACKAGES,
    *BUILD_NETWORK,
    Known(
        id="package-index-certificate",
        title="A server's certificate is not trusted inside the build",
        symptoms=(
            "CERTIFICATE_VERIFY_FAILED",
            "problem confirming the ssl certificate",
            "certificate verify failed",
            "after connection broken by 'SSLError",
            "invalid peer certificate",
        ),
        cause="It is often a proxy that signs with its own certificate authority",
        fix='in seatrial.toml: [image] ca_bundle = "/path/to/company-ca.pem"',
        sources=(_RECORDED,),
    ),
    Known(
        id="package-index-unreachable",
        title="The build cannot reach the package index",
        symptoms=(
            "after connection broken by '…: /simple/",
            "after connection broken by '…: /whl/",
            "after connection broken by '…: /packages/",
            "pip._vendor.urllib3.exceptions.",
            "Temporary failure resolving",
            "Could not connect to {host}:80 (",
            "Could not connect to {host}:443 (",
        ),
        cause="The build has no network, or the index can be reached only through a proxy or a mirror",
        fix='in seatrial.toml: [image] build_network = "host", or index_url of a mirror',
        sources=(_RECORDED,),
    ),
    Known(
        id="package-missing",
        title="The package index has no {what} for this image's Python",
        symptoms=(_MISSING + "none)",),
        cause="The name is wrong, or no version of it fits this Python or machine",
        fix="pip index versions {what}",
        sources=(_RECORDED,),
    ),
    Known(
        id="package-version-missing",
        title="The package index has no {what} for this image's Python",
        symptoms=(_MISSING + "……, {newest})", _MISSING + "{newest})"),
        cause="There are other versions of it; the newest is {newest}",
        fix="change the version",
        sources=(_RECORDED,),
    ),
    Known(
        id="torch-build-not-planned",
        title="The image has {has…}, and the plan has {planned…}",
        symptoms=(),
        cause="pip looked elsewhere than the plan: the base image {base} names package sources of its own "
        "(PIP_INDEX_URL, pip.conf), or the index has no such build",
        fix='in seatrial.toml: [image] requirements = ["torch=={pin}"], or index_url where any build will do',
        sources=("https://pip.pypa.io/en/stable/topics/configuration/",),
    ),
    Known(
        id="build-step-killed",
        title="The kernel killed the step: out of memory",
        symptoms=(
            "Killed signal terminated program",
            "exit code: 137",
            "exit status 137",
            "returned a non-zero code: 137",
        ),
        cause="The machine, or the builder's virtual machine, has too little memory for it",
        fix="free -h",
        sources=("https://docs.docker.com/engine/containers/run/#exit-status",),
    ),
    Known(
        id="package-metadata-failed",
        title="pip cannot read what a package needs: its setup ended with an error",
        symptoms=(
            "metadata-generation-failed",
            "Encountered error while generating package metadata",
            "Build backend failed to determine",
            "subprocess-exited-with-error",
        ),
        cause="There is no wheel of this version for the image's Python, and its source does not work with it",
        fix="ask for a version that has a wheel: pip download --only-binary :all: NAME; or an older [image] python",
        sources=("https://pip.pypa.io/en/stable/reference/build-system/",),
    ),
)

#: Entries that only say that something did not work out: whatever else a build shows is their cause.
CONSEQUENCES = (
    "build-step-killed",
    "package-metadata-failed",
    "package-does-not-compile",
    "package-missing",
    "debian-package-missing",
    "base-image-missing",
)
