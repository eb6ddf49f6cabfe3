// REAL: 32 fp32, 16 bf16, 15 fp16. A number becomes a float and back, to the nearest, ties to even.
#if REAL == 32
typedef float Real;
__device__ float number(Real x) { return x; }
__device__ Real real(float x) { return x; }
#elif REAL == 16
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
#else
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
#endif
// Eight channels of one pixel: what a thread reads or writes at once, in pieces of at most 16 bytes.
struct alignas(16) Eight { Real at[8]; };
struct alignas(8) Choices { signed char at[8]; };
