"""Read a project's requirements from each format that people use."""
