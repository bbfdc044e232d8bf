// A LlamaForCausalLM with random weights: its folder in Hugging Face's format, and its logits by their definition.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "autograd/operators.h"
#include "tensor/creation.h"
#include "tensor/safetensors.h"

namespace poolgrad {

struct Llama {
  std::int64_t vocabulary = 19, width = 24, layers = 2, heads = 4, kv_heads = 2, hidden = 10, context = 64;
  double epsilon = 1e-3, base = 500, factor = 1;
  bool tied = false;
  DType dtype = DType::f32;
  std::map<std::string, Tensor> weights = {};

  void draw(std::uint64_t seed) {
    Generator generator(seed);
    const auto add = [&](const std::string& name, const Shape& shape, double mean, double deviation) {
      weights[name] = to(randn(shape, {.dtype = DType::f64}, generator) * deviation + mean, dtype);
    };
    const std::int64_t keys = width / heads * kv_heads;
    add("model.embed_tokens.weight", {vocabulary, width}, 0, 1);
    for (std::int64_t i = 0; i < layers; ++i) {
      const std::string layer = "model.layers." + std::to_string(i) + ".";
      add(layer + "input_layernorm.weight", {width}, 1, 0.2);
      add(layer + "self_attn.q_proj.weight", {width, width}, 0, 0.4);
      add(layer + "self_attn.k_proj.weight", {keys, width}, 0, 0.4);
      add(layer + "self_attn.v_proj.weight", {keys, width}, 0, 0.4);
      add(layer + "self_attn.o_proj.weight", {width, width}, 0, 0.4);
      add(layer + "post_attention_layernorm.weight", {width}, 1, 0.2);
      add(layer + "mlp.gate_proj.weight", {hidden, width}, 0, 0.4);
      add(layer + "mlp.up_proj.weight", {hidden, width}, 0, 0.4);
      add(layer + "mlp.down_proj.weight", {width, hidden}, 0, 0.4);
    }
    add("model.norm.weight", {width}, 1, 0.2);
    if (!tied) add("lm_head.weight", {vocabulary, width}, 0, 0.4);
  }

  std::string config() const {
    const auto pair = [](const std::string& key, const std::string& value) { return "\"" + key + "\": " + value; };
    std::string text = "{" + pair("architectures", "[\"LlamaForCausalLM\"]") + ", " + pair("model_type", "\"llama\"");
    const std::pair<const char*, std::int64_t> sizes[] = {
        {"vocab_size", vocabulary},          {"hidden_size", width},
        {"num_hidden_layers", layers},       {"num_attention_heads", heads},
        {"num_key_value_heads", kv_heads},   {"intermediate_size", hidden},
        {"max_position_embeddings", context}};
    for (const auto& [key, value] : sizes) text += ",\n" + pair(key, std::to_string(value));
    text += ",\n" + pair("rms_norm_eps", std::to_string(epsilon)) + ", " + pair("hidden_act", "\"silu\"");
    text += ",\n" + pair("tie_word_embeddings", tied ? "true" : "false") + ", " + pair("attention_bias", "false");
    text += ",\n" + pair("rope_theta", std::to_string(base)) + ", " +
            pair("rope_scaling",
                 factor == 1 ? "null"
                             : "{" + pair("type", "\"linear\"") + ", " + pair("factor", std::to_string(factor)) + "}");
    return text + "}";
  }

  /// Writes the folder. Several shards take the tensors in turn.
  void write(const std::string& folder, int shards = 1) const {
    std::filesystem::create_directories(folder);
    std::ofstream(folder + "/config.json") << config();
    std::vector<SafetensorsFile> files(static_cast<std::size_t>(shards));
    std::string map;
    std::size_t next = 0;
    for (const auto& [name, tensor] : weights) {
      const std::size_t shard = next++ % files.size();
      files[shard].tensors.emplace_back(name, tensor);
      map += (map.empty() ? "" : ", ") + ("\"" + name + "\": \"" + shard_name(shard, files.size()) + "\"");
    }
    for (std::size_t i = 0; i < files.size(); ++i)
      save_safetensors(folder + "/" + shard_name(i, files.size()), files[i]);
    if (shards > 1)
      std::ofstream(folder + "/model.safetensors.index.json")
          << R"({"metadata": {"total_size": 1}, "weight_map": {)" << map << "}}";
  }
  static std::string shard_name(std::size_t shard, std::size_t shards) {
    return shards == 1 ? "model.safetensors" : "model-" + std::to_string(shard + 1) + ".safetensors";
  }

