"""Commands that Python code and the catalogue both print, so that one cause has one remedy."""

#: Engines read /etc/cdi too, but the toolkit's own service (nvidia-cdi-refresh) writes here, and two specs of one kind
#: disagree after the next driver update.
#: Source: docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/cdi-support.html
GENERATE_CDI = "sudo nvidia-ctk cdi generate --output=/var/run/cdi/nvidia.yaml"

#: On a node of a cluster, whose kubelet starts pods through containerd or CRI-O.
REGISTER_ON_NODE = (
    "sudo nvidia-ctk runtime configure --runtime=containerd --set-as-default"
    " && sudo systemctl restart containerd   # on the node; --runtime=crio for CRI-O"
)

REGISTER_RUNTIME = "sudo nvidia-ctk runtime configure --runtime=docker && sudo systemctl restart docker"

INSTALL_DOCKER = "curl -fsSL https://get.docker.com | sudo sh"

#: Loads nvidia_uvm and makes the device nodes of the driver.
CREATE_NODES = "sudo nvidia-modprobe -u -c=0"

BUILD_DRIVER_MODULE = "sudo apt install linux-headers-$(uname -r) && sudo dkms autoinstall && sudo modprobe nvidia"

#: Ranges of user and group IDs that rootless Podman maps a container's users to.
#: Source: github.com/containers/podman/blob/main/troubleshooting.md
ADD_SUBIDS = 'sudo usermod --add-subuids 100000-165535 --add-subgids 100000-165535 "$USER" && podman system migrate'
