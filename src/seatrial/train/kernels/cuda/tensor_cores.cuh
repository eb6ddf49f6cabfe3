// Tensor Cores in bf16. Source: PTX ISA, "ldmatrix" and "mma.m16n8k16". The emulator of the tests has functions of the
// same names.
#ifdef ON_CPU
static unsigned pair(float low, float high) { return (unsigned)real(low) | (unsigned)real(high) << 16; }
#else
// Two numbers rounded, side by side.
__device__ unsigned pair(float low, float high) {
  unsigned result;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(result) : "f"(high), "f"(low));
  return result;
}
// Four 8×8 matrices; each lane names a row. Of each matrix it gets two neighbours: of a row, or transposed of a column.
__device__ void load_rows(unsigned* parts, const Real* row) {
  unsigned address = (unsigned)__cvta_generic_to_shared(row);
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(parts[0]), "=r"(parts[1]), "=r"(parts[2]), "=r"(parts[3]) : "r"(address) : "memory");
}
__device__ void load_matrices(unsigned* parts, const Real* row) {
  unsigned address = (unsigned)__cvta_generic_to_shared(row);
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(parts[0]), "=r"(parts[1]), "=r"(parts[2]), "=r"(parts[3]) : "r"(address) : "memory");
}
// sums [16, 8] += a [16, 16] × b [16, 8]
__device__ void multiply(float* sums, const unsigned* a, const unsigned* b) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
               "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
               : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
#endif