  /// Returns the logits (T, vocabulary) of tokens, number by number in f64 (Touvron et al. 2023).
  std::vector<double> logits(const std::vector<std::int64_t>& tokens) const {
    using Numbers = std::vector<double>;
    const auto numbers_of = [&](const std::string& name) {
      return to(weights.at(name), DType::f64).to_vector<double>();
    };
    const auto product = [](const Numbers& matrix, const Numbers& x) {  // matrix (n, |x|)
      Numbers y(matrix.size() / x.size());
      for (std::size_t i = 0; i < y.size(); ++i)
        for (std::size_t j = 0; j < x.size(); ++j) y[i] += matrix[i * x.size() + j] * x[j];
      return y;
    };
    const auto normed = [&](const Numbers& x, const Numbers& weight) {
      double squares = 0;
      for (const double value : x) squares += value * value;
      Numbers y(x.size());
      for (std::size_t i = 0; i < x.size(); ++i)
        y[i] = x[i] / std::sqrt(squares / static_cast<double>(x.size()) + epsilon) * weight[i];
      return y;
    };
    const auto size = static_cast<std::size_t>(width), head_dim = static_cast<std::size_t>(width / heads);
    const auto turned = [&](Numbers x, std::size_t position) {  // rotate_half() of every head
      for (std::size_t head = 0; head < x.size(); head += head_dim)
        for (std::size_t d = 0; d < head_dim / 2; ++d) {
          const double angle = static_cast<double>(position) / factor *
                               std::pow(base, -2.0 * static_cast<double>(d) / static_cast<double>(head_dim));
          const double left = x[head + d], right = x[head + d + head_dim / 2];
          x[head + d] = left * std::cos(angle) - right * std::sin(angle);
          x[head + d + head_dim / 2] = right * std::cos(angle) + left * std::sin(angle);
        }
      return x;
    };
    const Numbers embedding = numbers_of("model.embed_tokens.weight");
    std::vector<Numbers> x;
    for (const std::int64_t token : tokens) {
      const auto row = embedding.begin() + token * width;
      x.emplace_back(row, row + width);
    }
    for (std::int64_t i = 0; i < layers; ++i) {
      const auto weight = [&](const std::string& name) {
        return numbers_of("model.layers." + std::to_string(i) + "." + name + ".weight");
      };
      std::vector<Numbers> keys, values;
      for (std::size_t t = 0; t < x.size(); ++t) {
        const Numbers in = normed(x[t], weight("input_layernorm"));
        keys.push_back(turned(product(weight("self_attn.k_proj"), in), t));
        values.push_back(product(weight("self_attn.v_proj"), in));
        const Numbers query = turned(product(weight("self_attn.q_proj"), in), t);
        Numbers mixed(size);
        for (std::size_t head = 0; head < static_cast<std::size_t>(heads); ++head) {
          const std::size_t of_query = head * head_dim,
                            of_key = head / static_cast<std::size_t>(heads / kv_heads) * head_dim;
          Numbers scores;
          for (std::size_t s = 0; s <= t; ++s) {
            double score = 0;
            for (std::size_t d = 0; d < head_dim; ++d) score += query[of_query + d] * keys[s][of_key + d];
            scores.push_back(score / std::sqrt(static_cast<double>(head_dim)));
          }
          const double most = *std::max_element(scores.begin(), scores.end());
          double sum = 0;
          for (double& score : scores) sum += score = std::exp(score - most);
          for (std::size_t s = 0; s <= t; ++s)
            for (std::size_t d = 0; d < head_dim; ++d) mixed[of_query + d] += scores[s] / sum * values[s][of_key + d];
        }
        const Numbers added = product(weight("self_attn.o_proj"), mixed);
        for (std::size_t d = 0; d < size; ++d) x[t][d] += added[d];
      }
      for (Numbers& row : x) {
        const Numbers in = normed(row, weight("post_attention_layernorm"));
        const Numbers gate = product(weight("mlp.gate_proj"), in);
        Numbers up = product(weight("mlp.up_proj"), in);
        for (std::size_t j = 0; j < up.size(); ++j) up[j] *= gate[j] / (1 + std::exp(-gate[j]));
        const Numbers added = product(weight("mlp.down_proj"), up);
        for (std::size_t d = 0; d < size; ++d) row[d] += added[d];
      }
    }
    const Numbers head = tied ? embedding : numbers_of("lm_head.weight");
    Numbers result;
    for (const Numbers& row : x) {
      const Numbers of_row = product(head, normed(row, numbers_of("model.norm.weight")));
      result.insert(result.end(), of_row.begin(), of_row.end());
    }
    return result;
  }
};

}  // namespace poolgrad
