#!/usr/bin/env bash
# Hugging Face's gated delta rule by chunks: one position that forgets the state spoils the precision of the whole chunk.
# It takes decays from differences of cumulative sums, so a gate of -1e4 costs four digits, and -infinity gives NaN, at
# earlier positions too. The same library's step-by-step form is exact. The guess was: the error grows with the gate.
set -euo pipefail
. "$(dirname "$0")/python.sh"
python_with torch==2.15.0 transformers==5.24.0
"$PYTHON" - <<'PYTHON'
import sys

import torch
import transformers
from transformers.models.qwen3_next.modeling_qwen3_next import (torch_chunk_gated_delta_rule,
                                                                torch_recurrent_gated_delta_rule)

T, H, D, where = 64, 2, 32, 20
torch.manual_seed(0)
q, k = (torch.nn.functional.normalize(torch.randn(1, T, H, D, dtype=torch.float64), dim=-1) for _ in range(2))
v = torch.randn(1, T, H, D, dtype=torch.float64)
beta = torch.rand(1, T, H, dtype=torch.float64)
mild = -0.05 * torch.rand(1, T, H, dtype=torch.float64)


def definition(gate):
    state, out = torch.zeros(1, H, D, D, dtype=torch.float64), []
    for t in range(T):
        state = state * gate[:, t].exp()[..., None, None]
        u = beta[:, t, :, None] * (v[:, t] - torch.einsum("bhkv,bhk->bhv", state, k[:, t]))
        state = state + torch.einsum("bhk,bhv->bhkv", k[:, t], u)
        out.append(torch.einsum("bhkv,bhk->bhv", state, q[:, t]) * D**-0.5)
    return torch.stack(out, 1)


def error(function, gate):
    out = function(*[x.float() for x in (q, k, v, gate, beta)], initial_state=None, output_final_state=False)[0]
    right = definition(gate)
    return ((out.double() - right).norm() / right.norm()).item(), out[:, :where].isnan().sum().item()


errors = {}
for forgetting in (None, -100.0, -1e4, -1e6, -float("inf")):
    gate = mild.clone()
    if forgetting is not None: gate[:, where] = forgetting
    chunked, early = error(torch_chunk_gated_delta_rule, gate)
    stepwise, _ = error(torch_recurrent_gated_delta_rule, gate)
    errors[forgetting] = chunked, stepwise, early
    print(f"gate {forgetting}: by chunks {chunked:.1e} ({early} NaN before it), step by step {stepwise:.1e}")
by_chunks = {gate: error for gate, (error, _, _) in errors.items()}
sys.exit(not (by_chunks[None] < 1e-6 and 1e-6 < by_chunks[-100.0] < 1e-5 and 1e-4 < by_chunks[-1e4] < 1e-3
              and 1e-2 < by_chunks[-1e6] < 1e-1 and errors[-float("inf")][2] == where * H * D
              and all(stepwise < 1e-6 for _, stepwise, _ in errors.values())))
PYTHON
