"""The end of a convolutional classifier: the largest value of each channel, a last layer without bias, its loss.

torch takes some 30 kernels for it and its gradients, of which those of the pool are the longest; here are 4.
Shapes: B rows, F channels, P places (what is left of height and width), K classes; channels last.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from seatrial.train.kernels.nvrtc import EIGHT, FORMATS, channels_last, launch, usable
from seatrial.train.kernels.sums import sum_rows

#: Rows of one block: one for each warp.
ROWS = 8
#: A row's logits lie in a thread's registers; a warp reads eight channels in each lane.
MOST_CLASSES, BY_CHANNELS, MOST_CHANNELS = 32, 256, 1024
#: Places that a byte can tell.
MOST_PLACES = 256

TEXT = """
constexpr int TURNS = F / 256;

// A warp takes a row. features [B][F] and which [B][F]: the largest value and its place. losses [B], slopes [B][K]:
// the gradient of the mean loss by the logits, which are multiplied by times.
extern "C" __global__ void pooled_cross_entropy(
    const Eight* x, const float* weight, const long long* labels, Eight* features, Choices* which, float* losses,
    float* slopes, int B, int P, double times, double smoothing) {
  int lane = threadIdx.x % 32, row = blockIdx.x * ROWS + threadIdx.x / 32;
  float logits[K] = {};
  if (row < B)
    for (int turn = 0; turn < TURNS; turn++) {
      int group = turn * 32 + lane;
      Eight best = x[(long long)row * P * (F / 8) + group];
      Choices places = {};
#pragma unroll 4
      for (int p = 1; p < P; p++) {
        Eight other = x[((long long)row * P + p) * (F / 8) + group];
#pragma unroll
        for (int c = 0; c < 8; c++) {
          float most = number(best.at[c]), value = number(other.at[c]);
          if (!(value <= most) && most == most) best.at[c] = other.at[c], places.at[c] = (signed char)p;
        }
      }
      features[row * (F / 8) + group] = best;
      which[row * (F / 8) + group] = places;
#pragma unroll
      for (int k = 0; k < K; k++)
#pragma unroll
        for (int c = 0; c < 8; c++) logits[k] += number(best.at[c]) * weight[k * F + group * 8 + c];
    }
  float largest = -3.4e38f, total = 0.0f, expected = 0.0f;
  int label = row < B ? (int)labels[row] : 0;
#pragma unroll
  for (int k = 0; k < K; k++) {
    for (int other = 16; other; other /= 2) logits[k] += __shfl_xor_sync(0xffffffff, logits[k], other);
    logits[k] *= (float)times;
    largest = logits[k] > largest || logits[k] != logits[k] ? logits[k] : largest;
  }
  if (row >= B) return;
#pragma unroll
  for (int k = 0; k < K; k++) {
    total += expf(logits[k] - largest);
    expected += logits[k] * ((float)smoothing / K + (k == label ? 1.0f - (float)smoothing : 0.0f));
  }
  if (lane == 0) losses[row] = (logf(total) + largest - expected) / B;
#pragma unroll
  for (int k = 0; k < K; k++) {
    float wanted = (float)smoothing / K + (k == label ? 1.0f - (float)smoothing : 0.0f);
    if (lane == k % 32) slopes[row * K + k] = (expf(logits[k] - largest) / total - wanted) / B;
  }
}

