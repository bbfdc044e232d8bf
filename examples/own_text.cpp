// Trains a small long-context model on your own text: an example of a client program.
//
//   own_text FILE [STEPS]
//
// Expected: a line every fifty steps, the validation loss on the last tenth of the text beside that of n-gram models, a
// generated sample, and the model in FILE.safetensors.
#include <cstdlib>
#include <exception>
#include <iostream>
#include <string>

#include <poolgrad/poolgrad.h>

int main(int argc, char** argv) {
  using namespace poolgrad;
  if (argc < 2) {
    std::cerr << "usage: ./run example own_text FILE [STEPS]\n";
    return 2;
  }
  try {
    const std::string path = argv[1];
    // Neighbors in the first branch, every fourth position of the whole context in the last.
    const auto pattern = attention::Pattern::dilated({128, 512, 2048}, {1, 2, 4}) & attention::Pattern::causal();
    nn::Trainer trainer(attention::make_language_model({.context = 2048, .layers = 2, .width = 64}, pattern),
                        nn::read_corpus({path}), {.steps = argc > 2 ? std::atoll(argv[2]) : 500});
    nn::train(trainer, std::cout, {.save = path + ".safetensors"});
    return 0;
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
}
