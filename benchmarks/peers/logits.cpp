// logits MODEL OUTPUT TOKEN...: writes the logits (1, T, vocabulary) of a model in f32 as `logits`. MODEL is a
// checkpoint of train --save, or a folder in Hugging Face's format. benchmarks/peers/models.py compares them with
// PyTorch's.
#include <exception>
#include <iostream>

#include "allocator/base/number.h"
#include "examples/support/train.h"
#include "tensor/creation.h"
#include "tensor/grad_mode.h"
#include "tensor/safetensors.h"

int main(int argc, char** argv) {
  using namespace poolgrad;
  if (argc < 4) return std::cerr << "usage: logits MODEL OUTPUT TOKEN...\n", 2;
  try {
    std::vector<std::int64_t> tokens;
    for (int i = 3; i < argc; ++i) tokens.push_back(number_in<std::int64_t>(argv[i]).value());
    const NoGradGuard no_grad;
    const examples::TrainedModel trained = examples::load_trained_model(argv[1], cpu);
    save_safetensors(argv[2], {{{"logits", trained.model->logits(from_data(tokens, {1, std::ssize(tokens)}))}}, {}});
  } catch (const std::exception& error) {
    return std::cerr << error.what() << "\n", 1;
  }
}
