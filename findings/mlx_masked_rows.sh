#!/usr/bin/env bash
# MLX's attention on the CPU, for a row without a key to see: a boolean mask gives the mean of all values, hidden ones
# included; the same mask as -infinity to add gives NaN; mask="causal" with more queries than keys gives the mean too.
# The guess was: NaN for all three.
set -euo pipefail
. "$(dirname "$0")/python.sh"
python_with mlx==0.32.4 mlx-cpu==0.32.4
"$PYTHON" - <<'PYTHON'
import math
import sys

import mlx.core as mx

mx.set_default_device(mx.cpu)
mx.random.seed(0)
q, k, v = (mx.random.normal((1, 1, 4, 8)) for _ in range(3))
attention = mx.fast.scaled_dot_product_attention
seen = mx.array([[False] * 4] + [[column < row for column in range(4)] for row in range(1, 4)])
as_bool = attention(q, k, v, scale=0.35, mask=seen)[0, 0, 0]
as_sum = attention(q, k, v, scale=0.35, mask=mx.where(seen, 0.0, -math.inf))[0, 0, 0]
causal = attention(mx.random.normal((1, 1, 6, 8)), k, v, scale=0.35, mask="causal")[0, 0, 0]
mean = mx.mean(v[0, 0], axis=0)
near = lambda x: mx.allclose(x, mean, atol=1e-5).item()
print("boolean mask: the mean of all values:", near(as_bool))
print("mask of -infinity: NaN:", mx.all(mx.isnan(as_sum)).item())
print("causal, 6 queries, 4 keys, row 0: the mean of all values:", near(causal))
sys.exit(not (near(as_bool) and mx.all(mx.isnan(as_sum)).item() and near(causal)))
PYTHON
