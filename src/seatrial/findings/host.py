"""Failures of the host: driver, kernel modules, the GPU itself."""

from seatrial.findings.commands import BUILD_DRIVER_MODULE, CREATE_NODES
from seatrial.findings.known import Known

HOST = (
    Known(
        id="driver-not-loaded",
        title="The NVIDIA kernel driver is not loaded",
        symptoms=(
            "couldn't communicate with the NVIDIA driver",
            "nvml error: driver not loaded",
            "Failed to initialize NVML: Driver Not Loaded",
        ),
        cause="There is no nvidia module for the running kernel, often after a kernel update without its headers",
        fix=BUILD_DRIVER_MODULE,
        sources=("NVIDIA/nvidia-container-toolkit#1611",),
    ),
    Known(
        id="driver-not-signed",
        title="Secure Boot rejects the NVIDIA kernel module",
        symptoms=("could not insert 'nvidia': Key was rejected by service", "could not insert 'nvidia': Required key"),
        cause="Secure Boot is on, and the key that signed the module is not enrolled",
        fix="sudo mokutil --import /var/lib/shim-signed/mok/MOK.der   # reboot, then choose Enroll MOK",
        sources=("https://wiki.ubuntu.com/UEFI/SecureBoot/DKMS",),
    ),
    Known(
        id="nouveau-bound",
        title="The open-source nouveau driver holds the GPU",
        symptoms=("NVRM: GPU … is already bound to nouveau",),
        cause="nouveau was loaded before NVIDIA's module and keeps the device",
        fix=(
            "echo 'blacklist nouveau' | sudo tee /etc/modprobe.d/blacklist-nouveau.conf"
            " && sudo update-initramfs -u && sudo reboot"
        ),
        sources=("geerlingguy/raspberry-pi-pcie-devices#549",),
    ),
    Known(
        id="adapter-init-failed",
        title="The driver is loaded but cannot start the GPU",
        symptoms=("RmInitAdapter failed", "No devices were found", "requires use of the NVIDIA open kernel modules"),
        cause="Blackwell GPUs need the open kernel modules, Volta and older the proprietary ones; or the board's BIOS "
        "maps too little memory (Above 4G decoding)",
        fix="sudo apt install nvidia-driver-580-open && sudo reboot",
        sources=("NVIDIA/open-gpu-kernel-modules#862", "NVIDIA/open-gpu-kernel-modules#935"),
    ),
    Known(
        id="driver-library-mismatch",
        title="The driver's libraries and its kernel module have different versions",
        symptoms=(
            "Driver/library version mismatch",
            "driver/library version mismatch",
            "NVRM: API mismatch",
            "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
            "system has unsupported display driver / cuda driver combination",
        ),
        cause="The driver was upgraded and the old module is still loaded, or a container keeps the old libraries",
        fix="sudo reboot   # to prevent it: sudo apt-mark hold 'nvidia-*' 'libnvidia-*'",
        sources=("NVIDIA/nvidia-container-toolkit#394", "pando85/homelab#4110"),
    ),
    Known(
        id="gpu-lost",
        title="A GPU stopped answering",
        symptoms=(
            "GPU is lost",
            "has fallen off the bus",
            "Unable to determine the device handle for GPU",
            "uncorrectable ECC error encountered",
            "uncorrectable NVLink error",
        ),
        cause="The GPU fell off the PCIe bus or hit an uncorrectable error: power, heat, seating or a broken board",
        fix="sudo dmesg | grep -i xid   # then reboot the host; on a repeat, check power and cooling",
        sources=("NVIDIA/open-gpu-kernel-modules#507", "https://docs.nvidia.com/deploy/xid-errors/"),
    ),
    Known(
        id="fabric-manager-not-ready",
        title="CUDA is not ready: the NVSwitch fabric is not set up (error 802)",
        symptoms=("CUDA_ERROR_SYSTEM_NOT_READY", "system not yet initialized"),
        cause="GPUs joined by NVSwitch need nvidia-fabricmanager running, in exactly the driver's version; "
        "nvidia-smi looks fine without it",
        fix="sudo systemctl enable --now nvidia-fabricmanager && systemctl status nvidia-fabricmanager",
        sources=("pytorch/pytorch#35710", "https://docs.nvidia.com/datacenter/tesla/fabric-manager-user-guide/"),
    ),
    Known(
        id="uvm-node-missing",
        title="/dev/nvidia-uvm is missing, so CUDA cannot start",
        symptoms=(),
        cause="The nvidia_uvm module is not loaded on the host, or the node was not passed into the container; "
        "nvidia-smi works without it",
        fix=CREATE_NODES,
        sources=("pytorch/pytorch#49081", "NVIDIA/nvidia-container-toolkit#1743", "measured on an H200, driver 580"),
    ),
    Known(
        id="cuda-unknown-error",
        title="CUDA fails to start with error 999 while nvidia-smi works",
        symptoms=(
            "CUDA unknown error - this may be due to an incorrectly set up environment",
            "CUDA_ERROR_UNKNOWN",
            "failed call to cuInit: UNKNOWN ERROR",
        ),
        cause="nvidia_uvm is in a bad state, typically after suspend and resume, or its device node is missing",
        fix="sudo rmmod nvidia_uvm && sudo modprobe nvidia_uvm   # stop containers that use the GPU first",
        sources=("pytorch/pytorch#88639", "NVIDIA/nvidia-container-toolkit#1155"),
    ),
    Known(
        id="persistence-off",
        title="Persistence mode is off: each first use reinitialises the GPU",
        symptoms=(),
        cause="Without nvidia-persistenced the driver unloads the GPU's state when idle, costing 1.5 to 6 s each time",
        fix="sudo nvidia-smi -pm 1",
        sources=("pop-os/system76-power#492", "netdata/netdata#14522"),
        severity="info",
    ),
    Known(
        id="compute-mode-exclusive",
        title="The GPU accepts no more processes",
        symptoms=(
            "all CUDA-capable devices are busy or unavailable",
            "CUDA-capable device(s) is/are busy or unavailable",
            "CUDA_ERROR_DEVICE_UNAVAILABLE",
        ),
        cause="Its compute mode is exclusive and another process holds it, or its mode prohibits computing",
        fix="sudo nvidia-smi -c DEFAULT",
        sources=("NVIDIA/DIGITS#2005", "ultralytics/ultralytics#19744"),
    ),
    Known(
        id="mig-no-instances",
        title="MIG mode is on and no MIG instance exists, so CUDA sees no device",
        symptoms=(),
        cause="A GPU in MIG mode computes only through its instances, and none has been created",
        fix="sudo nvidia-smi mig -lgip && sudo nvidia-smi mig -cgi 19 -C   # or turn MIG off: sudo nvidia-smi -mig 0",
        sources=("NVIDIA/nvidia-container-toolkit#86", "https://docs.nvidia.com/datacenter/tesla/mig-user-guide/"),
    ),
    Known(
        id="gpu-memory-held",
        title="Other processes fill the GPU's memory",
        symptoms=(),
        cause="Another program holds it, perhaps a worker that outlived its container",
        fix="sudo fuser -v /dev/nvidia*   # then end those processes by their PID",
        sources=("PaddlePaddle/PaddleOCR#2074", "NVIDIA/gpu-operator#2880"),
    ),
    Known(
        id="no-gpu-on-bus",
        title="No NVIDIA GPU was found on this machine",
        symptoms=(),
        cause="There is none, it is disabled in the BIOS, or it was not passed to this virtual machine",
        fix="lspci -nn | grep -i nvidia   # on the host itself; without a GPU: seatrial run --gpus none …",
        sources=("https://pci-ids.ucw.cz: vendor 10de",),
    ),
    Known(
        id="gpu-bound-elsewhere",
        title="A GPU is held for a virtual machine",
        symptoms=(),
        cause="vfio-pci keeps it for pass-through, so NVIDIA's driver cannot have it",
        fix="sudo virsh nodedev-reattach pci_0000_17_00_0   # its own address; or boot without vfio-pci.ids",
        sources=("https://docs.kernel.org/driver-api/vfio.html",),
    ),
    Known(
        id="driver-update-pending",
        title="The driver on disk has a different version than the loaded one",
        symptoms=(),
        cause="A package upgrade replaced module and libraries; containers started from now on get a mix of both",
        fix="sudo reboot   # before the next run",
        sources=(
            "NVIDIA/nvidia-container-toolkit#394",
            "pando85/homelab#4110",
        ),
        severity="warning",
    ),
    Known(
        id="driver-upgraded-unattended",
        title="Unattended upgrades may replace the driver during a run",
        symptoms=(),
        cause="apt upgrades packages at night; the libraries then no longer fit the loaded module until a reboot",
        fix="sudo apt-mark hold 'nvidia-*' 'libnvidia-*'",
        sources=("pando85/homelab#4110",),
        severity="warning",
    ),
    Known(
        id="mig-mode-pending",
        title="A MIG mode change needs a GPU reset",
        symptoms=(),
        cause="MIG mode was switched while the GPU was in use",
        fix="sudo nvidia-smi --gpu-reset   # with nothing on the GPU; or reboot",
        sources=("https://docs.nvidia.com/datacenter/tesla/mig-user-guide/",),
        severity="warning",
    ),
    Known(
        id="power-limit-lowered",
        title="A GPU's power limit is below its default",
        symptoms=(),
        cause="Somebody lowered it, and the GPU clocks down under load",
        fix="sudo nvidia-smi -pl <watts>",
        sources=("https://docs.nvidia.com/deploy/nvml-api/: nvmlDeviceGetPowerManagementDefaultLimit",),
        severity="info",
    ),
    Known(
        id="iommu-peer-traffic",
        title="Traffic between GPUs passes through the IOMMU",
        symptoms=(),
        cause=(
            "The kernel translates every access of a device; peer-to-peer writes then hang or arrive corrupted, which"
            " NCCL reports as a timeout"
        ),
        fix="add iommu=pt to GRUB_CMDLINE_LINUX in /etc/default/grub, then: sudo update-grub && sudo reboot",
        sources=(
            "NVIDIA/nccl#631",
            "NVIDIA/nccl#2079",
        ),
        severity="warning",
    ),
)
