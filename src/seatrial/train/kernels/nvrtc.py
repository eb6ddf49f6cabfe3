"""CUDA kernels of our own: compiled by NVRTC when first used, launched on the current stream.

NVRTC comes with torch; no compiler or header need be installed, and a source takes tenths of a second, where
torch.compile takes 6 to 23 s for the networks here. Kernels are called from autograd functions that run eagerly, so
that a CUDA graph captures them like torch's own, and never from torch.compile: torch 2.11 drops the gradients of an
autograd function that returns ``y.contiguous()`` (https://github.com/pytorch/pytorch/issues/180642).
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from typing import Any, cast

import torch
from torch import Tensor

from seatrial.train.kernels import compiler, kernel_cache
from seatrial.train.kernels.compiler import check

THREADS = 256
#: torch's type → C text that defines ``Real`` and how it becomes a float and back, to the nearest, ties to even.
REALS = {
    torch.float32: """
typedef float Real;
__device__ float number(Real x) { return x; }
__device__ Real real(float x) { return x; }
""",
    torch.bfloat16: """
typedef unsigned short Real;
__device__ float number(Real bits) { return __uint_as_float((unsigned)bits << 16); }
__device__ Real real(float x) {
#ifdef ON_CPU
  unsigned bits = __float_as_uint(x);
  return x != x ? 0x7fff : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
#else
  Real bits;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(x));
  return bits;
#endif
}
""",
}
#: The same with fp16, for kernels whose gradients are scaled beforehand or cannot become too small.
FORMATS = {
    **REALS,
    torch.float16: """
typedef unsigned short Real;
__device__ float number(Real bits) {
#ifdef ON_CPU
  _Float16 half;
  memcpy(&half, &bits, 2);
  return (float)half;
#else
  float x;
  asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits));
  return x;
#endif
}
__device__ Real real(float x) {
  Real bits;
#ifdef ON_CPU
  _Float16 half = (_Float16)x;
  memcpy(&bits, &half, 2);
#else
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x));
#endif
  return bits;
}
""",
}
#: 2^x, off by about 2^-22 of it.
POWER = """
#ifdef ON_CPU
static float exponential2(float x) { return exp2f(x); }
#else
__device__ float exponential2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
#endif
"""
#: GELU by the normal distribution. Source of the polynomial: M. Abramowitz and I. Stegun, Handbook of Mathematical
#: Functions, 7.1.26: off by less than 1e-7; one exponential serves the function and its slope. Half of erff's time.
GELU = (
    POWER
    + """
