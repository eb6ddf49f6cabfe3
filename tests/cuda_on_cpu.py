"""Runs the library's CUDA kernels on the CPU, compiled by g++: a block's threads are fibers that meet in __syncthreads.

Slow and in order, so it finds wrong indices and wrong sums, not races.
"""

import ctypes
import re
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import pytest

THREADS = 256
HEAD = """
#include <cmath>
#include <cstring>
#include <vector>
#include <ucontext.h>
struct Place { int x, y, z; };
static Place blockIdx, blockDim, gridDim, threadIdx;
#define ON_CPU
#define __device__ static
#define __global__
#define __shared__ static
#define __launch_bounds__(...)
static float __uint_as_float(unsigned bits) { float x; memcpy(&x, &bits, 4); return x; }
static unsigned __float_as_uint(float x) { unsigned bits; memcpy(&bits, &x, 4); return bits; }
using std::isnan;
static float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
constexpr int STACK = 65536;
static ucontext_t scheduler, fibers[1024];
static std::vector<char> stacks(1024 * STACK);
static float dynamic_shared[32768];
static int current;
static bool ended[1024];
// Fibers wait until all that have not ended are there: of the block, or of the warp.
struct Barrier { int arrived, generation, alive; };
static Barrier block_barrier, warp_barriers[32], named_barriers[16];
static void leave(Barrier& at) {
  at.alive--;
  if (at.arrived && at.arrived == at.alive) at.arrived = 0, at.generation++;
}
static void end() {
  ended[current] = true;
  leave(block_barrier);
  leave(warp_barriers[current / 32]);
}
static void meet(Barrier& at) {
  int own = current, generation = at.generation;
  if (++at.arrived == at.alive) at.arrived = 0, at.generation++;
  while (at.generation == generation) {
    swapcontext(&fibers[own], &scheduler);
    current = own;
    threadIdx.x = own;
  }
}
static void __syncthreads() { meet(block_barrier); }
// Barrier "which" of so many threads, as PTX's bar.sync.
static void bar_sync(int which, int threads) {
  named_barriers[which].alive = threads;
  meet(named_barriers[which]);
}
static void __syncwarp() { meet(warp_barriers[current / 32]); }
struct alignas(16) float4 { float x, y, z, w; };
static void atomicAdd(double* place, double value) { *place += value; }
static float shuffled[1024];
static float __shfl_xor_sync(unsigned, float value, int mask) {
  int own = current;
  shuffled[own] = value;
  __syncwarp();
  value = shuffled[own ^ mask];
  __syncwarp();
  return value;
}
static int passed[1024];
static int __shfl_up_sync(unsigned, int value, int lanes) {
  int own = current;
  passed[own] = value;
  __syncwarp();
  if (own % 32 >= lanes) value = passed[own - lanes];
  __syncwarp();
  return value;
}
static const unsigned short* named_rows[1024];
static unsigned held[1024][6];
static void load_matrices(unsigned* parts, const unsigned short* row) {
  int own = current;
  named_rows[own] = row;
  __syncwarp();
  for (int k = 0; k < 4; k++)
    for (int two = 0; two < 2; two++) {
      unsigned value = named_rows[own / 32 * 32 + k * 8 + own % 4 * 2 + two][own % 32 / 4];
      parts[k] = two ? parts[k] | value << 16 : value;
    }
  __syncwarp();
}
static void load_rows(unsigned* parts, const unsigned short* row) {
  int own = current;
  named_rows[own] = row;
  __syncwarp();
  for (int k = 0; k < 4; k++) memcpy(parts + k, named_rows[own / 32 * 32 + k * 8 + own % 32 / 4] + own % 4 * 2, 4);
  __syncwarp();
}
static float half_of(unsigned pair, int which) { return __uint_as_float((which ? pair >> 16 : pair & 0xffff) << 16); }
static void multiply(float* sums, const unsigned* a, const unsigned* b) {
  int own = current, warp = own / 32 * 32, lane = own % 32;
  for (int k = 0; k < 4; k++) held[own][k] = a[k];
  for (int k = 0; k < 2; k++) held[own][4 + k] = b[k];
  __syncwarp();
  for (int r = 0; r < 4; r++) {
    int m = lane / 4 + r / 2 * 8, n = lane % 4 * 2 + r % 2;
    for (int k = 0; k < 16; k++) {
      unsigned left = held[warp + m % 8 * 4 + k % 8 / 2][k / 8 * 2 + m / 8];
      unsigned right = held[warp + n * 4 + k % 8 / 2][4 + k / 8];
      sums[r] += half_of(left, k % 2) * half_of(right, k % 2);
    }
  }
  __syncwarp();
}
template <class Body> static void run_grid(int across, int down, int deep, int threads, Body body) {
  static Body* now;
  now = &body;
  gridDim = {across, down, deep};
  blockDim = {threads, 1, 1};
  for (blockIdx.z = 0; blockIdx.z < deep; blockIdx.z++)
  for (blockIdx.y = 0; blockIdx.y < down; blockIdx.y++)
    for (blockIdx.x = 0; blockIdx.x < across; blockIdx.x++) {
      block_barrier = {0, 0, threads};
      for (Barrier& each : named_barriers) each = {0, 0, 0};
      for (int w = 0; w < threads / 32; w++) warp_barriers[w] = {0, 0, 32};
      for (int t = 0; t < threads; t++) {
        ended[t] = false;
        getcontext(&fibers[t]);
        fibers[t].uc_stack = {&stacks[t * STACK], 0, STACK};
        fibers[t].uc_link = &scheduler;
        makecontext(&fibers[t], (void (*)())+[] { (*now)(); end(); }, 0);
      }
      for (bool some = true; some;) {
        some = false;
        for (int t = 0; t < threads; t++) {
          if (ended[t]) continue;
          some = true;
          current = t;
          threadIdx.x = t;
          swapcontext(&scheduler, &fibers[t]);
        }
      }
    }
}
"""
SIGNATURE = re.compile(r'extern "C" __global__ void (?:__launch_bounds__\([^)]*\) )?(\w+)\(([^)]*)\)', re.S)


