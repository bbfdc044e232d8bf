#!/usr/bin/env bash
# PyTorch's AdamW with bf16 parameters: steps are rounded to bf16, so a parameter of 1.0 never moves at a learning rate
# of 1e-3. The fused form rounds otherwise: it moves at 1.5e-3, or with a weight decay of 0.5, where the loops stand still.
set -euo pipefail
. "$(dirname "$0")/python.sh"
python_with torch==2.15.0
"$PYTHON" - <<'PYTHON'
import sys
import warnings

warnings.simplefilter("ignore")
import torch

EXPECTED = {(1e-3, 0.0): (1.0, 1.0, 1.0), (1e-3, 0.5): (1.0, 1.0, 0.7734375), (1.5e-3, 0.0): (1.0, 1.0, -0.126953125)}
FORMS = {"for-loop": {"foreach": False}, "foreach": {"foreach": True}, "fused": {"fused": True}}
changed = 0
for (rate, decay), expected in EXPECTED.items():
    for (name, form), there in zip(FORMS.items(), expected):
        p = torch.nn.Parameter(torch.ones(64).bfloat16())
        optimizer = torch.optim.AdamW([p], lr=rate, weight_decay=decay, **form)
        for _ in range(1000):
            p.grad = torch.ones_like(p)
            optimizer.step()
        changed += p[0].item() != there
        print(f"rate {rate}, decay {decay}, {name:8}: 1.0 becomes {p[0].item()} in 1000 steps ({there} expected)")
sys.exit(changed > 0)
PYTHON
