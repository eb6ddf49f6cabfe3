// Rows of a step's batch: images as numbers times scale plus shift, channels last, and their labels.
extern "C" __global__ void gather(
    const unsigned char* images, const long long* labels, const long long* rows, const long long* position,
    const float* scale, const float* shift, float* out, long long* picked, int total, int first, int batch, int C,
    int pixels) {
  int thread = blockIdx.x * blockDim.x + threadIdx.x;
  if (thread >= total) return;
  int c = thread % C, pixel = thread / C % pixels, row = thread / C / pixels;
  long long from = rows[position[0] * batch + first + row];
  out[thread] = images[(from * C + c) * pixels + pixel] * scale[c] + shift[c];
  if (c == 0 && pixel == 0) picked[row] = labels[from];
}
