"""Where a run happens: local, docker, podman. Each compiles a Plan purely, then starts, watches and ends it."""
