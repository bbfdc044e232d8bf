// Evaluates poolgrad's operators for operator_database.py, the other side of this protocol.
//
// Reads one JSON object a line: {"inputs": FILE, "outputs": FILE, "requests": [{"id", "call", "wanted", "weights"}]}. A
// call is ["name", argument...]. An argument is a call, a number, a bool, null (no tensor), {"t": name of a tensor in
// the file of inputs}, {"n": "inf"}, {"d": dtype} or {"l": list}. `wanted` are the tensors to differentiate by, and
// `weights` the gradients of the floating outputs. Writes "ID.y0", ... and "ID.g0", ... to the file of outputs, and one
// line with a JSON object that maps ids of failed requests to messages.
#include <cmath>
#include <functional>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "poolgrad.h"

using namespace poolgrad;
using json = nlohmann::json;

namespace {

using Tensors = std::vector<Tensor>;
using NamedTensors = std::map<std::string, Tensor>;
using Value = std::variant<Tensor, Tensors, double, std::vector<std::int64_t>, DType, bool>;
using Values = std::vector<Value>;

template <class T>
T as(const Value& value) {
  if constexpr (std::is_same_v<T, std::int64_t>) {
    return static_cast<std::int64_t>(std::get<double>(value));
  } else if constexpr (std::is_same_v<T, Shape>) {
    T result;
    if (const auto* list = std::get_if<std::vector<std::int64_t>>(&value)) {
      for (const std::int64_t number : *list) result.append(number);
    } else {
      result.append(as<std::int64_t>(value));
    }
    return result;
  } else if constexpr (std::is_same_v<T, Tensors>) {
    if (const auto* list = std::get_if<std::vector<std::int64_t>>(&value); list != nullptr && list->empty()) return {};
    return std::get<T>(value);
  } else {
    return std::get<T>(value);
  }
}

using Operator = std::function<Value(const Values&)>;

template <class R, class... A>
Operator adapted(std::function<R(A...)> f) {
  return [f](const Values& values) -> Value {
    if (values.size() != sizeof...(A)) throw ValueError("[operator_database] wrong number of arguments");
    return [&]<std::size_t... i>(std::index_sequence<i...>)->Value {
      return f(as<std::remove_cvref_t<A>>(values[i])...);
    }
    (std::index_sequence_for<A...>());
  };
}

/// An operator of two operands. Either operand may be a number.
template <class F>
Operator either(F f) {
  return [f](const Values& values) -> Value {
    const auto *a = std::get_if<double>(&values.at(0)), *b = std::get_if<double>(&values.at(1));
    if (a != nullptr) return f(*a, std::get<Tensor>(values[1]));
    if (b != nullptr) return f(std::get<Tensor>(values[0]), *b);
    return f(std::get<Tensor>(values[0]), std::get<Tensor>(values[1]));
  };
}

/// a; a number as a tensor like b.
Tensor number_or(const Tensor& a, const Value&) { return a; }
Tensor number_or(double a, const Tensor& b) { return scalar(a, {.dtype = b.dtype()}); }

Reduction reduction(std::int64_t code) {
  return code == 0 ? Reduction::none : code == 1 ? Reduction::mean : Reduction::sum;
}

#define ONE(name)                                                          \
  {                                                                        \
#name, adapted(std::function([](const Tensor& x) { return name(x); })) \
  }
#define TWO(name)                                                                              \
  {                                                                                            \
#name, adapted(std::function([](const Tensor& a, const Tensor& b) { return name(a, b); })) \
  }
#define EITHER(name, expression)                                          \
  {                                                                       \
    name, either([](const auto& a, const auto& b) { return expression; }) \
  }
#define REDUCE(name)                                                                                                \
  {                                                                                                                 \
#name, adapted(std::function([](const Tensor& x, const Dims& dims, bool keep) { return name(x, dims, keep); })) \
  }
#define ALONG(name)                                                                               \
  {                                                                                               \
#name, adapted(std::function([](const Tensor& x, std::int64_t dim) { return name(x, dim); })) \
  }
#define CALL(name, parameters, ...)                                     \
  {                                                                     \
    name, adapted(std::function([] parameters { return __VA_ARGS__; })) \
  }

const std::map<std::string, Operator>& operators() {
  using T = const Tensor&;
  using I = std::int64_t;
  using D = double;
  static const std::map<std::string, Operator> table = {
      ONE(neg),
      ONE(abs),
      ONE(sign),
      ONE(square),
      ONE(sqrt),
      ONE(rsqrt),
      ONE(reciprocal),
      ONE(exp),
      ONE(expm1),
      ONE(log),
      ONE(log1p),
      ONE(log2),
      ONE(log10),
      ONE(exp2),
      ONE(mish),
      ONE(sin),
      ONE(cos),
      ONE(tan),
      ONE(asin),
      ONE(acos),
      ONE(atan),
      ONE(sinh),
      ONE(cosh),
      ONE(tanh),
      ONE(sigmoid),
      ONE(erf),
      ONE(relu),
      ONE(silu),
      ONE(softplus),
      ONE(floor),
      ONE(ceil),
      ONE(round),
      ONE(isnan),
      ONE(isfinite),
      ONE(logical_not),
      ONE(contiguous),
      ONE(clone),
      ONE(zeros_like),
      ONE(ones_like),
      TWO(matmul),
      TWO(outer),
      TWO(atan2),
      TWO(logical_and),
      TWO(logical_or),
      EITHER("add", a + b),
      EITHER("sub", a - b),
      EITHER("mul", a * b),
      EITHER("div", a / b),
      EITHER("pow", pow(a, b)),
      EITHER("fmod", fmod(number_or(a, b), b)),
      EITHER("remainder", remainder(number_or(a, b), b)),
      EITHER("maximum", maximum(a, b)),
      EITHER("minimum", minimum(a, b)),
      EITHER("equal", a == b),
      EITHER("not_equal", a != b),
      EITHER("less", a < b),
      EITHER("less_equal", a <= b),
      EITHER("greater", a > b),
      EITHER("greater_equal", a >= b),
      REDUCE(sum),
      REDUCE(mean),
      REDUCE(prod),
      REDUCE(max),
      REDUCE(min),
      REDUCE(any),
      REDUCE(all),
      ALONG(softmax),
      ALONG(log_softmax),
      ALONG(cumsum),
      ALONG(cumprod),
      ALONG(logcumsumexp),
      ALONG(squeeze),
      ALONG(unsqueeze),
      CALL("affine", (T x, D a, D b), affine(x, a, b)),
      CALL("clamp", (T x, D a, D b), clamp(x, a, b)),
      CALL("clamp_by", (T x, T a, T b), clamp(x, a, b)),
      CALL("elu", (T x, D a), elu(x, a)),
      CALL("glu", (T x, I d), glu(x, d)),
      CALL("leaky_relu", (T x, D a), leaky_relu(x, a)),
      CALL("gelu", (T x, bool approximate), gelu(x, approximate ? GeluKind::tanh : GeluKind::exact)),
      CALL("var", (T x, Dims d, bool k, D c), var(x, d, k, c)),
      CALL("stddev", (T x, Dims d, bool k, D c), stddev(x, d, k, c)),
      CALL("norm", (T x, D p, Dims d, bool k), norm(x, p, d, k)),
      CALL("logsumexp", (T x, I d, bool k), logsumexp(x, d, k)),
      CALL("argmax", (T x, I d, bool k), argmax(x, d, k)),
      CALL("argmin", (T x, I d, bool k), argmin(x, d, k)),
      CALL("sort", (T x, I d, bool down),
           [](Sorted s) {
             return Tensors{s.values, s.indices};
           }(sort(x, d, down))),
      CALL("topk", (T x, I k, I d, bool big),
           [](Sorted s) {
             return Tensors{s.values, s.indices};
           }(topk(x, k, d, big))),
      CALL("reshape", (T x, Shape s), reshape(x, s)),
      CALL("flatten", (T x, I a, I b), flatten(x, a, b)),
      CALL("transpose", (T x, I a, I b), transpose(x, a, b)),
      CALL("permute", (T x, Dims d), permute(x, d)),
      CALL("movedim", (T x, Dims a, Dims b), movedim(x, a, b)),
      CALL("unbind", (T x, I d), unbind(x, d)),
      CALL("take_rows", (T x, T i), x[i]),
      CALL("slice", (T x, I d, I a, I b, I s), slice(x, d, a, b, s)),
      CALL("select", (T x, I d, I i), select(x, d, i)),
      CALL("expand", (T x, Shape s), expand(x, s)),
      CALL("split", (T x, Dims s, I d), split(x, std::vector<I>(s.begin(), s.end()), d)),
      CALL("chunk", (T x, I n, I d), chunk(x, n, d)),
      CALL("diagonal", (T x, I o, I a, I b), diagonal(x, o, a, b)),
      CALL("unfold", (T x, I d, I n, I s, I l), unfold(x, d, n, s, l)),
      CALL("to", (T x, DType t), to(x, t)),
      CALL("cat", (Tensors x, I d), cat(x, d)),
      CALL("stack", (Tensors x, I d), stack(x, d)),
      CALL("pad", (T x, I d, I a, I b, D v), pad(x, d, a, b, v)),
      CALL("tril", (T x, I o), tril(x, o)),
      CALL("triu", (T x, I o), triu(x, o)),
      CALL("diag", (T x, I o), diag(x, o)),
      CALL("roll", (T x, I n, I d), roll(x, n, d)),
      CALL("flip", (T x, Dims d), flip(x, d)),
      CALL("repeat", (T x, I n, I d), repeat(x, n, d)),
      CALL("tile", (T x, Dims n), tile(x, n)),
      CALL("index_select", (T x, I d, T i), index_select(x, d, i)),
      CALL("gather", (T x, I d, T i), gather(x, d, i)),
      CALL("index_add", (T x, I d, T i, T s), index_add(x, d, i, s)),
      CALL("scatter", (T x, I d, T i, T s), scatter(x, d, i, s)),
      CALL("scatter_add", (T x, I d, T i, T s), scatter_add(x, d, i, s)),
      CALL("scatter_reduce", (T x, I d, T i, T s, I r, bool self),
           scatter_reduce(x, d, i, s, static_cast<ScatterReduction>(r), self)),
      CALL("index_put", (T x, Tensors i, T v, bool add), index_put(x, i, v, add)),
      CALL("where", (T c, T a, T b), where(c, a, b)),
      CALL("masked_fill", (T x, T m, D v), masked_fill(x, m, v)),
      CALL("embedding", (T x, T i, I p), embedding(x, i, p)),
      CALL("linear", (T x, T w, T b), linear(x, w, b)),
      CALL("conv1d", (T x, T w, T b, I s, I p, I l, I g), conv1d(x, w, b, {s, p, l, g})),
      CALL("conv2d", (T x, T w, T b, Dims s, Dims p, Dims l, I g), conv2d(x, w, b, {s, p, l, g})),
      CALL("max_pool1d", (T x, I n, I s, I p), max_pool1d(x, n, s, p)),
      CALL("max_pool2d", (T x, Dims n, Dims s, Dims p), max_pool2d(x, n, s, p)),
      CALL("avg_pool1d", (T x, I n, I s, I p), avg_pool1d(x, n, s, p)),
      CALL("avg_pool2d", (T x, Dims n, Dims s, Dims p), avg_pool2d(x, n, s, p)),
      CALL("layer_norm", (T x, T w, T b, D e), layer_norm(x, w, b, e)),
      CALL("rms_norm", (T x, T w, D e), rms_norm(x, w, e)),
      CALL("cross_entropy", (T x, T t, I ignored, D s, I r), cross_entropy(x, t, {ignored, s, reduction(r)})),
      CALL("linear_cross_entropy", (T x, T w, T t, I ignored, D s, I r),
           linear_cross_entropy(x, w, t, {ignored, s, reduction(r)})),
      CALL("nll_loss", (T x, T t, I ignored, I r), nll_loss(x, t, {ignored, 0.0, reduction(r)})),
      CALL("binary_cross_entropy_with_logits", (T x, T t, I r), binary_cross_entropy_with_logits(x, t, reduction(r))),
      CALL("kl_div", (T x, T t, I r), kl_div(x, t, reduction(r))),
      CALL("mse_loss", (T a, T b, I r), mse_loss(a, b, reduction(r))),
      CALL("l1_loss", (T a, T b, I r), l1_loss(a, b, reduction(r))),
      CALL("huber_loss", (T a, T b, D d, I r), huber_loss(a, b, d, reduction(r))),
      CALL("full", (Shape s, D v, DType t), full(s, v, {.dtype = t})),
      CALL("eye", (I rows, I columns, DType t), eye(rows, columns, 0, {.dtype = t})),
      CALL("arange", (D a, D b, D s, DType t), arange(a, b, s, {.dtype = t})),
      CALL("linspace", (D a, D b, I n, DType t), linspace(a, b, n, {.dtype = t})),
      CALL("attend", (T q, T k, T v, bool causal, D scale, T bias),
           attention::attend(q, k, v, causal ? attention::Pattern::causal() : attention::Pattern::dense(),
                             {.scale = scale, .alignment = attention::Alignment::top_left, .bias = bias})
               .out),
  };
  return table;
}

class Evaluation {
 public:
  explicit Evaluation(const NamedTensors& inputs) : inputs_(inputs) {}

