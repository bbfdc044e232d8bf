#!/usr/bin/env bash
# torch.optim.Muon: by default the step of a matrix (256, 64) is scaled by sqrt(max(1, rows / columns)) = 2 and the
# weights decay by 0.1. With adjust_lr_fn="match_rms_adamw" the scale is 0.2 sqrt(max(rows, columns)) = 3.2.
set -euo pipefail
. "$(dirname "$0")/python.sh"
python_with torch==2.15.0
"$PYTHON" - <<'PYTHON'
import sys
import warnings

warnings.simplefilter("ignore")
import torch

torch.manual_seed(0)
gradient, moves = torch.randn(256, 64), {}
for name in ("original", "match_rms_adamw", None):
    p = torch.nn.Parameter(torch.zeros(256, 64))
    optimizer = torch.optim.Muon([p], lr=1.0, adjust_lr_fn=name)
    p.grad = gradient.clone()
    optimizer.step()
    moves[name] = p.norm().item()
ratio, decay = moves["match_rms_adamw"] / moves["original"], optimizer.param_groups[0]["weight_decay"]
print(f"match_rms_adamw moves {ratio:.4f} times as far as original (1.6 expected); the default is original: "
      f"{moves[None] == moves['original']}; weight decay {decay} (0.1 expected)")
sys.exit(abs(ratio - 1.6) > 1e-3 or decay != 0.1 or moves[None] != moves["original"])
PYTHON
