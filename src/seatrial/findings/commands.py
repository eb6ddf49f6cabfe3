"""Commands that more than one finding or error ends with, so that one cause has one remedy."""

#: Engines read /etc/cdi too, but the toolkit's own service (nvidia-cdi-refresh) writes here, and two specs of one kind
#: disagree after the next driver update.
#: Source: docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/cdi-support.html
GENERATE_CDI = "sudo nvidia-ctk cdi generate --output=/var/run/cdi/nvidia.yaml"

#: Docker has CDI on by itself from 28.2.
ENABLE_CDI = "sudo nvidia-ctk runtime configure --runtime=docker --cdi.enabled && sudo systemctl restart docker"

REGISTER_RUNTIME = "sudo nvidia-ctk runtime configure --runtime=docker && sudo systemctl restart docker"

INSTALL_TOOLKIT = "sudo apt-get install -y nvidia-container-toolkit && " + REGISTER_RUNTIME
