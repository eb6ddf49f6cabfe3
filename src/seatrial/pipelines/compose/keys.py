"""Keys of a service in a Compose file: mistyped ones are told from those that this machine's Compose does not know."""

from __future__ import annotations

#: Source: compose-spec, schema/compose-spec.json, November 2025.
SERVICE_KEYS = frozenset(
    """
    annotations attach blkio_config build cap_add cap_drop cgroup cgroup_parent command configs container_name
    cpu_count cpu_percent cpu_period cpu_quota cpu_rt_period cpu_rt_runtime cpu_shares cpus cpuset credential_spec
    depends_on deploy develop device_cgroup_rules devices dns dns_opt dns_search domainname entrypoint env_file
    environment expose extends external_links extra_hosts gpus group_add healthcheck hostname image init ipc isolation
    label_file labels links logging mac_address mem_limit mem_reservation mem_swappiness memswap_limit models
    network_mode networks oom_kill_disable oom_score_adj pid pids_limit platform ports post_start pre_stop privileged
    profiles provider pull_policy pull_refresh_after read_only restart runtime scale secrets security_opt shm_size
    stdin_open stop_grace_period stop_signal storage_opt sysctls tmpfs tty ulimits use_api_socket user userns_mode uts
    volumes volumes_from working_dir
    """.split()  # noqa: SIM905  # ninety words in quotes read worse
)

#: Key of a service → the first Docker Compose that takes it. Source: docker/compose and compose-go release notes.
SINCE = {
    "annotations": "2.18",
    "attach": "2.20",
    "develop": "2.22",
    "gpus": "2.30",
    "post_start": "2.30",
    "pre_stop": "2.30",
    "label_file": "2.32",
    "provider": "2.36",
    "models": "2.38",
    "use_api_socket": "2.40",
}
