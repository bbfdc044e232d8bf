#!/usr/bin/env bash
# PyTorch's hardsigmoid in f64 on the CPU: its gradient between -3 and 3 is not 1/6 in f64, but the f32 number next to it.
set -euo pipefail
. "$(dirname "$0")/python.sh"
python_with torch==2.15.0
"$PYTHON" - <<'PYTHON'
import struct
import sys
import warnings

warnings.simplefilter("ignore")
import torch

x = torch.zeros(1, dtype=torch.float64, requires_grad=True)
torch.nn.functional.hardsigmoid(x).backward()
found, in_f32 = x.grad.item(), struct.unpack("f", struct.pack("f", 1 / 6))[0]
print(f"gradient {found!r}, 1/6 in f64 {1 / 6!r}, 1/6 in f32 {in_f32!r}")
sys.exit(found != in_f32)
PYTHON
