"""The end of a classifier: hidden layers with ReLU, and the last layer with its cross-entropy.

The last layer has few outputs (10): torch takes 12 small kernels for it, its softmax and the gradients; here are 4.
Where the grid has a second dimension, each trial of several has its own rows, weights and results (trial_head.py).
Shapes: B rows, F features, K classes, R partial sums.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from seatrial.train.kernels.nvrtc import REALS, launch
from seatrial.train.kernels.sums import sum_rows

#: Rows of one block: one for each warp.
ROWS = 8
#: A row's logits lie in a thread's registers, a block's rows in shared memory (48 KB without asking for more).
MOST_CLASSES, MOST_FEATURES = 64, 1024

SOURCE = """
// A warp takes a row. losses [B]; slopes [B, K]: the gradient of the mean loss by the logits.
extern "C" __global__ void cross_entropy(
    const Real* x, const float* weight, const float* bias, const long long* labels, float* losses, float* slopes,
    int B) {
  int lane = threadIdx.x % 32, row = blockIdx.x * ROWS + threadIdx.x / 32;
  long long before = (long long)blockIdx.y * B;
  x += before * F, weight += blockIdx.y * K * F, bias += blockIdx.y * K, labels += before;
  losses += before, slopes += before * K;
  const Real* own = x + (row < B ? row : 0) * F;
  float logits[K] = {};
#pragma unroll
  for (int f = lane; f < F; f += 32) {
    float value = number(own[f]);
#pragma unroll
    for (int k = 0; k < K; k++) logits[k] += value * weight[k * F + f];
  }
  float largest = -3.4e38f, total = 0.0f, chosen = 0.0f;
#pragma unroll
  for (int k = 0; k < K; k++) {
    for (int other = 16; other; other /= 2) logits[k] += __shfl_xor_sync(0xffffffff, logits[k], other);
    logits[k] += bias[k];
    largest = logits[k] > largest || logits[k] != logits[k] ? logits[k] : largest;
  }
  if (row >= B) return;
  int label = (int)labels[row];
#pragma unroll
  for (int k = 0; k < K; k++) {
    total += expf(logits[k] - largest);
    if (k == label) chosen = logits[k];
  }
  if (lane == 0) losses[row] = (logf(total) + largest - chosen) / B;
#pragma unroll
  for (int k = 0; k < K; k++)
    if (lane == k % 32) slopes[row * K + k] = (expf(logits[k] - largest) / total - (k == label)) / B;
}

// parts [R][K * F + K]: of weight and bias. scale [1]: the gradient of the mean loss.
extern "C" __global__ void cross_entropy_back(
    const Real* x, const float* weight, const float* slopes, const float* scale, Real* dx, float* parts, int B) {
  __shared__ float rows[ROWS][F], own[ROWS][K];
  long long before = (long long)blockIdx.y * B;
  x += before * F, weight += blockIdx.y * K * F, slopes += before * K, scale += blockIdx.y, dx += before * F;
#pragma unroll 4
  for (int i = threadIdx.x; i < ROWS * F; i += blockDim.x) {
    int row = blockIdx.x * ROWS + i / F;
    rows[i / F][i % F] = row < B ? number(x[row * F + i % F]) : 0.0f;
  }
  for (int i = threadIdx.x; i < ROWS * K; i += blockDim.x) {
    int row = blockIdx.x * ROWS + i / K;
    own[i / K][i % K] = row < B ? slopes[row * K + i % K] * scale[0] : 0.0f;
  }
  __syncthreads();
  for (int i = threadIdx.x; i < ROWS * F; i += blockDim.x) {
    int row = blockIdx.x * ROWS + i / F;
    float sum = 0.0f;
#pragma unroll
    for (int k = 0; k < K; k++) sum += own[i / F][k] * weight[k * F + i % F];
    if (row < B) dx[row * F + i % F] = real(sum);
  }
  parts += (blockIdx.y * gridDim.x + blockIdx.x) * (K * F + K);
  for (int i = threadIdx.x; i < K * F + K; i += blockDim.x) {
    float sum = 0.0f;
#pragma unroll
    for (int r = 0; r < ROWS; r++) sum += i < K * F ? own[r][i / F] * rows[r][i % F] : own[r][i - K * F];
    parts[i] = sum;
  }
}
"""
RELU_BACK = """
// Lanes are columns; the block's eight warps take the rows in turns.
extern "C" __global__ void relu_back(
    const Real* __restrict__ grad, const Real* __restrict__ out, Real* __restrict__ dx, float* sums, int B, int F) {
  __shared__ float across[8][32];
  int lane = threadIdx.x % 32, warp = threadIdx.x / 32, column = blockIdx.x * 32 + lane;
  float total = 0.0f;
  long long before = (long long)blockIdx.y * B * F;
  grad += before, out += before, dx += before, sums += blockIdx.y * F;
#pragma unroll 8
  for (int row = warp; row < B; row += 8) {
    int place = row * F + (column < F ? column : 0);
    float value = number(grad[place]), passed = number(out[place]) > 0.0f ? value : 0.0f;
    if (column < F) dx[place] = real(passed);
    total += passed;
  }
  across[warp][lane] = total;
  __syncthreads();
  if (warp || column >= F) return;
  for (int other = 1; other < 8; other++) total += across[other][lane];
  sums[column] = total;
}
"""


def source(dtype: torch.dtype, features: int, classes: int) -> str:
    """The kernels' text for one last layer."""
    return f"{REALS[dtype]}constexpr int F = {features}, K = {classes}, ROWS = {ROWS};\n{SOURCE}"


