"""The GPU contract: CUDA sees each GPU of the plan and each runs a kernel, or the target does not start."""
