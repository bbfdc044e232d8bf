"""Writes golden_operators.inc: results and gradients of operators, computed by PyTorch in float64.

Run in this folder: python3 golden_operators.py > golden_operators.inc
Each entry: name in the operator table, inputs, weight of the sum that is differentiated, output, gradients of the
floating inputs. Definitions that PyTorch lacks (rope) are written out here.
"""

import torch
import torch.nn.functional as F

torch.manual_seed(20)
torch.set_default_dtype(torch.float64)


def numbers(tensor):
    return "{" + ", ".join(repr(float(v)) for v in tensor.detach().reshape(-1)) + "}"


def array(tensor):
    integer = "true" if tensor.dtype == torch.int64 else "false"
    return "{{" + ", ".join(str(s) for s in tensor.shape) + "}, " + numbers(tensor) + ", " + integer + "}"


def emit(name, function, *inputs):
    leaves = [x.clone().requires_grad_() if x.is_floating_point() else x for x in inputs]
    output = function(*leaves)
    weight = torch.randint(-8, 9, output.shape) * 0.25
    wanted = [x for x in leaves if x.is_floating_point()]
    gradients = torch.autograd.grad((output * weight).sum(), wanted)
    print(f'{{"{name}",')
    print(" {" + ",\n  ".join(array(x) for x in inputs) + "},")
    print(f" {array(weight)},")
    print(f" {array(output)},")
    print(" {" + ",\n  ".join(array(g) for g in gradients) + "}},")


def rope(x, position, base):
    half = x.shape[-1] // 2
    t = torch.arange(x.shape[1]) + position
    angle = t[:, None] * base ** (-2.0 * torch.arange(half) / x.shape[-1])
    cos, sin = torch.cos(angle)[:, None, :], torch.sin(angle)[:, None, :]
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)


def unary_points():
    return torch.cat([torch.randn(6), torch.tensor([0.0, 1.0, -1.0, 5.0, -5.0])])


