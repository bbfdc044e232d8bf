// The page of a training run, written by --html.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "examples/support/console.h"
#include "examples/support/train.h"
#include "nn/training/trainer.h"

namespace poolgrad::examples {

/// The attention weights of a head on a text.
struct AttentionMap {
  std::int64_t block = 0, head = 0;
  std::vector<double> weights;  // row by row: the weight of each key position for each query position
  bool large = false;           // requested by name: drawn with its text
};

struct RunPage {
  const Json& config;  // "config" of the report
  const nn::TrainResult& result;
  bool finished = true;
  int reload = 0;                            // seconds until the page reloads itself; 0: never
  std::vector<std::string> map_tokens = {};  // the text of the maps
  std::vector<AttentionMap> maps = {};       // over these positions
};

/// The first tokens of `text`, at most 64.
std::vector<std::int64_t> map_tokens(nn::Trainer& trainer, const std::string& text);
/// Large maps of the chosen heads over these tokens, and small ones of all (in large models: of the first 8 heads of
/// the first 4 blocks). Empty if mixers have no weights, on a device without arithmetic, and without memory for them.
std::vector<AttentionMap> attention_maps(nn::Trainer& trainer, const std::vector<std::int64_t>& tokens,
                                         const std::vector<HeadName>& chosen = {});

/// One self-contained file.
std::string run_page_html(const RunPage& page);

/// Makes the run write the page to `options.html` at its end, and at each line with `options.live_page`.
void write_page_of_run(TrainOptions& options);

}  // namespace poolgrad::examples
