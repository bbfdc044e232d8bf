"""Writes golden_yarn.inc: the YaRN frequencies of Hugging Face transformers, which computes them in float32.

Run in this folder: python3 golden_yarn.py > golden_yarn.inc
Each entry: base, factor, trained context, magnitude, the frequency of every pair.
"""

import transformers
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS


def main():
    print(f"// Made by golden_yarn.py with transformers {transformers.__version__}.")
    print("// clang-format off")
    for size, base, factor, context in [(32, 500.0, 8.0, 64), (64, 10000.0, 4.0, 4096), (128, 1e6, 2.5, 32768),
                                        (16, 10000.0, 16.0, 2048), (8, 100.0, 3.0, 7)]:
        config = transformers.LlamaConfig(
            hidden_size=4 * size, num_attention_heads=4, head_dim=size, max_position_embeddings=int(factor * context),
            rope_parameters={"rope_type": "yarn", "rope_theta": base, "factor": factor,
                             "original_max_position_embeddings": context})
        frequencies, magnitude = ROPE_INIT_FUNCTIONS["yarn"](config)
        numbers = ", ".join(repr(float(f)) for f in frequencies)
        print(f"{{{base}, {factor}, {context}, {magnitude!r},\n {{{numbers}}}}},")


main()
