// Eight numbers in fp32. Two of bf16 are taken from a word by one operation each.
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
