// The page of a training run: what --html writes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "examples/support/console.h"
#include "examples/support/train.h"
#include "nn/training/trainer.h"

namespace poolgrad::examples {

/// What a head looks at, in a text.
struct AttentionMap {
  std::int64_t block = 0, head = 0;
  std::vector<double> weights;  // row by row: how much of each position a position takes
  bool large = false;           // was asked for: with its text beside it
};

struct RunPage {
  const Json& config;  // "config" of the report
  const nn::TrainResult& result;
  bool finished = true;
  int reload = 0;                            // seconds until the page loads itself again; 0: never
  std::vector<std::string> map_tokens = {};  // the text of the maps
  std::vector<AttentionMap> maps = {};       // over as many positions
};

/// The first tokens of `text`, at most 64 of them.
std::vector<std::int64_t> map_tokens(nn::Trainer& trainer, const std::string& text);
/// Large maps of the chosen heads over these tokens, and small ones of all (of large models: of the first 8 of the
/// first 4 blocks). None where mixers do not say their weights, on a device without arithmetic, and where there is no
/// memory.
std::vector<AttentionMap> attention_maps(nn::Trainer& trainer, const std::vector<std::int64_t>& tokens,
                                         const std::vector<HeadName>& chosen = {});

/// One file that refers to nothing outside itself.
std::string run_page_html(const RunPage& page);

/// Writes the page of the run as it stands, whole or not at all: a reader never sees half of it. Throws FileError.
void write_run_page(const std::string& path, const Json& config, nn::Trainer& trainer, nn::TrainResult& result,
                    bool finished, bool live);

}  // namespace poolgrad::examples
