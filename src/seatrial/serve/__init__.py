"""The server in the container: HTTP in front processes, one model process a GPU, batches with a deadline."""
