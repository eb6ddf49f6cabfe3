#!/usr/bin/env bash
# Another node for a test cluster on this machine: a kubelet with a Docker engine of its own, in a mount namespace of
# its own. Two kubelets on one engine would remove each other's containers, and in one namespace each other's logs
# (/var/log/pods) and checkpoints (/var/lib/dockershim): those paths are fixed in Kubernetes 1.20.
#
#   kubernetes_node.sh up DIR NAME KUBECONFIG KUBELET DNS SUBNET IMAGE…   SUBNET: the third number of 172.31.x.0/24
#   kubernetes_node.sh kill DIR      as a machine that loses its power: kubelet, engine and pods, without a word
#   kubernetes_node.sh down DIR
#
# IMAGEs are copied from the engine that DOCKER_HOST, or the default socket, names. Needs root, dockerd and iptables.
set -euo pipefail
CMD=$1 DIR=$2
HERE=$(readlink -f "$0")

engine() { docker --host "unix://$DIR/docker.sock" "$@"; }

rules() {  # -A adds, -D removes what lets pods of both nodes talk to each other, and to the world
  local subnet; subnet=$(cat "$DIR/subnet")
  iptables "${1/A/I}" FORWARD -s "$subnet" -j ACCEPT || return 0
  iptables "${1/A/I}" FORWARD -d "$subnet" -j ACCEPT || return 0
  iptables -t nat "$1" POSTROUTING -s "$subnet" ! -d 172.16.0.0/12 -j MASQUERADE || return 0
}

up() {
  local name=$3 kubeconfig=$4 kubelet=$5 dns=$6 third=$7; shift 7
  mkdir -p "$DIR"/{log,dockershim} /var/lib/dockershim
  echo "172.31.$third.0/24" > "$DIR/subnet"; echo "st-node$third" > "$DIR/bridge"
  ip link add "st-node$third" type bridge; ip addr add "172.31.$third.1/24" dev "st-node$third"; ip link set "st-node$third" up
  rules -A
  setsid unshare --mount "$HERE" inside "$DIR" dockerd dockerd --data-root "$DIR/docker" --exec-root "$DIR/exec" \
    --pidfile "$DIR/docker.pid" --host "unix://$DIR/docker.sock" --bridge "st-node$third" --iptables=false --log-opt max-size=10m --log-opt max-file=5 \
    > "$DIR/dockerd.out" 2>&1 < /dev/null &
  for _ in $(seq 60); do engine info >/dev/null 2>&1 && break; sleep 0.5; done
  engine info >/dev/null 2>&1 || { echo "$0: the engine did not start; see $DIR/dockerd.out" >&2; exit 1; }
  docker save "$@" | engine load > /dev/null
  local port=$((10250 + 10 * third))
  setsid nsenter --mount --target "$(cat "$DIR/dockerd.pid")" "$HERE" inside "$DIR" kubelet "$kubelet" \
    --kubeconfig="$kubeconfig" --hostname-override="$name" --node-ip="172.31.$third.1" --root-dir="$DIR/kubelet" \
    --docker-endpoint="unix://$DIR/docker.sock" --container-runtime-endpoint="unix://$DIR/dockershim.sock" \
    --port=$port --healthz-port=$((port + 1)) --read-only-port=0 --cluster-dns="$dns" --cluster-domain=cluster.local \
    --pod-infra-container-image=test/pause:1 --fail-swap-on=false --cgroup-driver=cgroupfs --cgroups-per-qos=false \
    --enforce-node-allocatable= --eviction-hard= --image-gc-high-threshold=100 --authorization-mode=AlwaysAllow \
    > "$DIR/kubelet.out" 2>&1 < /dev/null &
}

inside() {  # of the mount namespace
  local what=$3; shift 3
  if [ "$what" = dockerd ]; then
    mount --bind "$DIR/log" /var/log; mount --bind "$DIR/dockershim" /var/lib/dockershim
  fi
  echo $$ > "$DIR/$what.pid"
  exec "$@"
}

off() {
  [ -f "$DIR/kubelet.pid" ] && kill -KILL "$(cat "$DIR/kubelet.pid")" 2>/dev/null || true
  engine ps -q 2>/dev/null | xargs -r docker --host "unix://$DIR/docker.sock" kill >/dev/null 2>&1 || true
  [ -f "$DIR/docker.pid" ] && kill "$(cat "$DIR/docker.pid")" 2>/dev/null || true
}

down() {
  [ -d "$DIR" ] || exit 0
  local pid; pid=$(cat "$DIR/docker.pid" 2>/dev/null || true)
  off
  for _ in $(seq 50); do [ -n "$pid" ] && [ -d "/proc/$pid" ] || break; sleep 0.2; done
  rules -D 2>/dev/null; ip link del "$(cat "$DIR/bridge")" 2>/dev/null || true
  grep " $DIR/" /proc/mounts | awk '{print $2}' | sort -r | xargs -r umount --lazy 2>/dev/null || true
  rm -rf "$DIR"
}

case $CMD in up) up "$@" ;; inside) inside "$@" ;; kill) off ;; down) down ;; *) sed -n '2,11p' "$0"; exit 2 ;; esac
