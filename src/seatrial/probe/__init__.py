"""Reading facts about this machine: NVML and GPM, CUDA, cgroups, /proc. The one sampler. Python >= 3.8."""
