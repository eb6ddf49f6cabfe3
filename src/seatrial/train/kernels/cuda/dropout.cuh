// The mask is a function of two keys and an element's number. The hash is triple32
// (https://nullprogram.com/blog/2018/07/31/) with the second key put in after the first of its products.
// Of elements 2 n and 2 n + 1: the lower and the upper half.
__device__ unsigned hashed(const int* key, unsigned x) {
  x ^= (unsigned)key[0];
  x ^= x >> 17;
  x *= 0xed5ad4bbu;
  x ^= (unsigned)key[1];
  x ^= x >> 11;
  x *= 0xac4c1b51u;
  x ^= x >> 15;
  x *= 0x31848babu;
  return x ^ x >> 14;
}
// Which of eight neighbours, from an even one on, stay: a bit each.
__device__ unsigned kept_of_eight(const int* key, unsigned first) {
  if (DROP == 0) return 0xff;
  unsigned bits = 0;
#pragma unroll
  for (int k = 0; k < 8; k += 2) {
    unsigned both = hashed(key, first / 2 + k / 2);
    bits |= (unsigned)((both & 0xffff) >= DROP) << k | (unsigned)(both >> 16 >= DROP) << (k + 1);
  }
  return bits;
}
// What is dropped becomes 0, the others are raised.
__device__ float dropped(float value, unsigned bits, int k) {
  return DROP == 0 ? value : bits >> k & 1 ? value * RAISE : 0.0f;
}