@cache
def library(source):
    """The kernels of a source as C functions ``run_NAME(arguments…, blocks across, down, threads)``."""
    text = HEAD + source.replace("extern __shared__ float shared[];", "float* shared = dynamic_shared;")
    for name, parameters in SIGNATURE.findall(source):
        names = ", ".join(re.split(r"[\s*]+", parameter.strip())[-1] for parameter in parameters.split(","))
        text += f'extern "C" void run_{name}({parameters}, int gx_, int gy_, int gz_, int threads_)'
        text += f" {{ run_grid(gx_, gy_, gz_, threads_, [&] {{ {name}({names}); }}); }}\n"
    folder = Path(tempfile.mkdtemp(prefix="seatrial-kernels-"))
    try:
        (folder / "kernels.cpp").write_text(text)
        command = ["g++", "-std=c++17", "-O1", "-Wno-unknown-pragmas", "-shared", "-fPIC", "-o", folder / "kernels.so"]
        subprocess.run([*command, folder / "kernels.cpp"], check=True)
        return ctypes.CDLL(str(folder / "kernels.so"))
    finally:
        shutil.rmtree(folder)


def launch(source, name, blocks, arguments, *, shared_bytes=0):
    """In place of ``kernels.launch``."""
    import torch

    assert shared_bytes <= 131072
    across, down, deep = (*((blocks,) if isinstance(blocks, int) else blocks), 1, 1)[:3]
    values = []
    for argument in arguments:
        if argument is None or isinstance(argument, torch.Tensor):
            values.append(ctypes.c_void_p(None if argument is None else argument.data_ptr()))
        else:
            values.append(ctypes.c_double(argument) if isinstance(argument, float) else ctypes.c_int(argument))
    getattr(library(source), f"run_{name}")(*values, across, down, deep, THREADS)


@pytest.fixture
def kernels_on_cpu(monkeypatch):
    """Every launch of the library's kernels goes to the CPU."""
    if shutil.which("g++") is None:
        pytest.skip("g++ is not installed")
    from seatrial.train.kernels import runtime

    monkeypatch.setattr(runtime, "launch", launch)
    monkeypatch.setattr(runtime, "usable", lambda device: True)


@pytest.fixture(params=["emulated", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request):
    """Where kernels run: on the CPU, thread by thread, or on a GPU."""
    torch = pytest.importorskip("torch")
    if request.param == "emulated":
        request.getfixturevalue("kernels_on_cpu")
        return torch.device("cpu")
    if not torch.cuda.is_available():
        pytest.skip("no GPU")
    return torch.device("cuda", 0)


def error(own, exact):
    """Return the difference's share of ``exact``, in the Frobenius norm."""
    exact = exact.detach().double().cpu()
    return ((own.detach().double().cpu() - exact).norm() / exact.norm().clamp(min=1e-3)).item()
