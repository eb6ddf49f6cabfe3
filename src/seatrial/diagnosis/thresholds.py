"""Every threshold of the diagnosis, with the measurement it comes from.

Percentages are means over the training window. "To confirm" marks those that rest on documentation or arithmetic until
benchmarks/diagnosis.py has run on the GPU named; docs/benchmarks.md has what it found.
"""

#: Fewer samples than this make no mean.
MIN_SAMPLES = 3

#: Idle: no kernel ran. Measured on an H200: an idle GPU with a CUDA context reads 0 % utilisation, 0.0 % SM activity.
IDLE_UTILIZATION_PCT = 1.0
IDLE_SM_PCT = 0.5

#: Below this SM activity there is something to gain from feeding the GPU better.
#: Measured on an H200: the tutorial MNIST script 1 to 5 %, bf16 matmul 8192³ above 90 %.
STARVED_SM_PCT = 50.0

#: A GPU that spends this share of memory cycles on transfers is bound by its memory.
#: Measured on an H200 (2026-11-21): element-wise loops read 76 to 88 %, a bf16 matmul 15 to 17 %.
DRAM_BOUND_PCT = 60.0
#: So, if arithmetic is less than half as busy. Measured there (2026-11-22): normalisation, softmax over a vocabulary
#: and Adam on an embedding read 64 to 78 %, arithmetic at most 7 %; matmuls and convolutions 6 to 26 and 70 to 81 %.
DRAM_LEADS_PCT = 40.0

#: SMs at work this share of the time, with memory not full, are bound by arithmetic (or by latency inside kernels).
#: Measured on an H200 (2026-11-21): bf16 matmul 82 to 96 % SM activity, 80 to 93 % tensor activity.
COMPUTE_BOUND_SM_PCT = 70.0

#: Without SM activity, and beside SMs that are half at work: kernels run all the time. Of ours.
BUSY_UTILIZATION_PCT = 95.0
#: Measured on an H200 (2026-11-22): bound by arithmetic it reads 35 to 93 %.
ARITHMETIC_PCT = 35.0

#: Latency-bound: the GPU hardly rests and is behind the host, while arithmetic and memory are at work less than this.
#: Measured on an H200 (2026-11-22): bound by arithmetic it reads 35 to 93 %, by memory 40 to 88 %. To confirm there.
LATENCY_UTILIZATION_PCT, LATENCY_ACTIVITY_PCT, LATENCY_CAUGHT_UP = 80.0, 15.0, 0.25

#: Tensor cores at work: above, mixed precision is in use; below, with SMs busy, it is worth trying.
TENSOR_USED_PCT = 10.0

#: Launch-bound: kernels follow one another, so utilisation is there, and each is too small to fill the chip.
#: Measured on an H200: a loop of tiny kernels reads 30 % utilisation and 4.6 % SM activity; MNIST as a CUDA graph on
#: data that is on the GPU (receipt of 2026-11-21, 40 epochs) 98 % and 33 %, tensor cores 0.9 %, DRAM 2 %.
LAUNCH_UTILIZATION_PCT = 20.0
#: The same where the process that launches is busy all the time. Measured on an H200 (benchmarks/diagnosis.py,
#: 2026-11-21, two sessions): a loop of tiny kernels read 8.3 and 18 %, one that synchronises every step 6.7 and 19 %; a
#: loader that works in the main process 0.5 and 0.7 %.
MAIN_LAUNCH_UTILIZATION_PCT = 3.0
LAUNCH_SM_OF_UTILIZATION = 0.5

#: One process at this many cores has no time left: Python runs one thread at a time.
MAIN_BUSY_CORES = 0.8
#: Workers whose sum is less than this do nothing that anybody waits for. Measured on an H200: a stranger's script with
#: two loader workers (receipt of 2026-11-21) used 2.4 cores in all at 7.5 % utilisation and 2.0 % SM activity.
WORKERS_ACTIVE_CORES = 0.3

#: The script's own word (step events' data_s, communication_s): share of the window spent waiting.
WAIT_SHARE = 0.3

