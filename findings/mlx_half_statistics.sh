#!/usr/bin/env bash
# MLX's mean, variance and cumulative sum of half types on the CPU. mean() of 70,000 ones in f16 is inf, and var() of
# 1,000 numbers from 300 to 400 too, as the sum is rounded to f16 before the division. sum() of bf16 ones is nearly right,
# cumsum() stops at 256. The guess was: all by f32 sums, as softmax is.
set -euo pipefail
. "$(dirname "$0")/python.sh"
python_with mlx==0.32.4 mlx-cpu==0.32.4
"$PYTHON" - <<'PYTHON'
import math
import sys

import mlx.core as mx

mx.set_default_device(mx.cpu)
ones = mx.ones((10000,), dtype=mx.bfloat16)
results = {"mean of 70,000 f16 ones": mx.mean(mx.ones((70000,), dtype=mx.float16)).item(),
           "variance of 300 ... 400 in f16": mx.var(mx.linspace(300, 400, 1000).astype(mx.float16)).item(),
           "sum of 10,000 bf16 ones": mx.sum(ones).item(),
           "last of their cumulative sum": mx.cumsum(ones)[-1].item()}
for name, result in results.items(): print(f"{name}: {result}")
sys.exit(list(results.values()) != [math.inf, math.inf, 9984.0, 256.0])
PYTHON
