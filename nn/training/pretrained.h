// Weights of other programs: safetensors files whose names rules map, and folders in Hugging Face's format.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "autograd/operators/rows.h"
#include "nn/language_model.h"

namespace poolgrad::nn {

/// The tensors of a model that a file filled, and those without an equal on the other side.
struct StartingWeights {
  struct Left {
    std::string name;
    std::string here, there;  // "(256, 128) f32"; "" if that side has no such tensor
  };
  std::int64_t taken = 0;
  std::vector<Left> left = {};  // first of the model, then of the file alone
};

/// Fills tensors of a model from a safetensors file or a folder. A folder has model.safetensors, or an index
/// model.safetensors.index.json and its shards. A line of `rules` makes a tensor of the model from tensors of the file.
/// `*` stands for a number, the same one in each name:
///
///   head.weight = lm_head.weight                           # a comment
///   block*.up.weight = h.*.mlp.c_fc.weight^T               transposed: two dimensions
///   block*.qkv.weight = h.*.q.weight + h.*.k.weight        one after another in dimension 0
///   gate.weight = gate_up.weight[0/2]                      the first of two equal parts of dimension 0
///
/// Casts floating dtypes, one tensor at a time. Other tensors of the model keep their values. Returns the missing and
/// the unused tensors. `complete` refuses a tensor that is missing, and one that a rule makes and the model lacks.
/// Throws ValueError for a malformed rule. Throws FileError for a malformed file, for a tensor of another shape or of a
/// dtype that poolgrad lacks, and for a rule with some of its names missing. Then nothing has changed, unless the disk
/// failed during the read.
StartingWeights import_weights(const std::string& path, std::string_view rules, Module& model, bool complete = false,
                               CallSite = {});
/// Throws FileError for a folder in Hugging Face's format with other tensors than the whole model. Reads none. `make`
/// gets the number of tensors in the folder.
void check_import(const std::string& folder, const std::function<std::unique_ptr<Module>(std::int64_t tensors)>& make);
/// The rules for LlamaForCausalLM as an nn::LanguageModel with attention.
extern const std::string_view llama_rules;

/// The model of a folder in Hugging Face's format, without its pattern of attention, which is causal.
struct PretrainedConfig {
  LanguageModelConfig model;
  RopeOptions rope;
  std::string_view rules;  // of import_weights() for the whole model
};
/// Whether `path` is a folder.
bool is_pretrained_folder(const std::string& path);
/// Reads config.json of a LlamaForCausalLM: RMSNorm, rotary positions (plain or linear), grouped keys and values,
/// SwiGLU, no biases. Throws FileError, one sentence with the key.
PretrainedConfig read_pretrained_config(const std::string& folder, CallSite = {});

}  // namespace poolgrad::nn