#ifdef ON_CPU
static float reciprocal(float x) { return 1.0f / x; }
#else
__device__ float reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
#endif
// The share of a normal distribution below z; bell: exp(-z * z / 2).
__device__ float below(float z, float bell) {
  float t = reciprocal(1.0f + 0.23164189f * fabsf(z));
  float sum = 0.5307027f, tail;
  sum = sum * t - 0.72657601f;
  sum = sum * t + 0.71070687f;
  sum = sum * t - 0.14224837f;
  sum = sum * t + 0.12741480f;
  tail = sum * t * bell;
  return z < 0.0f ? tail : 1.0f - tail;
}
__device__ float gelu(float z) { return z * below(z, exponential2(-0.72134752f * z * z)); }
__device__ float gelu_slope(float z) {
  float bell = exponential2(-0.72134752f * z * z);
  return below(z, bell) + 0.39894228f * z * bell;
}
"""
)
#: Eight channels of one pixel: what a thread reads or writes at once, in pieces of at most 16 bytes.
EIGHT = """
struct alignas(16) Eight { Real at[8]; };
struct alignas(8) Choices { signed char at[8]; };
"""
#: After EIGHT, for types of REALS: eight numbers in fp32. Two of bf16 are taken from a word by one operation each.
NUMBERS = """
struct alignas(16) Numbers { float at[8]; };
__device__ Numbers numbers(Eight from) {
  Numbers found;
#pragma unroll
  for (int k = 0; k < 8; k += 2) {
    if (sizeof(Real) == 2) {
      unsigned both = *(const unsigned*)(from.at + k);
      found.at[k] = __uint_as_float(both << 16), found.at[k + 1] = __uint_as_float(both & 0xffff0000);
    } else {
      found.at[k] = number(from.at[k]), found.at[k + 1] = number(from.at[k + 1]);
    }
  }
  return found;
}
"""

#: A kernel's head in a source, with or without bounds for its registers.
KERNEL = re.compile(r'extern "C" __global__ void (?:__launch_bounds__\([^)]*\) )?(\w+)\(')
#: Shared memory that a kernel has without asking for more (CUDA programming guide).
PLAIN_SHARED_BYTES = 48 * 1024

Kernel = Callable[..., None]


def compiled(source: str, device: int) -> dict[str, Kernel]:
    """The kernels of a source by name. Raises RuntimeError, OSError or AttributeError where there is no NVRTC."""
    return build(source, device).result()


@cache
def build(source: str, device: int) -> Future[dict[str, Kernel]]:
    """Begin to compile a source: several at a time take no longer than one."""
    return _compilers().submit(_compile, source, device)


@cache
def _compilers() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(thread_name_prefix="nvrtc")


def _compile(source: str, device: int) -> dict[str, Kernel]:
    from torch.cuda._utils import _cuda_load_module  # torch 2.8 and later

    names = KERNEL.findall(source)
    architecture = "sm_{}{}".format(*torch.cuda.get_device_capability(device))
    file = kernel_cache.name(source, architecture, _driver_version())
    binary = kernel_cache.read(file)
    if binary is None:
        binary = machine_code(source, architecture)
        kernel_cache.keep(file, binary)
    _enter_context(device)
    return cast(dict[str, Kernel], _cuda_load_module(binary, names))


def machine_code(source: str, architecture: str) -> bytes:
    """A source, compiled by torch's NVRTC. Raises RuntimeError with the compiler's text; OSError when there is none."""
    if torch.version.cuda is None:
        raise RuntimeError("this torch is not built for CUDA")
    nvrtc = compiler.load(int(torch.version.cuda.split(".")[0]))
    return compiler.machine_code(nvrtc, source, architecture).code


@cache
def _driver() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")


@cache
def _driver_version() -> int:
    version = ctypes.c_int()
    check(_driver().cuDriverGetVersion(ctypes.byref(version)))
    return version.value


@cache
def _context(device: int) -> ctypes.c_void_p:
    context = ctypes.c_void_p()
    check(_driver().cuDevicePrimaryCtxRetain(ctypes.byref(context), device))
    return context


def _enter_context(device: int) -> None:
    """Make the device's context this thread's. A new thread (compiler's, backward pass's) has none, and
    torch.cuda.device sets none where it believes the device to be the current one already."""
    check(_driver().cuCtxSetCurrent(_context(device)))


@cache
def unavailable() -> str | None:
    """Why no kernel can be compiled here, or None."""
    try:
        device = torch.cuda.current_device()
        compiled('extern "C" __global__ void nothing(int zero) {}\n', device)
    except (RuntimeError, OSError, AttributeError, ImportError) as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no text'}"
    return None


def usable(device: torch.device) -> bool:
    """Whether kernels of our own can run here and now: on a GPU, with NVRTC, and not inside of torch.compile."""
    return device.type == "cuda" and not torch.compiler.is_compiling() and unavailable() is None


def refuse_second_derivatives() -> None:
    """For the begin of a backward pass: RuntimeError where its gradients would be derived again, for they cannot be."""
    if torch.is_grad_enabled():  # create_graph=True
        raise RuntimeError("kernels of this library have no second derivatives: Step(..., kernels=False)")


def launch(
    source: str, name: str, blocks: int | tuple[int, ...], arguments: Sequence[Any], *, shared_bytes: int = 0
) -> None:
    """Queue a kernel of THREADS threads a block.

    Args:
        arguments: tensors go as pointers (None: a null pointer), ints as int, floats as double.
    """
    across, down, deep = (*((blocks,) if isinstance(blocks, int) else blocks), 1, 1)[:3]
    device = next(argument.device for argument in arguments if isinstance(argument, Tensor))
    given = [torch.empty(0, device=device) if argument is None else argument for argument in arguments]  # at address 0
    _enter_context(device.index)
    kernel = compiled(source, device.index)[name]
    if shared_bytes >= PLAIN_SHARED_BYTES:
        _allow(kernel, shared_bytes)
    kernel(grid=(across, down, deep), block=(THREADS, 1, 1), args=given, shared_mem=shared_bytes)


def _allow(kernel: Any, shared_bytes: int) -> None:
    """Let a kernel have so much shared memory; torch 2.9 and later ask for it by a method of theirs."""
    if shared_bytes <= getattr(kernel, "allowed_shared_bytes", 0):
        return
    if hasattr(kernel, "set_shared_memory_config"):
        kernel.set_shared_memory_config(shared_bytes)
    else:  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        check(_driver().cuFuncSetAttribute(kernel.func, 8, shared_bytes))
    kernel.allowed_shared_bytes = shared_bytes


def most_shared_bytes(device: torch.device) -> int:
    """Shared memory that a kernel can ask for."""
    properties = torch.cuda.get_device_properties(device)
    return int(getattr(properties, "shared_memory_per_block_optin", PLAIN_SHARED_BYTES))


def channels_last(shape: tuple[int, ...], like: Tensor, dtype: torch.dtype) -> Tensor:
    """[B, C, H, W], channels last, on the device of ``like``."""
    return torch.empty(shape, dtype=dtype, device=like.device, memory_format=torch.channels_last)
