#include "allocator/replay/zoo/zoo.h"

#include <array>

#include "allocator/error.h"
#include "allocator/replay/zoo/generators.h"

namespace poolgrad {

namespace {

struct Kind {
  ZooEntry entry;
  void (*generate)(WorkloadBuilder&);
};

constexpr std::array<Kind, 15> kinds = {{
    {{"transformer", "steps of a transformer of 1.3 billion parameters, one batch size"}, zoo::transformer},
    {{"alternating-batches", "batch sizes from 3 to 8 in turn"}, zoo::alternating_batches},
    {{"variable-lengths", "sequence lengths from 96 to 2048 at random"}, zoo::variable_lengths},
    {{"checkpointing", "layers are run again in backward"}, zoo::checkpointing},
    {{"optimizer-start", "states appear after the first step; gradients accumulate over micro-batches"},
     zoo::optimizer_start},
    {{"evaluation", "larger batches without gradients and text generation between training steps"}, zoo::evaluation},
    {{"example-training", "the model of examples/train"}, zoo::example_training},
    {{"dilated-segments", "gathered segments of five dilations at random lengths"}, zoo::dilated_segments},
    {{"ring-attention", "keys and values travel on a second stream"}, zoo::ring_attention},
    {{"mixture-of-experts", "experts get another number of tokens each time"}, zoo::mixture_of_experts},
    {{"two-streams", "gradients are reduced on a second stream during backward"}, zoo::two_streams},
    {{"growing-cache", "caches of inference that are allocated anew with every token"}, zoo::growing_cache},
    {{"paged-cache", "pages of a cache for requests that come and go"}, zoo::paged_cache},
    {{"checkerboard", "every other block goes, then larger ones are asked for"}, zoo::checkerboard},
    {{"workspace-search", "the first step tries workspaces of all sizes"}, zoo::workspace_search},
}};

}  // namespace

const std::vector<ZooEntry>& trace_zoo() {
  static const std::vector<ZooEntry> entries = [] {
    std::vector<ZooEntry> result;
    for (const Kind& kind : kinds) result.push_back(kind.entry);
    return result;
  }();
  return entries;
}

Workload zoo_workload(std::string_view name) {
  std::string known;
  for (const Kind& kind : kinds) {
    if (kind.entry.name == name) {
      WorkloadBuilder out;
      kind.generate(out);
      return out.take(name, kind.entry.description);
    }
    known += (known.empty() ? "" : ", ") + std::string(kind.entry.name);
  }
  throw ValueError("[zoo_workload] unknown workload '" + std::string(name) + "'; known workloads: " + known);
}

}  // namespace poolgrad