  Value operator()(const json& call) const {
    if (call.is_null()) return Tensor();
    if (call.is_boolean()) return call.get<bool>();
    if (call.is_number()) return call.get<double>();
    if (call.is_object()) return literal(call);
    const std::string name = call.at(0);
    Values arguments;
    for (std::size_t i = 1; i < call.size(); ++i) arguments.push_back((*this)(call[i]));
    if (name == "item")
      return std::get<Tensors>(arguments.at(0)).at(static_cast<std::size_t>(as<std::int64_t>(arguments.at(1))));
    if (name == "tuple") {
      Tensors all;
      for (const Value& value : arguments) all.push_back(std::get<Tensor>(value));
      return all;
    }
    return operators().at(name)(arguments);
  }

 private:
  Value literal(const json& object) const {
    if (object.contains("t")) return inputs_.at(object["t"]);
    if (object.contains("n")) return std::stod(object["n"].get<std::string>());
    if (object.contains("d")) {
      for (const DType dtype : {DType::f64, DType::f32, DType::f16, DType::bf16, DType::i64, DType::boolean})
        if (object["d"] == to_string(dtype)) return dtype;
      throw ValueError("[operator_database] unknown dtype");
    }
    if (object.contains("e"))
      return einsum(object["e"].get<std::string>(), std::get<Tensors>(literal(json{{"l", object["l"]}})));
    const json& list = object.at("l");
    if (!list.empty() && !list[0].is_number()) {
      Tensors tensors;
      for (const json& entry : list) tensors.push_back(std::get<Tensor>((*this)(entry)));
      return tensors;
    }
    return list.get<std::vector<std::int64_t>>();
  }

