"""Write the Dockerfile and everything else of the build context."""
