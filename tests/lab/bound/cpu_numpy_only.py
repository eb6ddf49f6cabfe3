# expect: cpu-only
"""Logistic regression in plain numpy: there is no framework in it that could use a GPU."""

import sys
import time

import numpy as np

seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 8.0
rng = np.random.default_rng(0)
X = rng.normal(size=(20_000, 50))
y = (X @ rng.normal(size=50) > 0).astype(float)
w, learning_rate = np.zeros(50), 0.5
end, step = time.time() + seconds, 0
while time.time() < end:
    p = 1 / (1 + np.exp(-X @ w))
    w -= learning_rate * X.T @ (p - y) / len(y)
    step += 1
    if step % 500 == 0:
        print(step, -np.mean(y * np.log(p + 1e-9) + (1 - y) * np.log(1 - p + 1e-9)))