def relu_source(dtype: torch.dtype) -> str:
    """The text of the kernel behind a hidden layer."""
    return REALS[dtype] + RELU_BACK


class CrossEntropy(torch.autograd.Function):
    """x [B, F], weight [K, F] and bias [K] (fp32), labels [B] → the mean loss, a scalar. Products in fp32."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, labels: Tensor) -> Tensor:
        rows, (classes, features) = len(x), weight.shape
        losses = torch.empty(rows, 1, device=x.device)
        slopes = torch.empty(rows, classes, device=x.device)
        text = source(x.dtype, features, classes)
        launch(text, "cross_entropy", -(-rows // ROWS), (x, weight, bias, labels, losses, slopes, rows))
        ctx.save_for_backward(x, weight, slopes)
        return sum_rows(losses).view(())

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, slopes = ctx.saved_tensors
        rows, (classes, features) = len(x), weight.shape
        blocks, dx = -(-rows // ROWS), torch.empty_like(x)
        parts = torch.empty(blocks, classes * features + classes, device=x.device)
        text = source(x.dtype, features, classes)
        launch(text, "cross_entropy_back", blocks, (x, weight, slopes, grads[0].float(), dx, parts, rows))
        sums = sum_rows(parts)
        return dx, sums[: classes * features].view(classes, features), sums[classes * features :], None


class LinearRelu(torch.autograd.Function):
    """x [B, I], weight [F, I], bias [F] → [B, F] in ``x``'s type; backwards two products and one more kernel."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        weight = weight.to(x.dtype)
        out = torch._addmm_activation(bias.to(x.dtype), x, weight.t())
        ctx.save_for_backward(x, weight, out)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, ...]:
        x, weight, out = ctx.saved_tensors
        (rows, features), dx = out.shape, torch.empty_like(out)
        sums = torch.empty(features, device=x.device)
        arguments = (grads[0].contiguous(), out, dx, sums, rows, features)
        launch(relu_source(x.dtype), "relu_back", -(-features // 32), arguments)
        return dx @ weight, product(dx.t(), x), sums


def product(a: Tensor, b: Tensor) -> Tensor:
    """a @ b in fp32, from whatever these are."""
    if a.dtype == torch.float32 or not a.is_cuda:
        return (a @ b).float()
    return torch.mm(a, b, out_dtype=torch.float32)


def takes(layer: nn.Linear) -> bool:
    """Whether the kernels of the last layer take this one."""
    return layer.bias is not None and layer.in_features <= MOST_FEATURES and layer.out_features <= MOST_CLASSES
