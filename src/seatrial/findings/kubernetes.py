"""What the scheduler, the kubelet and the controllers of Kubernetes say when a pod does not run.

Sources: kubernetes pkg/scheduler/framework/plugins/*, pkg/kubelet/images, pkg/kubelet/events/event.go.
"""

from typing import Tuple

from seatrial.findings.known import Known

_PLUGIN = "NVIDIA/k8s-device-plugin"
_PULL = "https://kubernetes.io/docs/concepts/containers/images/"
_SCHEDULER = "https://kubernetes.io/docs/concepts/scheduling-eviction/kube-scheduler/"


def _not_pulled(*reasons: str) -> Tuple[str, ...]:
    """What the kubelet says of a pull that failed for these reasons: in an event, and in the container's state."""
    return tuple(said + "…" + reason for said in ("Failed to pull image", "ErrImagePull") for reason in reasons)


KUBERNETES = (
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
        symptoms=("unhealthy device", "no healthy devices present"),
        cause="The device plugin saw an Xid error that it treats as a broken GPU",
        fix="kubectl drain {node} --ignore-daemonsets && sudo nvidia-smi --gpu-reset   # on the node",
        sources=(_PLUGIN + "#2038", "kubernetes/kubernetes#97131"),
    ),
    Known(
        id="k8s-runtime-class",
        title="The pod's RuntimeClass cannot be used",
        symptoms=("RuntimeClass '", "runtimeclasses.node.k8s.io"),
        cause="The cluster has no RuntimeClass of this name",
        fix="kubectl get runtimeclass",
        sources=("https://kubernetes.io/docs/concepts/containers/runtime-class/",),
    ),
    Known(
        id="k8s-image-not-there",
        title="The image is not on the node, and the pull policy forbids pulling",
        symptoms=("ErrImageNeverPull",),
        cause="It was built elsewhere and never reached the node",
        fix="kind load docker-image {image}   # or [kubernetes] registry",
        sources=(_PULL,),
    ),
    Known(
        id="k8s-node-disk-full",
        title="The node has no room for the image",
        symptoms=_not_pulled("no space left"),
        cause="The node's disk is full",
        fix="kubectl describe node {node} | grep -A5 DiskPressure   # or a slimmer image",
        sources=("kubernetes/kubernetes#59376",),
    ),
    Known(
        id="k8s-image-denied",
        title="The node may not pull the image",
        symptoms=_not_pulled("unauthorized", "denied", "forbidden", "no basic auth"),
        cause="The registry needs a login, or the name is wrong: registries give the same error for both",
        fix='kubectl create secret docker-registry NAME …, then [kubernetes] image_pull_secrets = ["NAME"]',
        sources=(_PULL,),
    ),
    Known(
        id="k8s-image-unknown",
        title="The registry does not have the image",
        symptoms=_not_pulled("not found", "manifest unknown", "does not exist"),
        cause="There is no such image or tag",
        fix="docker push {image}   # [kubernetes] registry does this automatically",
        sources=(_PULL,),
    ),
    Known(
        id="k8s-registry-unreachable",
        title="The node cannot reach the registry",
        symptoms=_not_pulled("no such host", "timeout", "connection refused", "dial tcp", "network"),
        cause="The node has no route or name server for it, or a proxy is not configured there",
        fix="kubectl get events --field-selector reason=Failed",
        sources=(_PULL,),
    ),
    Known(
        id="k8s-image-pull",
        title="The node cannot pull the image",
        symptoms=("ImagePullBackOff", "ErrImagePull", "Failed to pull image", "InvalidImageName"),
        cause="Wrong name, no access, too slow for its deadline, or too large for the node's disk",
        fix="kubectl describe pod {pod}   # the reason is in its events",
        sources=("kubernetes/kubernetes#59376",),
    ),
    Known(
        id="k8s-quota",
        title="The namespace's quota is used up",
        symptoms=("exceeded quota",),
        cause="A ResourceQuota limits this namespace",
        fix="kubectl describe resourcequota",
        sources=("https://kubernetes.io/docs/concepts/policy/resource-quotas/",),
    ),
    Known(
        id="k8s-limits-required",
        title="The namespace's quota requires limits that the run does not have",
        symptoms=("failed quota: …must specify", "must specify limits.", "must specify requests."),
        cause="A ResourceQuota counts limits, so every pod must have them",
        fix="seatrial run … --cpus 4 --memory 16GB",
        sources=("https://kubernetes.io/docs/concepts/policy/resource-quotas/",),
    ),
    Known(
        id="k8s-limit-range",
        title="The pod asks for more, or less, than a pod of this namespace may",
        symptoms=(
            "usage per Container is",
            "usage per Pod is",
            "limit to request ratio per",
            "usage per PersistentVolumeClaim is",
        ),
        cause="A LimitRange sets the bounds of each pod and container",
        fix="kubectl describe limitrange   # then: seatrial run … --cpus N --memory N",
        sources=("https://kubernetes.io/docs/concepts/policy/limit-range/",),
    ),
    Known(
        id="k8s-pod-security",
        title="The namespace's Pod Security does not admit the pod",
        symptoms=("violates PodSecurity",),
        cause="The namespace enforces a stricter level than the pod meets",
        fix="kubectl get namespaces -L pod-security.kubernetes.io/enforce   # hostpath volumes need privileged",
        sources=("https://kubernetes.io/docs/concepts/security/pod-security-standards/",),
    ),
    Known(
        id="k8s-service-account",
        title="There is no service account {account}",
        symptoms=('error looking up service account …serviceaccount "{account}" not found',),
        cause="Its name in [kubernetes] service_account is wrong, or it is in another namespace",
        fix="kubectl get serviceaccounts",
        sources=("https://kubernetes.io/docs/concepts/security/service-accounts/",),
    ),
    Known(
        id="k8s-queue",
        title="Kueue holds the run back until its queue has room",
        symptoms=("couldn't assign flavors", "LocalQueue {queue} doesn't exist", "ClusterQueue {queue} is inactive"),
        cause="The queue's quota is used up or too small, or there is no such queue",
        fix="kubectl get localqueues,workloads   # then: kubectl describe workload NAME",
        sources=("https://kueue.sigs.k8s.io/docs/tasks/troubleshooting/troubleshooting_jobs/",),
        severity="warning",
    ),
    Known(
        id="k8s-suspended",
        title="The run is suspended: no pod is made until its queue, or whoever suspended it, lets it go on",
        symptoms=("Suspended: ",),
        cause="Kueue suspends a job until its queue has room; a person may have done so, too",
        fix="kubectl get localqueues,workloads   # without a queue: kubectl describe the job",
        sources=("https://kubernetes.io/docs/concepts/workloads/controllers/job/#suspending-a-job",),
        severity="warning",
    ),
    Known(
        id="k8s-admission",
        title="A rule of the cluster refuses the pod",
        symptoms=('admission webhook "{webhook}" denied', "ValidatingAdmissionPolicy '{policy}'…denied"),
        cause="An admission webhook or policy of the cluster's administrators",
        fix="kubectl get validatingwebhookconfigurations,validatingadmissionpolicies",
        sources=("https://kubernetes.io/docs/reference/access-authn-authz/extensible-admission-controllers/",),
    ),
    Known(
        id="k8s-insufficient-gpus",
        title="No node has as many free GPUs as the pod asks for",
        symptoms=("Insufficient {resource}/",),
        cause="All are in use, or the device plugin reports none on the nodes that have them",
        fix="kubectl describe nodes | grep -A8 'Allocated resources'   # and the device plugin's logs",
        sources=(_PLUGIN + "#33", _PLUGIN + "#348"),
    ),
    Known(
        id="k8s-nodes-too-small",
        title="No node has as many GPUs as the pod asks for",
        symptoms=(),
        cause="The largest, {node}, has {gpus}",
        fix="seatrial run … --gpus {gpus} --nodes {nodes}",
        sources=(_SCHEDULER,),
    ),
    Known(
        id="k8s-claim-missing",
        title="There is no PersistentVolumeClaim {claim}",
        symptoms=('persistentvolumeclaim "{claim}" not found',),
        cause="Its name is wrong, or it is in another namespace",
        fix="kubectl get pvc",
        sources=("https://kubernetes.io/docs/concepts/storage/persistent-volumes/",),
    ),
    Known(
        id="k8s-volume",
        title="The pod's volume is not bound or cannot be mounted",
        symptoms=(
            "persistentvolumeclaim '",
            "unbound immediate PersistentVolumeClaims",
            "volume node affinity conflict",
            "FailedMount…pvc",
            "FailedMount…claim",
            "FailedAttachVolume",
        ),
        cause="No StorageClass provides it, or a ReadWriteOnce volume is on another node",
        fix="kubectl get pvc,pv,storageclass; kubectl describe pvc",
        sources=("https://kubernetes.io/docs/concepts/storage/persistent-volumes/",),
    ),
    Known(
        id="k8s-taint",
        title="The nodes have a taint that the pod does not tolerate",
        symptoms=("untolerated taint", "had taint"),
        cause="The node pool is reserved for pods with a matching toleration",
        fix='seatrial run … with [kubernetes] tolerations = ["{key}"]',
        sources=("https://kubernetes.io/docs/concepts/scheduling-eviction/taint-and-toleration/",),
    ),
    Known(
        id="k8s-node-selector",
        title="No node has the requested labels",
        symptoms=("didn't match Pod's node affinity", "didn't match node selector", "didn't match node affinity"),
        cause="The selector names a node pool or GPU model that is not in the cluster now",
        fix="kubectl get nodes --show-labels",
        sources=("https://kubernetes.io/docs/concepts/scheduling-eviction/assign-pod-node/",),
    ),
    Known(
        id="k8s-insufficient-resources",
        title="No node has enough {resource} free",
        symptoms=("FailedScheduling…Insufficient {resource}", "nodes are available: …Insufficient {resource}"),
        cause="Other pods use it, or the request is larger than any node",
        fix="kubectl describe nodes | grep -A8 'Allocated resources'   # or a smaller --cpus, --memory",
        sources=(_SCHEDULER,),
    ),
    Known(
        id="k8s-oom-killed",
        title="The pod was killed for using more memory than its limit",
        symptoms=("OOMKilled", "OOMKilling"),
        cause="The script needs more than --memory",
        fix="seatrial run … --memory 16GB",
        sources=("https://kubernetes.io/docs/concepts/configuration/manage-resources-containers/",),
    ),
    Known(
        id="k8s-config-missing",
        title="The container cannot be created",
        symptoms=("CreateContainerConfigError",),
        cause="A ConfigMap or Secret was deleted or edited during the run",
        fix="seatrial runs stop RUN && seatrial run --resume RUN",
        sources=("https://kubernetes.io/docs/concepts/configuration/configmap/",),
    ),
    Known(
        id="k8s-evicted",
        title="The node evicted the pod",
        symptoms=("Evicted", "Preempted", "Preempting", "TaintManagerEviction"),
        cause="Preemption by a higher priority, a drain, or a node short of memory or disk",
        fix='seatrial run … with [kubernetes] models = "pvc:NAME" resumes from its checkpoints',
        sources=("https://kubernetes.io/docs/concepts/scheduling-eviction/",),
        severity="warning",
    ),
    Known(
        id="k8s-pods-refused",
        title="The cluster refuses to create the pods",
        symptoms=("FailedCreate: Error creating:", "FailedCreatePod: ", "FailedCreatePodReason: "),
        cause="The API server's own words stand in the message",
        fix="kubectl get events --field-selector type=Warning --sort-by=.lastTimestamp",
        sources=("https://kubernetes.io/docs/tasks/debug/debug-application/",),
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
