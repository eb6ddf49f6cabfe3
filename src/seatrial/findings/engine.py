"""Failures of the container engine and the NVIDIA container toolkit."""

from seatrial.findings.known import Known

_TOOLKIT = "NVIDIA/nvidia-container-toolkit"

ENGINE = (
    Known(
        id="toolkit-missing",
        title="Docker has no GPU support: the NVIDIA container toolkit is missing or not configured",
        symptoms=('could not select device driver "" with capabilities: [[', 'could not select device driver "nvidia"'),
        cause="The toolkit is not installed, or was installed after the Docker daemon started",
        fix="sudo nvidia-ctk runtime configure --runtime=docker && sudo systemctl restart docker",
        sources=("NVIDIA/nvidia-docker#1034", "NVIDIA/nvidia-docker#1637"),
    ),
    Known(
        id="docker-desktop-context",
        title="Docker Desktop's virtual machine is used, which has no GPU on Linux",
        symptoms=(),
        cause="The Docker context is desktop-linux; the engine with the GPU is the host's own",
        fix="docker context use default",
        sources=(_TOOLKIT + "#814", "docker/roadmap#497"),
    ),
    Known(
        id="docker-snap",
        title="Docker comes from a snap, which reads its own daemon.json",
        symptoms=(),
        cause="The snap ignores /etc/docker/daemon.json, where nvidia-ctk writes",
        fix=(
            "sudo nvidia-ctk runtime configure --runtime=docker"
            " --config=/var/snap/docker/current/config/daemon.json && sudo snap restart docker"
        ),
        sources=("canonical/docker-snap#180",),
    ),
    Known(
        id="runtime-unknown",
        title="The engine knows no runtime called nvidia",
        symptoms=("unknown or invalid runtime name: nvidia", "Unknown runtime specified nvidia"),
        cause="daemon.json does not name the runtime, or was edited without restarting the daemon",
        fix="sudo nvidia-ctk runtime configure --runtime=docker && sudo systemctl restart docker",
        sources=(_TOOLKIT + "#150", "NVIDIA/nvidia-docker#838"),
    ),
    Known(
        id="cdi-no-vendor",
        title="Docker looked for the GPU in CDI specs and found none",
        symptoms=("failed to discover GPU vendor from CDI", "AMD CDI spec not found"),
        cause="From Docker 29.2 on --gpus goes through CDI, and no spec of kind nvidia.com/gpu exists",
        fix="sudo nvidia-ctk cdi generate --output=/var/run/cdi/nvidia.yaml",
        sources=("NVIDIA/NemoClaw#3575", "NVIDIA/NemoClaw#3675"),
    ),
    Known(
        id="cdi-unresolvable",
        title="A CDI device that was asked for is in no spec that the engine reads",
        symptoms=("unresolvable CDI devices", 'could not select device driver "cdi"'),
        cause="The spec is missing, lies where this engine does not look, or CDI is off (Docker before 28.2)",
        fix="sudo nvidia-ctk cdi generate --output=/var/run/cdi/nvidia.yaml && nvidia-ctk cdi list",
        sources=(_TOOLKIT + "#146", _TOOLKIT + "#434"),
    ),
    Known(
        id="cdi-spec-stale",
        title="The CDI spec is older than the driver: it names files that are gone",
        symptoms=("failed to stat CDI host device", "failed to fulfil mount request: open /usr/lib…nvidia"),
        cause="The driver was upgraded after the spec was written",
        fix="sudo nvidia-ctk cdi generate --output=/var/run/cdi/nvidia.yaml && sudo rm -f /etc/cdi/nvidia.yaml",
        sources=(_TOOLKIT + "#885", _TOOLKIT + "#1611"),
    ),
    Known(
        id="cdi-uvm-missing-in-spec",
        title="The CDI spec does not name /dev/nvidia-uvm, so CUDA fails in containers only",
        symptoms=(),
        cause="The spec was generated before nvidia_uvm was loaded; some toolkit versions do not load it",
        fix=(
            "sudo nvidia-ctk system create-device-nodes --control-devices --load-kernel-modules"
            " && sudo nvidia-ctk cdi generate --output=/var/run/cdi/nvidia.yaml"
        ),
        sources=(_TOOLKIT + "#1967", _TOOLKIT + "#1743"),
    ),
    Known(
        id="ctk-erases-features",
        title="nvidia-ctk --cdi.enabled dropped the other features of daemon.json",
        symptoms=(),
        cause="It rewrites the features table with cdi alone; without containerd-snapshotter images seem to vanish",
        fix='sudoedit /etc/docker/daemon.json   # put the lost entries back under "features"',
        sources=("nvidia-container-toolkit: pkg/config/engine/docker/docker.go, EnableCDI",),
        severity="warning",
    ),
    Known(
        id="device-access-lost",
        title="The container lost its access to the GPU while running",
        symptoms=("Failed to initialize NVML: Unknown Error",),
        cause="systemd reloaded its units and rewrote the container's device rules, which did not know the GPU; or "
        "the toolkit is told not to touch cgroups (no-cgroups=true) on a rootful engine",
        fix="sudo nvidia-ctk system create-dev-char-symlinks --create-all   # or use CDI",
        sources=("NVIDIA/nvidia-docker#1730", _TOOLKIT + "#48"),
    ),
    Known(
        id="no-cgroups-rootful",
        title="The toolkit leaves cgroups alone on a rootful engine, so the GPU is never allowed",
        symptoms=(),
        cause="no-cgroups = true in /etc/nvidia-container-runtime/config.toml is meant for rootless engines",
        fix="sudo nvidia-ctk config --set nvidia-container-cli.no-cgroups=false --in-place",
        sources=(_TOOLKIT + "#580", _TOOLKIT + "#381"),
    ),
    Known(
        id="no-cgroups-rootless",
        title="The toolkit may not change device rules under a rootless engine",
        symptoms=("failed to add device rules", "bpf_prog_query(BPF_CGROUP_DEVICE) failed"),
        cause="A rootless engine cannot edit cgroup device rules; the toolkit must be told not to try, or use CDI",
        fix="sudo nvidia-ctk config --set nvidia-container-cli.no-cgroups=true --in-place",
        sources=("NVIDIA/libnvidia-container#154", _TOOLKIT + "#1487"),
    ),
    Known(
        id="device-permission",
        title="The GPU's device nodes may not be opened",
        symptoms=("Failed to initialize NVML: Insufficient Permissions", "NVML: Insufficient Permissions"),
        cause="SELinux forbids containers to use devices, or the nodes are not open to this user or group",
        fix="sudo setsebool -P container_use_devices 1   # or, without SELinux: ls -l /dev/nvidia*",
        sources=(_TOOLKIT + "#33", _TOOLKIT + "#210"),
    ),
    Known(
        id="nvml-library-missing",
        title="The driver's user-space libraries are not on the host",
        symptoms=("libnvidia-ml.so.1: cannot open shared object file", "NVML Shared Library Not Found"),
        cause="The kernel module is there, and the package with libnvidia-ml and libcuda is not",
        fix="sudo apt install libnvidia-compute-580 nvidia-utils-580 && sudo ldconfig   # your driver's branch",
        sources=("NVIDIA/libnvidia-container#231", "docker/for-win#13835"),
    ),
    Known(
        id="image-requires-newer-driver",
        title="The image asks for a newer driver than the host's",
        symptoms=("requirement error: unsatisfied condition: cuda>=",),
        cause="The image's NVIDIA_REQUIRE_CUDA is above what the driver supports",
        fix="seatrial run --image <one with a lower CUDA> …   # or upgrade the driver",
        sources=(_TOOLKIT + "#152", "nvidia-container-toolkit: container_config.go"),
    ),
    Known(
        id="driver-libraries-in-image",
        title="The image contains driver libraries of its own",
        symptoms=("libnvidia-ml.so.1: file exists", "libcuda.so.1: file exists"),
        cause="It was committed from a GPU container, or a driver package was installed into it",
        fix="RUN rm -f /usr/lib/x86_64-linux-gnu/libcuda.so* /usr/lib/x86_64-linux-gnu/libnvidia-ml.so*",
        sources=("NVIDIA/nvidia-docker#1551", _TOOLKIT + "#289"),
    ),
    Known(
        id="wsl-libcuda",
        title="WSL's CUDA library is missing or shadowed",
        symptoms=("/usr/lib/wsl/lib/libcuda.so.1",),
        cause="The Windows driver provides libcuda to WSL; a Linux driver installed inside hides it",
        fix="sudo apt purge 'nvidia-driver-*' 'libnvidia-compute-*' && sudo ldconfig   # and on Windows: wsl --update",
        sources=("NVIDIA/nvidia-docker#1225",),
    ),
    Known(
        id="toolkit-apt-sources",
        title="apt has the toolkit's repository twice, or not its key",
        symptoms=(
            "Conflicting values set for option Signed-By regarding source https://nvidia.github.io",
            "NO_PUBKEY DDCAE044F796ECB0",
        ),
        cause="Old list files of nvidia-docker remain beside the new one",
        fix="sudo rm -f /etc/apt/sources.list.d/nvidia-docker*.list /etc/apt/sources.list.d/libnvidia-container.list",
        sources=("NVIDIA/nvidia-docker#1626", _TOOLKIT + "#170"),
    ),
    Known(
        id="toolkit-vulnerable",
        title="This toolkit lets a container break out to the host",
        symptoms=(),
        cause="Versions up to 1.17.7 have CVE-2025-23266, up to 1.16.1 also CVE-2024-0132",
        fix="sudo apt install --only-upgrade nvidia-container-toolkit",
        sources=("https://www.cve.org/CVERecord?id=CVE-2025-23266", "https://www.cve.org/CVERecord?id=CVE-2024-0132"),
        severity="warning",
    ),
    Known(
        id="engine-permission",
        title="This user may not talk to the Docker daemon",
        symptoms=(
            "permission denied while trying to connect to the Docker daemon socket",
            "permission denied while trying to connect to the docker API",
        ),
        cause="The user is not in the group docker",
        fix="sudo usermod -aG docker $USER && newgrp docker",
        sources=("https://docs.docker.com/engine/install/linux-postinstall/",),
    ),
    Known(
        id="engine-down",
        title="The Docker daemon does not answer",
        symptoms=("Cannot connect to the Docker daemon",),
        cause="It is not running, or DOCKER_HOST points elsewhere",
        fix="sudo systemctl start docker",
        sources=("https://docs.docker.com/engine/daemon/troubleshoot/",),
    ),
)
