#!/usr/bin/env bash
# PyTorch's flash attention on the CPU: a NaN in the value of the last position, which a causal mask hides from all
# other rows, poisons every row of its tile of 512 keys; with the math backend every row. A NaN in its key poisons one
# row with flash attention and every row with the math backend.
set -euo pipefail
. "$(dirname "$0")/python.sh"
python_with torch==2.15.0
"$PYTHON" - <<'PYTHON'
import sys
import warnings

warnings.simplefilter("ignore")
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

torch.manual_seed(0)
EXPECTED = {(SDPBackend.FLASH_ATTENTION, "value"): 512, (SDPBackend.FLASH_ATTENTION, "key"): 1,
            (SDPBackend.MATH, "value"): 2048, (SDPBackend.MATH, "key"): 2048}
changed = 0
for (backend, place), expected in EXPECTED.items():
    q, k, v = (torch.randn(1, 1, 2048, 32) for _ in range(3))
    (v if place == "value" else k)[0, 0, -1] = float("nan")
    with sdpa_kernel([backend]):
        rows = scaled_dot_product_attention(q, k, v, is_causal=True).isnan().any(-1).sum().item()
    changed += rows != expected
    print(f"{backend.name:16} NaN in the last {place:5}: {rows} of 2048 rows are NaN (1 sees it; {expected} expected)")
sys.exit(changed > 0)
PYTHON
