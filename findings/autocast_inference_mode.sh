#!/usr/bin/env bash
# torch.autocast keeps the bf16 copy of a weight for its context, but only of one that requires a gradient, and never in
# torch.inference_mode(). There, or with frozen weights, ten calls cast the weight ten times; torch.no_grad() casts once.
set -euo pipefail
. "$(dirname "$0")/python.sh"
python_with torch==2.15.0
"$PYTHON" - 2>/dev/null <<'PYTHON'
import statistics
import sys
import time

import torch
from torch.profiler import ProfilerActivity, profile

torch.set_num_threads(1)
modes = {"enable_grad": torch.enable_grad, "no_grad": torch.no_grad, "inference_mode": torch.inference_mode}


def casts(frozen, mode):
    layer, x = torch.nn.Linear(256, 256, bias=False), torch.randn(1, 256)
    layer.weight.requires_grad_(not frozen)
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
        with modes[mode](), torch.autocast("cpu", torch.bfloat16):
            for _ in range(10):
                layer(x)
    return sum(event.count for event in profiler.key_averages(group_by_input_shape=True)
               if event.key == "aten::_to_copy" and event.input_shapes[0] == [256, 256])


def seconds(mode):
    layer, x = torch.nn.Linear(2048, 2048, bias=False), torch.randn(1, 2048)
    times = []
    for _ in range(7):
        begin = time.process_time()
        with modes[mode](), torch.autocast("cpu", torch.bfloat16):
            for _ in range(20):
                layer(x)
        times.append(time.process_time() - begin)
    return statistics.median(times)


counts = {(frozen, mode): casts(frozen, mode) for frozen in (False, True) for mode in modes}
for (frozen, mode), count in counts.items():
    print(f"{'frozen' if frozen else 'trained'} weight, {mode}: {count} casts in 10 calls")
print(f"20 products of 1 x 2048 by 2048 x 2048: inference_mode takes "
      f"{seconds('inference_mode') / seconds('no_grad'):.1f} times as long as no_grad")
expected = {key: 1 if key in ((False, "enable_grad"), (False, "no_grad")) else 10 for key in counts}
sys.exit(counts != expected)
PYTHON
