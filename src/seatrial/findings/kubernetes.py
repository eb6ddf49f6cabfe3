"""Failures of GPUs under Kubernetes."""

from seatrial.findings.known import Known

_PLUGIN = "NVIDIA/k8s-device-plugin"

KUBERNETES = (
    Known(
        id="k8s-insufficient-gpus",
        title="No node has as many free GPUs as the pod asks for",
        symptoms=("Insufficient nvidia.com/gpu",),
        cause="All are in use, or the device plugin reports none on the nodes that have them",
        fix="kubectl describe nodes | grep -A8 'Allocated resources'   # and the device plugin's logs",
        sources=(_PLUGIN + "#33", _PLUGIN + "#348"),
    ),
    Known(
        id="k8s-plugin-sees-no-gpu",
        title="The device plugin runs without GPU access",
        symptoms=(
            "Incompatible strategy detected auto",
            "No devices found. Waiting indefinitely",
            "invalid device discovery strategy",
        ),
        cause="Its container was not started by the nvidia runtime",
        fix=(
            "sudo nvidia-ctk runtime configure --runtime=containerd --set-as-default"
            " && sudo systemctl restart containerd"
        ),
        sources=(_PLUGIN + "#1220", "k8s-device-plugin: internal/plugin/factory.go"),
    ),
    Known(
        id="k8s-runtime-missing",
        title="A RuntimeClass names a runtime that containerd does not have",
        symptoms=('no runtime for "nvidia" is configured',),
        cause="The node's containerd was never configured for nvidia, or not restarted",
        fix="sudo nvidia-ctk runtime configure --runtime=containerd && sudo systemctl restart containerd",
        sources=("NVIDIA/gpu-operator#413", _PLUGIN + "#479"),
    ),
    Known(
        id="k8s-gpu-unhealthy",
        title="The node's GPU is marked unhealthy",
        symptoms=("cannot allocate unhealthy devices nvidia.com/gpu", "no healthy devices present"),
        cause="The device plugin saw an Xid error that it treats as a broken GPU",
        fix="kubectl drain <node> --ignore-daemonsets && sudo nvidia-smi --gpu-reset   # on the node",
        sources=(_PLUGIN + "#2038", "kubernetes/kubernetes#97131"),
    ),
    Known(
        id="k8s-image-pull",
        title="The node cannot pull the image",
        symptoms=("ImagePullBackOff", "ErrImagePull"),
        cause="Wrong name, no access, too slow for its deadline, or too large for the node's disk",
        fix="kubectl describe pod <pod>   # the reason is in its events",
        sources=("kubernetes/kubernetes#59376",),
    ),
    Known(
        id="k8s-unreachable",
        title="The kubeconfig's cluster does not respond",
        symptoms=(),
        cause="It is down, behind a VPN, or the kubeconfig belongs to a cluster that no longer exists",
        fix="kubectl cluster-info   # or: unset KUBECONFIG",
        sources=("https://kubernetes.io/docs/tasks/debug/debug-cluster/",),
    ),
    Known(
        id="k8s-no-gpu-resource",
        title="No node of the cluster offers GPUs",
        symptoms=(),
        cause="NVIDIA's device plugin does not run there",
        fix="kubectl get daemonsets --all-namespaces | grep nvidia",
        sources=("https://github.com/NVIDIA/k8s-device-plugin#quick-start",),
        severity="warning",
    ),
)
