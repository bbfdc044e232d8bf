// Trains a small language model on your own text, with blocks of its own: an example of a client program.
//
//   own_text FILE [STEPS]
//
// Expected: the peak memory of two planned steps, a line every fifty steps, the validation loss on the last tenth of
// the text beside that of n-gram models, a generated sample, and the model in FILE.safetensors.
#include <cstdlib>
#include <exception>
#include <iostream>
#include <memory>
#include <string>

#include <poolgrad/poolgrad.h>

using namespace poolgrad;

/// A pre-norm block that mixes x with the first block's input, and adds an embedding of the tokens to its values.
struct ValueBlock : nn::Block {
  Tensor mix;
  nn::Embedding values;
  nn::RMSNorm norm1, norm2;
  attention::MultiheadAttention attention;
  nn::FeedForward feed_forward;

  ValueBlock(const nn::LanguageModelConfig& config, const nn::ParameterOptions& parameters,
             const attention::Pattern& pattern)
      : mix(constant_parameter("mix", {2}, 0.5, parameters)),
        values(config.vocabulary, config.width, 1.0, parameters),
        norm1(config.width, 1e-6, parameters),
        norm2(config.width, 1e-6, parameters),
        attention(config.width, config.heads,
                  attention::as_mixer({.layer_norm = false, .post_norm = false, .qk_norm = true}, config), parameters,
                  pattern),
        feed_forward(config.width, config.hidden_units(), {.kind = config.feed_forward, .bias = false}, parameters) {
    add_module("value_embedding", values);
    add_module("norm1", norm1);
    add_module("norm2", norm2);
    add_module("attention", attention);
    add_module("feed_forward", feed_forward);
  }
  Tensor forward(const Tensor& x, nn::BlockContext& context) override {
    const Tensor y = x * mix[{slice(0, 1)}] + context.x0 * mix[{slice(1, 2)}];
    const Tensor h = y + attention.forward(norm1(y), context.state, {.value_embedding = values(context.tokens)});
    return h + feed_forward(norm2(h));
  }
};

std::unique_ptr<nn::LanguageModel> make_model(Device device) {
  // Neighbors in the first branch, every fourth position of the whole context in the last.
  const auto pattern = attention::Pattern::dilated({128, 512, 2048}, {1, 2, 4}) & attention::Pattern::causal();
  const nn::BlockFactory block = [pattern](const auto& config, const auto& parameters, std::int64_t) {
    return std::make_unique<ValueBlock>(config, parameters, pattern);
  };
  return std::make_unique<nn::LanguageModel>(
      nn::LanguageModelConfig{
          .context = 2048, .layers = 2, .width = 64, .feed_forward = nn::FeedForwardKind::swiglu, .logit_softcap = 30},
      block, nn::ParameterOptions{.device = device});
}

int main(int argc, char** argv) {
  if (argc < 2) {
    std::cerr << "usage: ./run example own_text FILE [STEPS]\n";
    return 2;
  }
  try {
    const std::string path = argv[1];
    const nn::Corpus corpus = nn::read_corpus({path});
    const nn::TrainerOptions options{.steps = argc > 2 ? std::atoll(argv[2]) : 500};
    const Device plan{DeviceType::sim, 0};  // no bytes and no arithmetic, but the same requests
    configure_simulated_device(plan.index, std::size_t{64} << 30, "cpu");
    nn::Trainer planned(make_model(plan), corpus, options);
    for (int step = 0; step < 2; ++step) planned.step();
    std::cout << "peak memory of two steps: " << format_bytes(planned.pool().statistics().requested_bytes.peak) << '\n';

    nn::Trainer trainer(make_model(cpu), corpus, options);
    nn::train(trainer, std::cout, {.save = path + ".safetensors"});
    return 0;
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
}
