"""Docker and Podman: a ContainerPlan as the engine's arguments, and everything done to a container later."""