  const NamedTensors& inputs_;
};

void answer(const json& request, NamedTensors& inputs, SafetensorsFile& outputs) {
  const std::string id = request.at("id");
  Tensors wanted, seeds, roots;
  for (const json& name : request.at("wanted")) {
    Tensor& leaf = inputs.at(name);
    wanted.push_back(leaf = leaf.detach().set_requires_grad());
  }
  const Value value = Evaluation(inputs)(request.at("call"));
  const Tensors results =
      std::holds_alternative<Tensor>(value) ? Tensors{std::get<Tensor>(value)} : std::get<Tensors>(value);
  std::size_t floating = 0;
  for (std::size_t i = 0; i < results.size(); ++i) {
    if (!results[i].defined()) continue;  // the mapping leaves it out
    outputs.tensors.emplace_back(id + ".y" + std::to_string(i), results[i].detach().copy());
    if (!is_floating(results[i].dtype())) continue;
    const json& weights = request.at("weights");
    if (floating < weights.size() && results[i].requires_grad()) {
      roots.push_back(results[i]);
      seeds.push_back(to(inputs.at(weights[floating]), results[i].dtype()));
    }
    ++floating;
  }
  if (wanted.empty() || roots.empty()) return;
  const Tensors gradients = grad(roots, wanted, seeds, {}, /*allow_unused=*/true);
  for (std::size_t i = 0; i < gradients.size(); ++i)
    outputs.tensors.emplace_back(id + ".g" + std::to_string(i),
                                 (gradients[i].defined() ? gradients[i] : zeros_like(wanted[i])).copy());
}

}  // namespace

int main() {
  for (std::string line; std::getline(std::cin, line);) {
    const json batch = json::parse(line);
    NamedTensors inputs;
    for (const auto& [name, tensor] : load_safetensors(batch.at("inputs")).tensors) inputs.emplace(name, tensor);
    SafetensorsFile outputs;
    json refused = json::object();
    for (const json& request : batch.at("requests")) {
      try {
        answer(request, inputs, outputs);
      } catch (const std::exception& error) {
        refused[request.at("id").get<std::string>()] = error.what();
      }
    }
    save_safetensors(batch.at("outputs"), outputs);
    std::cout << refused.dump() << std::endl;
  }
}