#: The GPU's own clock: share of a step's stream that passes between the end of one step and the next batch.
GPU_WAITS_SHARE = 0.2
#: Copies to the GPU that the script stands still for.
COPY_SHARE = 0.25
#: Time in .item(), .cpu(), print and the like in which the GPU rests, of which a fifth is 1.25×, and how often a step;
#: once a step is the reported loss, which counts when waiting takes a third of the time.
#: Measured on an H200 (2026-11-22): syncs in the step read 29 to 38 %, a loss read every ten steps 17 %.
SYNC_SHARE, SYNCS_PER_STEP, LONG_SYNC_SHARE = 0.2, 3.0, 0.35
#: Evaluation is more than a pause when it takes nearly as long as the steps.
EVALUATION_SHARE = 0.4
#: Python of the script's own, outside of its model, while the GPU hardly works. Measured on an H200: a loop of tiny
#: kernels reads 8 to 18 % utilisation, batches made in the main process 0.5 and 0.7 %.
OWN_PYTHON_SHARE, OWN_PYTHON_UTILIZATION_PCT = 0.4, 5.0
#: A GPU that works while another at a quarter of it is idle.
BUSY_WHILE_OTHERS_IDLE_PCT = 20.0

#: Scheduler periods in which the CPU quota stopped the container. Source of the meaning: kernel.org, sched-bwc.
#: Measured on the host of an H200 (2026-11-21): 100 % under --cpus 0.5.
CPU_THROTTLED_PCT = 25.0

#: GPUs that exchange this much each way spend a third of their time on it. Measured on 2 and 4 H200 (2026-11-21):
#: BERT-base lost 15 and 18 % of its speed to all-reduces that read 45 and 66 GB/s, so these run at some 350 GB/s.
#: A script that does little else than all-reduce, showed 228 GB/s there.
NVLINK_BUSY_BYTES_PER_S = 120e9
#: Some 7 % of the time: worth a tag.
NVLINK_TAG_BYTES_PER_S = 25e9
#: Without NVLink the same goes over PCIe (version 5 x16: 55 GB/s), under kernels that wait on few SMs without
#: arithmetic. To confirm on GPUs without NVLink.
PCIE_EXCHANGE_BYTES_PER_S = 10e9
COMMUNICATION_UTILIZATION_PCT = 80.0
COMMUNICATION_SM_PCT = 40.0

#: Ranks that only wait for another: NCCL's kernels spin on flags. Measured on 4 H200 (2026-11-21): 100 % utilisation,
#: SM activity 18.18 % (24 of 132 SMs) or 0.76 % (one), tensor and DRAM activity 0.0 %; training of the same script read
#: 78, 25, 2.7 and 1.8 %.
WAITING_UTILIZATION_PCT = 50.0
WAITING_ACTIVITY_PCT = 0.5

#: Above this utilisation a GPU does not rest, so nobody lets it wait for data: what it runs does not fill it.
#: Measured: BERT-base at 66 % utilisation and 38 % SM activity over short epochs (4 H200, data on the GPU).
RESTLESS_UTILIZATION_PCT = 60.0

#: Host memory → GPU. Measured on an H200 (2026-11-21): pageable copies read 7.4 and 9.1 GB/s; pinned ones reach 50 on
#: PCIe 5.
PCIE_BUSY_BYTES_PER_S = 3e9
#: Beside a GPU that rests, without loaders: copies into memory that is new each time. Measured on an H200 (2026-11-22):
#: features copied back all the time read 1.8 GB/s; 120 small fields a step, 62 % of the time, 1.6 GB/s.
PCIE_SLOW_BYTES_PER_S = 1e9
#: A third of what pinned copies reach.
PCIE_FULL_BYTES_PER_S = 16e9

#: Host memory close to its limit: the kernel reclaims pages instead of letting the script work.
HOST_MEMORY_FULL = 0.97

#: Share of samples with a hardware or thermal slowdown that makes it the cause.
THROTTLED_SHARE = 0.3
#: Slowdowns that nobody asks for. The power cap is a tag: a good matmul always meets it (measured on an H200).
SLOWDOWNS = frozenset({"hw_slowdown", "sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown"})
CAPS = frozenset({"sw_power_cap"})

#: A part of the step with advice of its own besides the cause's.
ADVISED_SHARE = 0.1
#: Copies a step from which on their number is what costs: a batch has two or three.
MANY_COPIES = 8.0
#: Both ways of NVLink 4 halved, and PCIe 5 x16 with pinned memory. Source: NVIDIA H200 data sheet; measured there.
NVLINK_PEAK_BYTES_PER_S, PCIE_PEAK_BYTES_PER_S = 450e9, 55e9

#: No gain is promised beyond this factor: further causes come up first.
MAX_GAIN = 10.0
