"""The export program in the container: opens a trained model, writes a format, compares the two on real inputs."""