def main():
    print("// Made by golden_operators.py with PyTorch " + torch.__version__ + " in float64.")
    print("// clang-format off")
    for name, function in [
        ("exp", torch.exp), ("expm1", torch.expm1), ("sin", torch.sin), ("cos", torch.cos), ("tanh", torch.tanh),
        ("sigmoid", torch.sigmoid), ("erf", torch.erf), ("relu", F.relu), ("gelu", F.gelu),
        ("gelu_tanh", lambda x: F.gelu(x, approximate="tanh")), ("silu", F.silu), ("softplus", F.softplus),
        ("leaky_relu", lambda x: F.leaky_relu(x, 0.125)), ("clamp", lambda x: x.clamp(-0.6, 1.4)),
        ("floor", torch.floor), ("ceil", torch.ceil), ("round", torch.round), ("abs", torch.abs), ("sign", torch.sign),
        ("square", torch.square), ("cube", lambda x: x**3), ("neg", torch.neg),
        ("affine", lambda x: 2.5 * x - 0.75),
    ]:
        emit(name, function, unary_points())
    positive = torch.rand(5) * 4 + 0.1
    for name, function in [("sqrt", torch.sqrt), ("rsqrt", torch.rsqrt), ("log", torch.log), ("log1p", torch.log1p),
                           ("reciprocal", torch.reciprocal)]:
        emit(name, function, positive)

    a, b = torch.randn(2, 1, 3), torch.randn(4, 1)
    for name, function in [("add", torch.add), ("sub", torch.sub), ("mul", torch.mul), ("maximum", torch.maximum),
                           ("minimum", torch.minimum)]:
        emit(name, function, a, b)
    emit("div", torch.div, a, b.abs() + 0.5)
    emit("pow", torch.pow, a.abs() + 0.1, b)
    emit("maximum", torch.maximum, torch.tensor([1.0, 2.0]), torch.tensor([1.0, 3.0]))  # a tie
    emit("silu_mul", lambda g, u: F.silu(g) * u, torch.randn(3, 5), torch.randn(3, 5))

    emit("matmul", torch.matmul, torch.randn(3, 4), torch.randn(4, 5))
    emit("matmul", torch.matmul, torch.randn(2, 1, 3, 4), torch.randn(5, 4, 2))
    emit("matmul", torch.matmul, torch.randn(4), torch.randn(2, 4, 3))
    emit("linear", F.linear, torch.randn(2, 3, 4), torch.randn(5, 4), torch.randn(5))

    x = torch.randn(2, 3, 5)
    emit("sum of columns", lambda v: v.sum(0), x)
    emit("mean of rows", lambda v: v.mean(-1, keepdim=True), x)
    emit("var", lambda v: v.var(-1), x)
    emit("prod", torch.prod, torch.tensor([1.5, 0.0, -2.0, 3.0]))
    emit("max", torch.amax, torch.tensor([1.0, 3.0, 3.0, 2.0]))  # a tie
    emit("logsumexp", lambda v: v.logsumexp(-1), x)
    emit("cumsum of columns", lambda v: v.cumsum(0), x)
    emit("norm", torch.norm, x)
    emit("softmax", lambda v: v.softmax(-1), x)
    emit("softmax of columns", lambda v: v.softmax(0), x)
    emit("log_softmax", lambda v: v.log_softmax(-1), x)
    emit("layer_norm", lambda v, w, b: F.layer_norm(v, (5,), w, b, 1e-3), x, torch.randn(5), torch.randn(5))
    emit("rms_norm", lambda v, w: v * torch.rsqrt(v.square().mean(-1, keepdim=True) + 1e-3) * w, x, torch.randn(5))

    logits, targets = torch.randn(6, 5), torch.tensor([0, 3, 2, 2, 4, 1])
    emit("cross_entropy", F.cross_entropy, logits, targets)
    emit("cross_entropy, sum", lambda l, t: F.cross_entropy(l, t, reduction="sum"), logits, targets)
    emit("cross_entropy, none", lambda l, t: F.cross_entropy(l, t, reduction="none"), logits, targets)
    emit("cross_entropy, ignoring", lambda l, t: F.cross_entropy(l, t, ignore_index=2), logits, targets)
    emit("cross_entropy, smoothed", lambda l, t: F.cross_entropy(l, t, ignore_index=3, label_smoothing=0.25), logits,
         targets)
    emit("linear_cross_entropy, smoothed",
         lambda v, w, t: F.cross_entropy(v @ w.T, t, ignore_index=3, label_smoothing=0.25), torch.randn(6, 3),
         torch.randn(5, 3), targets)
    emit("mse_loss", F.mse_loss, torch.randn(3, 5), torch.randn(3, 5))
    emit("rope", lambda v: rope(v, 3, 100.0), torch.randn(2, 3, 2, 4))

    emit("embedding", lambda t, i: F.embedding(i, t), torch.randn(5, 3), torch.tensor([[4, 0], [4, 2]]))
    index = torch.tensor([[0, 3, 3], [1, 1, 2]])
    emit("gather", lambda v, i: v.gather(1, i), torch.randn(2, 4), index)
    emit("scatter_add", lambda v, i, s: v.scatter_add(0, i, s), torch.randn(4, 3), index, torch.randn(2, 3))
    emit("index_select", lambda v, i: v.index_select(0, i), torch.randn(4, 3), torch.tensor([2, 0, 2]))
    emit("slice", lambda v: v[:, 1:6:2], torch.randn(2, 7))
    emit("pad", lambda v: F.pad(v, (0, 0, 2, 1), value=0.5), torch.randn(3, 2))
    emit("cat of rows", lambda p, q: torch.cat([p, q]), torch.randn(2, 3), torch.randn(1, 3))

    for name, function in [("exp2", torch.exp2), ("mish", F.mish), ("elu", lambda x: F.elu(x, 1.5))]:
        emit(name, function, unary_points())
    emit("log10", torch.log10, positive)
    a, b = torch.randn(2, 1, 3), torch.randn(4, 1)
    for name, function in [("atan2", torch.atan2), ("fmod", torch.fmod), ("remainder", torch.remainder)]:
        emit(name, function, a, b)
    emit("atan2", torch.atan2, torch.tensor([0.0, 0.0, 1.0]), torch.tensor([0.0, -1.0, 0.0]))
    emit("clamp by tensors", torch.clamp, torch.tensor([1.0, 2.0, 3.0, 5.0]), torch.tensor([1.0, 1.0, 1.0, 6.0]),
         torch.tensor([2.0, 2.0, 2.0, 4.0]))  # ties, and bounds in the wrong order
    emit("glu", lambda v: F.glu(v, 1), torch.randn(3, 4))
    emit("movedim", lambda v: v.movedim((0, -1), (1, 0)), torch.randn(2, 3, 4))
    emit("index tensor", lambda v, i: v[i], torch.randn(4, 3), torch.tensor([2, -1, 0, 2]))
    emit("index_put, accumulated", lambda v, i, j, s: v.index_put((i, j), s, accumulate=True), torch.randn(4, 3),
         torch.tensor([[0], [3]]), torch.tensor([0, 2, 0]), torch.randn(2, 3))
    index = torch.tensor([[0, 3, 3], [1, 3, 2], [0, 1, 1]])
    for name, how, include_self in [("sum of the others", "sum", False), ("mean", "mean", True),
                                    ("mean of the others", "mean", False), ("amax", "amax", True), ("prod", "prod", True),
                                    ("prod of the others", "prod", False)]:
        emit("scatter_reduce, " + name,
             lambda v, i, s: v.scatter_reduce(0, i, s, how, include_self=include_self), torch.randn(4, 3), index,
             torch.randn(3, 3))


main()