// parts [gridDim.x][K][F]: of the weight. scale [1]: the gradient of the mean loss.
extern "C" __global__ void pooled_cross_entropy_back(
    const Eight* features, const Choices* which, const float* weight, const float* slopes, const float* scale,
    Eight* dx, float* parts, int B, int P, double times) {
  __shared__ float own[ROWS][K];
  int lane = threadIdx.x % 32, warp = threadIdx.x / 32, row = blockIdx.x * ROWS + warp;
  for (int i = threadIdx.x; i < ROWS * K; i += blockDim.x) {
    int at = blockIdx.x * ROWS + i / K;
    own[i / K][i % K] = at < B ? slopes[at * K + i % K] * scale[0] * (float)times : 0.0f;
  }
  __syncthreads();
  if (row < B)
    for (int turn = 0; turn < TURNS; turn++) {
      int group = turn * 32 + lane;
      Choices places = which[row * (F / 8) + group];
      Eight gradient;
#pragma unroll
      for (int c = 0; c < 8; c++) {
        float sum = 0.0f;
#pragma unroll
        for (int k = 0; k < K; k++) sum += own[warp][k] * weight[k * F + group * 8 + c];
        gradient.at[c] = real(sum);
      }
#pragma unroll 4
      for (int p = 0; p < P; p++) {
        Eight result;
#pragma unroll
        for (int c = 0; c < 8; c++) result.at[c] = (unsigned char)places.at[c] == p ? gradient.at[c] : 0;
        dx[((long long)row * P + p) * (F / 8) + group] = result;
      }
    }
  parts += blockIdx.x * K * F;
  const Real* numbers = (const Real*)features + (long long)blockIdx.x * ROWS * F;
  for (int f = threadIdx.x; f < F; f += blockDim.x) {
    float sums[K] = {};
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
      float value = blockIdx.x * ROWS + r < B ? number(numbers[r * F + f]) : 0.0f;
#pragma unroll
      for (int k = 0; k < K; k++) sums[k] += own[r][k] * value;
    }
    for (int k = 0; k < K; k++) parts[k * F + f] = sums[k];
  }
}
"""


def source(dtype: torch.dtype, features: int, classes: int) -> str:
    """The kernels' text for one last layer."""
    return f"{FORMATS[dtype]}constexpr int F = {features}, K = {classes}, ROWS = {ROWS};\n{EIGHT}{TEXT}"


class PooledCrossEntropy(torch.autograd.Function):
    """x [B, F, H, W] channels last, weight [K, F] (fp32), labels [B] → the mean loss with smoothed labels, a scalar.

    The logits are those of the weight times ``times``; products in fp32.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, labels: Tensor, times: float, smoothing: float) -> Tensor:
        (rows, features), (classes, _), places = x.shape[:2], weight.shape, x.shape[2] * x.shape[3]
        held = torch.empty(rows, features, dtype=x.dtype, device=x.device)
        which = torch.empty(rows, features, dtype=torch.int8, device=x.device)
        losses, slopes = torch.empty(rows, 1, device=x.device), torch.empty(rows, classes, device=x.device)
        text = source(x.dtype, features, classes)
        arguments = (x, weight, labels, held, which, losses, slopes, rows, places, times, smoothing)
        launch(text, "pooled_cross_entropy", -(-rows // ROWS), arguments)
        ctx.save_for_backward(held, which, weight, slopes)
        ctx.size, ctx.times = x.shape[2:], times
        return sum_rows(losses).view(())

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        held, which, weight, slopes = ctx.saved_tensors
        (rows, features), classes = held.shape, len(weight)
        blocks = -(-rows // ROWS)
        dx = channels_last((rows, features, *ctx.size), held, held.dtype)
        parts = torch.empty(blocks, classes * features, device=held.device)
        text, places = source(held.dtype, features, classes), ctx.size[0] * ctx.size[1]
        arguments = (held, which, weight, slopes, grads[0].float(), dx, parts, rows, places, ctx.times)
        launch(text, "pooled_cross_entropy_back", blocks, arguments)
        return dx, sum_rows(parts).view(classes, features), None, None, None


def takes(x: Tensor, layer: nn.Linear) -> bool:
    """Whether the kernels can take these features and this layer now."""
    classes, features = layer.weight.shape
    few = classes <= MOST_CLASSES and features % BY_CHANNELS == 0 and features <= MOST_CHANNELS
    ready = usable(x.device) and torch.is_grad_enabled() and x.dtype in FORMATS and layer.bias is None
    known = x.shape[2] * x.shape[3] <= MOST_PLACES and layer.weight.dtype == torch.float32
    return few and ready and known and x.is_contiguous(memory_format=torch.channels_last)
