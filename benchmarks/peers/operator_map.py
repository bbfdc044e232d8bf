"""PyTorch's operators written with poolgrad's: MAP has a function for each name of PyTorch's operator database.

A function takes a sample's arguments, tensors as E, and returns the expression that operator_database.cpp evaluates.
It raises Unmapped for a sample with an option that poolgrad lacks."""
import math

import torch

DTYPES = {torch.float64: "f64", torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16",
          torch.int64: "i64", torch.bool: "bool"}
REDUCTION = {"none": 0, "mean": 1, "sum": 2}
inf = math.inf


class Unmapped(Exception):
    """The sample needs an option that poolgrad lacks."""


class E:
    """An expression of poolgrad's operators. Operands of the sample have a shape."""

    def __init__(self, call, tensor=None):
        self.call, self.tensor = call, tensor
        if tensor is not None:
            self.shape, self.ndim, self.dtype = list(tensor.shape), tensor.ndim, tensor.dtype

    def __add__(self, other): return P.add(self, other)
    def __radd__(self, other): return P.add(other, self)
    def __sub__(self, other): return P.sub(self, other)
    def __rsub__(self, other): return P.sub(other, self)
    def __mul__(self, other): return P.mul(self, other)
    def __rmul__(self, other): return P.mul(other, self)
    def __truediv__(self, other): return P.div(self, other)
    def __rtruediv__(self, other): return P.div(other, self)
    def __neg__(self): return P.neg(self)


def encoded(value):
    if isinstance(value, E): return value.call
    if value is None or isinstance(value, bool): return value
    if isinstance(value, torch.dtype):
        if value not in DTYPES: raise Unmapped(f"dtype {value}")
        return {"d": DTYPES[value]}
    if isinstance(value, (int, float)): return value if math.isfinite(value) else {"n": str(value)}
    if isinstance(value, (list, tuple)): return {"l": [encoded(entry) for entry in value]}
    raise Unmapped(f"{type(value).__name__} as an argument")


class Operators:
    def __getattr__(self, name):
        return lambda *arguments: E([name, *map(encoded, arguments)])


P = Operators()


def need(condition, why="option"):
    if not condition: raise Unmapped(why)


def dims(dim): return [] if dim is None else [dim] if isinstance(dim, int) else list(dim)
def code(reduction): return REDUCTION[reduction]
def pair(value): return list(value) if isinstance(value, (list, tuple)) else [value, value]
def one(value): return value[0] if isinstance(value, (list, tuple)) else value
def product(numbers): return math.prod(numbers)
def axis(x, dim): return dim % x.ndim if x.ndim else 0


def cast(x, dtype): return x if dtype is None else P.to(x, dtype)
def reduced(x, reduction): return {"none": x, "mean": P.mean(x, [], False), "sum": P.sum(x, [], False)}[reduction]


def einsum(equation, *operands):
    if len(operands) == 1 and isinstance(operands[0], (list, tuple)): operands = operands[0]
    need("..." not in equation or "->" not in equation or "..." in equation.split("->")[1], "a sum over ...")
    return E({"e": equation, **encoded(list(operands))})


def like(x, other):
    """A number, or a tensor of the other operand's dtype."""
    if isinstance(x, E) and isinstance(other, E): need(x.dtype == other.dtype, "dtypes are promoted")
    return x


def binary(name):
    def run(a, b, alpha=1):
        like(a, b)
        return getattr(P, name)(a, b if alpha == 1 else b * alpha)
    return run


def unary(name): return lambda x: getattr(P, name)(x)
def reducing(name): return lambda x, dim=None, keepdim=False, dtype=None: getattr(P, name)(cast(x, dtype), dims(dim), keepdim)


def extreme(name):
    def run(x, other=None, keepdim=False, dim=None):
        if isinstance(other, E): return getattr(P, name + "imum")(like(x, other), other)
        dim = other if dim is None else dim
        values = getattr(P, name)(x, dims(dim), keepdim)
        return values if dim is None else [values, getattr(P, "arg" + name)(x, dim, keepdim)]
    return run


def clamped(x, min=None, max=None):
    if isinstance(min, E) or isinstance(max, E):
        return P.clamp_by(x, min if min is None else like(min, x), max if max is None else like(max, x))
    return P.clamp(x, -inf if min is None else min, inf if max is None else max)


def product_plus(equation):
    def run(c, a, b, beta=1, alpha=1):
        return einsum(equation, a, b) * alpha + (P.zeros_like(c) if beta == 0 else c * beta)
    return run


def spread(name):
    """Variance or deviation, with PyTorch's three ways to say the correction."""
    def run(x, dim=None, unbiased=None, correction=None, keepdim=False):
        if isinstance(dim, bool): dim, unbiased = None, dim
        if correction is None: correction = 1 if unbiased is None else int(unbiased)
        return getattr(P, name)(x, dims(dim), keepdim, correction)
    return run


def with_mean(name):
    def run(x, dim=None, unbiased=None, correction=None, keepdim=False):
        if isinstance(dim, bool): dim, unbiased = None, dim
        return [spread(name)(x, dim, unbiased, correction, keepdim), P.mean(x, dims(dim), keepdim)]
    return run


def vector_norm(x, ord=2, dim=None, keepdim=False, dtype=None):
    return P.norm(cast(x, dtype), ord, dims(dim), keepdim)


def norm(x, p="fro", dim=None, keepdim=False, dtype=None):
    need(p != "nuc" and p is not None)
    return vector_norm(x, 2 if p == "fro" else p, dim, keepdim, dtype)


def matrix_norm(x, ord="fro", dim=(-2, -1), keepdim=False, dtype=None):
    x, (rows, columns) = cast(x, dtype), dim
    if ord == "fro": return P.norm(x, 2, list(dim), keepdim)
    need(ord in (1, -1, inf, -inf), "singular values")
    shape = x.shape if hasattr(x, "shape") else None
    need(shape is not None)
    summed, then = (rows, columns) if abs(ord) == 1 else (columns, rows)
    sums = P.sum(P.abs(x), [summed], True)
    most = (P.max if ord > 0 else P.min)(sums, [then], True)
    kept = [1 if d in (rows % len(shape), columns % len(shape)) else n for d, n in enumerate(shape)]
    return most if keepdim else P.reshape(most, [n for d, n in enumerate(kept) if d not in
                                                 (rows % len(shape), columns % len(shape))])


def linalg_norm(x, ord=None, dim=None, keepdim=False, dtype=None):
    if ord is None or dim is not None and len(dims(dim)) == 1 or dim is None and x.ndim == 1:
        return vector_norm(x, 2 if ord is None else ord, dim, keepdim, dtype)
    return matrix_norm(x, ord, (-2, -1) if dim is None else dim, keepdim, dtype)


def getitem(x, index):
    index = index if isinstance(index, tuple) else (index,)
    need(all(isinstance(i, (int, slice, type(None), type(...))) and not isinstance(i, bool) for i in index))
    taken = sum(isinstance(i, (int, slice)) for i in index)
    if ... in index:
        at = index.index(...)
        index = index[:at] + (slice(None),) * (x.ndim - taken) + index[at + 1:]
    d, source = 0, 0
    for i in index:
        if i is None:
            x, d = P.unsqueeze(x, d), d + 1
            continue
        n = SHAPE[source]
        if isinstance(i, int): x = P.select(x, d, i)
        else:
            start, stop, step = i.indices(n)
            x, d = P.slice(x, d, start, stop, step), d + 1
        source += 1
    return x


SHAPE = []  # of the sample's first operand, for getitem()


def narrow(x, dim, start, length):
    need(isinstance(start, int))
    start %= x.shape[dim] or 1
    return P.slice(x, dim, start, start + length, 1)


inf_index = 2**62


def squeezed(x, dim=None):
    drop = range(x.ndim) if dim is None else [axis(x, d) for d in dims(dim)]
    return P.reshape(x, [n for d, n in enumerate(x.shape) if d not in drop or n != 1])


def pieces(x, sizes, dim=0):
    if isinstance(sizes, int):
        n = x.shape[dim]
        sizes = [min(sizes, n - at) for at in range(0, n, sizes)] or [0]
    return E(["split", x.call, {"l": list(sizes)}, dim])


def tensor_split(x, indices_or_sections, dim=0):
    at, n = indices_or_sections, x.shape[dim]
    need(not isinstance(at, E))
    if isinstance(at, int): return pieces(x, [n // at + (i < n % at) for i in range(at)], dim)
    ends = [0, *[min(max(i + n if i < 0 else i, 0), n) for i in at], n]
    return [P.slice(x, dim, a, max(a, b), 1) for a, b in zip(ends, ends[1:])]


def padded(x, pad, mode="constant", value=None):
    need(mode == "constant", f"padding by {mode}")
    for d in range(len(pad) // 2):
        before, after = pad[2 * d], pad[2 * d + 1]
        dim = x.ndim - 1 - d if hasattr(x, "ndim") else RANK[0] - 1 - d
        if before or after: x = cropped(x, dim, before, after, value or 0.0)
    return x


RANK = [0]


def cropped(x, dim, before, after, value):
    if before < 0: x, before = P.slice(x, dim, -before, inf_index, 1), 0
    if after < 0: x, after = P.slice(x, dim, 0, after, 1), 0
    return P.pad(x, dim, before, after, value)


def rolled(x, shifts, dims=None):
    shifts, over = (shifts,) if isinstance(shifts, int) else shifts, dims
    if over is None or over == (): return P.reshape(P.roll(P.flatten(x, 0, -1), sum(shifts), 0), x.shape)
    for n, d in zip(shifts, (over,) if isinstance(over, int) else over): x = P.roll(x, n, d)
    return x


def repeated(x, *counts):
    counts = counts[0] if len(counts) == 1 and not isinstance(counts[0], int) else counts
    return P.tile(P.reshape(x, [1] * (len(counts) - x.ndim) + x.shape), counts)


def tiled(x, dims):
    dims = list(dims) if not isinstance(dims, int) else [dims]
    return repeated(x, *([1] * (x.ndim - len(dims)) + dims)) if dims else x


def placed(x, part, dim, start, end, step):
    """x with a slice of a dimension replaced."""
    start, end, step = slice(start, end, step).indices(x.shape[dim])
    need(step == 1, "a step")
    return P.cat([P.slice(x, dim, 0, start, 1), part, P.slice(x, dim, max(start, end), inf_index, 1)], dim)


def movedim(x, source, destination): return P.movedim(x, dims(source), dims(destination))


def gathered_diff(x, n=1, dim=-1, prepend=None, append=None):
    if n == 0: return x
    need(n <= 4, "an expression that doubles with each order")
    parts = [part for part in (prepend, x, append) if part is not None]
    x = P.cat(parts, dim) if len(parts) > 1 else x
    for _ in range(n): x = P.slice(x, dim, 1, inf_index, 1) - P.slice(x, dim, 0, -1, 1)
    return x


def masked(reduction, identity):
    """A reduction of torch.masked: elements outside the mask are the identity."""
    def run(x, *arguments, mask=None, **options):
        if mask is not None:
            x = shaped(P.where(P.expand(mask, x.shape), x, P.full(x.shape, identity, x.dtype)), x.tensor)
        return reduction(x, *arguments, **options)
    return run


def masked_mean(x, dim=None, keepdim=False, dtype=None, mask=None):
    if mask is None: return P.mean(cast(x, dtype), dims(dim), keepdim)
    mask = P.expand(mask, x.shape)
    kept = P.where(mask, x, P.zeros_like(x))
    return P.sum(kept, dims(dim), keepdim) / P.sum(P.to(mask, x.dtype), dims(dim), keepdim)


def conv(rank):
    def run(x, w, b=None, stride=1, padding=0, dilation=1, groups=1):
        batched = x.ndim == rank + 2
        if padding == "valid": padding = 0
        if padding == "same":
            total = [one(dilation) * (n - 1) if rank == 1 else d * (n - 1) for d, n in
                     zip(pair(dilation), w.shape[2:])]
            need(all(n % 2 == 0 for n in total), "uneven padding")
            padding = [n // 2 for n in total]
        x = x if batched else P.unsqueeze(x, 0)
        if rank == 1: y = P.conv1d(x, w, b, one(stride), one(padding), one(dilation), groups)
        else: y = P.conv2d(x, w, b, pair(stride), pair(padding), pair(dilation), groups)
        return y if batched else P.squeeze(y, 0)
    return run


def pool(rank, kind):
    def run(x, kernel_size, stride=None, padding=0, dilation=1, ceil_mode=False, return_indices=False,
            count_include_pad=True, divisor_override=None):
        need(divisor_override is None, "divisor")
        size, step = pair(kernel_size), pair(kernel_size if stride is None or stride == () else stride)
        edge, spread_ = pair(padding), pair(dilation)
        size, step, edge, spread_ = size[:rank], step[:rank], edge[:rank], spread_[:rank]
        if kind == "avg": need((count_include_pad or not any(edge)) and not ceil_mode, "count_include_pad, ceil_mode")
        batched = x.ndim == rank + 2
        y = x if batched else P.unsqueeze(x, 0)
        if ceil_mode or any(d != 1 for d in spread_):  # as a view of windows
            for i, (n, k, s, p, d) in enumerate(zip(x.shape[-rank:], size, step, edge, spread_)):
                reach = d * (k - 1) + 1
                out = (n + 2 * p - reach + (s - 1 if ceil_mode else 0)) // s + 1
                if ceil_mode and (out - 1) * s >= n + p: out -= 1
                y = P.pad(y, i + 2, p, max(p, (out - 1) * s + reach - n - p), -inf)
            for i in range(rank): y = P.unfold(y, i + 2, size[i], step[i], spread_[i])
            y = P.max(y, list(range(2 + rank, 2 + 2 * rank)), False)
        elif rank == 1: y = getattr(P, f"{kind}_pool1d")(y, size[0], step[0], edge[0])
        else: y = getattr(P, f"{kind}_pool2d")(y, size, step, edge)
        y = y if batched else P.squeeze(y, 0)
        return [y, None] if return_indices else y
    return run


def avg_pool(rank):
    return lambda x, size, stride=None, padding=0, ceil_mode=False, count_include_pad=True, divisor_override=None: pool(
        rank, "avg")(x, size, stride, padding, 1, ceil_mode, False, count_include_pad, divisor_override)


def unfolded(x, kernel_size, dilation=1, padding=0, stride=1):
    size, spread_, edge, step = map(pair, (kernel_size, dilation, padding, stride))
    batched = x.ndim == 4
    shape = x.shape if batched else [1, *x.shape]
    out = [(n + 2 * p - d * (k - 1) - 1) // s + 1 for n, p, d, k, s in zip(shape[2:], edge, spread_, size, step)]
    y = x if batched else P.unsqueeze(x, 0)
    for d in (0, 1): y = P.pad(y, d + 2, edge[d], edge[d], 0.0)
    for d in (0, 1): y = P.unfold(y, d + 2, size[d], step[d], spread_[d])
    y = P.reshape(P.permute(y, [0, 1, 4, 5, 2, 3]), [shape[0], shape[1] * product(size), product(out)])
    return y if batched else P.squeeze(y, 0)


def cross_entropy(x, target, weight=None, ignore_index=-100, reduction="mean", label_smoothing=0.0):
    need(weight is None, "class weights")
    need(target.dtype == torch.int64, "targets that are probabilities")
    if x.ndim > 2: x = P.permute(x, [0, *range(2, x.ndim), 1])
    return P.cross_entropy(x, target, ignore_index, label_smoothing, code(reduction))


def nll_loss(x, target, weight=None, ignore_index=-100, reduction="mean"):
    need(weight is None, "class weights")
    if x.ndim > 2: x = P.permute(x, [0, *range(2, x.ndim), 1])
    return P.nll_loss(x, target, ignore_index, code(reduction))


def linear_cross_entropy(x, w, target, bias=None, *, linear_bias=None, reduction="mean", ignore_index=-100,
                         label_smoothing=0.0, **options):
    need(bias is None and linear_bias is None, "bias")
    need(target.dtype == torch.int64, "targets that are probabilities")
    need(options.get("weight") is None and options.get("ce_weight") is None, "class weights")
    need((x.ndim == 2 or x.ndim == 1) and w.ndim == 2, "class dimension in the middle")
    need(reduction != "none", "losses of rows")
    return P.linear_cross_entropy(x, w, target, ignore_index, label_smoothing, code(reduction))


def bce_with_logits(x, t, weight=None, reduction="mean", pos_weight=None):
    if pos_weight is None:
        each = P.to(P.binary_cross_entropy_with_logits(x, t, 0), x.dtype)
    else:
        each = (1.0 - t) * P.softplus(x) + pos_weight * t * P.softplus(-x)
    return reduced(each if weight is None else each * weight, reduction)


def kl_div(x, t, reduction="mean", log_target=False):
    if log_target:
        each = P.exp(t) * (t - x)
        return P.sum(each, [], False) / x.shape[0] if reduction == "batchmean" else reduced(each, reduction)
    need(reduction in ("batchmean", "sum") and x.ndim == 2, "losses that are no sums of rows")
    return P.kl_div(x, t, code("mean" if reduction == "batchmean" else reduction))


def gaussian_nll(x, t, var, full=False, eps=1e-6, reduction="mean"):
    if isinstance(var, E) and var.shape == x.shape[:-1]: var = P.unsqueeze(var, -1)
    if not isinstance(var, E): var = P.full(x.shape, var, x.dtype)
    var = P.maximum(var, eps)
    each = (P.log(var) + P.square(x - t) / var) * 0.5
    return reduced(each + 0.5 * math.log(2 * math.pi) if full else each, reduction)


def poisson_nll(x, t, log_input=True, full=False, size_average=None, eps=1e-8, reduce=None, reduction="mean"):
    need(not full, "Stirling's approximation")
    return reduced(P.exp(x) - t * x if log_input else x - t * P.log(x + eps), reduction)


def group_norm(x, groups, weight=None, bias=None, eps=1e-5):
    y = P.reshape(P.layer_norm(P.reshape(x, [x.shape[0], groups, -1] if product(x.shape) else x.shape), None, None, eps), x.shape)
    need(product(x.shape), "empty")
    wide = [1, x.shape[1]] + [1] * (x.ndim - 2)
    if weight is not None: y = y * P.reshape(weight, wide)
    return y if bias is None else y + P.reshape(bias, wide)


def layer_norm(x, shape, weight=None, bias=None, eps=1e-5):
    rows = x.shape[:x.ndim - len(shape)]
    flat = lambda t: None if t is None else P.reshape(t, [product(shape)])
    return P.reshape(P.layer_norm(P.reshape(x, rows + [product(shape)]), flat(weight), flat(bias), eps), x.shape)


def rms_norm(x, shape, weight=None, eps=None):
    rows = x.shape[:x.ndim - len(shape)]
    flat = None if weight is None else P.reshape(weight, [product(shape)])
    return P.reshape(P.rms_norm(P.reshape(x, rows + [product(shape)]), flat, torch.finfo(x.dtype).eps if eps is None else eps), x.shape)


def attention(q, k, v, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False):
    need(dropout_p == 0.0 and q.ndim >= 3)
    need(attn_mask is None or isinstance(attn_mask, E) and attn_mask.dtype == q.dtype, "a mask of bools")
    batch, (n, d), m = q.shape[:-2], q.shape[-2:], k.shape[-2]
    need(k.shape[:-2] == batch and v.shape[:-2] == batch and v.shape[-1] == d, "operands that broadcast")
    heads = lambda x, length: P.transpose(P.reshape(x, [product(batch[:-1]), batch[-1], length, d]), 1, 2)
    bias = None if attn_mask is None else P.reshape(
        P.expand(attn_mask, [*batch, n, m]), [product(batch[:-1]), batch[-1], n, m])
    out = P.attend(heads(q, n), heads(k, m), heads(v, m), is_causal, d**-0.5 if scale is None else scale, bias)
    return P.reshape(P.transpose(out, 1, 2), q.shape)


def cdist(a, b, p=2.0, compute_mode=None):
    need(p >= 1)
    return P.norm(P.unsqueeze(a, -2) - P.unsqueeze(b, -3), p, [-1], False)


def matrix_power(x, n):
    need(n >= 1, "inverse")
    y = x
    for _ in range(n - 1): y = P.matmul(y, x)
    return y


def index_add(x, dim, index, source, alpha=1): return P.index_add(x, dim, index, source if alpha == 1 else source * alpha)


def same_outside(x, dim, index, source):
    return index.shape == source.shape and index.ndim == x.ndim and all(
        n == m for d, (n, m) in enumerate(zip(index.shape, x.shape)) if d != axis(x, dim))


def scattered(x, dim, index, src=None, reduce=None, value=None):
    need(reduce is None and isinstance(src, E), "a number, or a reduction of numbers")
    need(same_outside(x, dim, index, src), "an index smaller than its operands")
    return P.scatter(x, dim, index, src)


def scatter_reduced(x, dim, index, src, reduce, include_self=True):
    need(same_outside(x, dim, index, src), "an index smaller than its operands")
    return P.scatter_reduce(x, dim, index, src, ["sum", "prod", "mean", "amax", "amin"].index(reduce), include_self)


def index_put(x, indices, values, accumulate=False):
    need(all(isinstance(i, E) and i.dtype == torch.int64 for i in indices), "a mask as an index")
    return P.index_put(x, list(indices), values, accumulate)


def take_along_dim(x, index, dim=None):
    length = product(x.shape) if dim is None else x.shape[dim]
    index = shaped(P.where(P.less(index, 0), index + length, index), index.tensor)
    if dim is None: return P.gather(P.flatten(x, 0, -1), 0, P.flatten(index, 0, -1))
    shape = list(torch.broadcast_shapes([1 if d == axis(x, dim) else n for d, n in enumerate(x.shape)],
                                        [1 if d == axis(x, dim) else n for d, n in enumerate(index.shape)]))
    wide = lambda t: P.expand(t, [t.shape[d] if d == axis(x, dim) else n for d, n in enumerate(shape)])
    return P.gather(wide(x), dim, wide(index))


def masked_select(x, mask):
    shape = list(torch.broadcast_shapes(x.shape, mask.shape))
    need(len(shape) > 0, "no dimensions")
    return P.take_rows(P.expand(x, shape), P.expand(mask, shape))


def repeat_interleave(x, repeats, dim=None, **_):
    need(isinstance(repeats, int), "a tensor of repeats")
    return P.repeat(P.flatten(x, 0, -1), repeats, 0) if dim is None else P.repeat(x, repeats, dim)


def tensordot(a, b, dims=2):
    over = ([*range(a.ndim - dims, a.ndim)], [*range(dims)]) if isinstance(dims, int) else dims
    need(all(a.shape[c] == b.shape[d] for c, d in zip(*over)), "sizes that broadcast")
    mine, letters = "abcdefgh"[:a.ndim], iter("ijklmnop")
    summed = {d % b.ndim: mine[c] for c, d in zip(*over)}
    other = "".join(summed[d] if d in summed else next(letters) for d in range(b.ndim))
    kept = [x for x in mine if x not in summed.values()] + [x for d, x in enumerate(other) if d not in summed]
    return einsum(f"{mine},{other}->{''.join(kept)}", a, b)


def masked_spread(root):
    def run(x, dim=None, unbiased=True, keepdim=False, mask=None, dtype=None, correction=None):
        need(dtype is None)
        over, mask = dims(dim), P.ones_like(x) if mask is None else P.to(P.expand(mask, x.shape), x.dtype)
        count = P.sum(mask, over, True)
        center = (x - P.sum(x * mask, over, True) / count) * mask
        less = correction if correction is not None else int(unbiased)
        y = P.sum(P.square(center), over, keepdim) / P.maximum(P.sum(mask, over, keepdim) - float(less), 0.0)
        return P.sqrt(y) if root else y
    return run


def binary_cross_entropy(x, t, weight=None, reduction="mean"):
    each = -(t * P.clamp(P.log(x), -100, inf) + (1.0 - t) * P.clamp(P.log1p(-x), -100, inf))
    return reduced(each if weight is None else each * weight, reduction)


def triplet_margin(a, p_, n, margin=1.0, p=2.0, eps=1e-6, swap=False, reduction="mean", **_):
    far = lambda u, v: P.norm(u - v + eps, p, [-1], False)
    other = P.minimum(far(a, n), far(p_, n)) if swap else far(a, n)
    return reduced(P.relu(far(a, p_) - other + margin), reduction)


def is_close(a, b, rtol=1e-5, atol=1e-8, equal_nan=False):
    need(isinstance(b, E) and like(a, b) is a)
    near = P.logical_and(P.less_equal(P.abs(a - b), P.abs(b) * rtol + atol), P.isfinite(P.abs(a - b)))
    alike = P.logical_or(P.equal(a, b), near)
    return P.logical_or(alike, P.logical_and(P.isnan(a), P.isnan(b))) if equal_nan else alike


def scatter_add(x, dim, index, src):
    need(same_outside(x, dim, index, src), "an index smaller than its operands")
    return P.scatter_add(x, dim, index, src)


def linspace(start, end, steps, dtype=None, **_):
    number = lambda v: v.tensor.item() if isinstance(v, E) else v
    start, end = number(start), number(end)
    need(not isinstance(start, complex) and not isinstance(end, complex))
    return P.linspace(start, end, steps, dtype or torch.float64)


def logspace(start, end, steps, base=10, dtype=None, **options):
    return P.pow(float(base), linspace(start, end, steps, dtype, **options))


def searchsorted(edges, values, out_int32=False, right=False, side=None, sorter=None):
    need(not out_int32 and sorter is None and isinstance(values, E))
    need(side is None or True)
    compare = P.less_equal if right or side == "right" else P.less
    need(edges.ndim == 1 or edges.shape[:-1] == values.shape[:-1])
    row = P.unsqueeze(edges, -2) if edges.ndim > 1 else edges
    return P.sum(compare(row, P.unsqueeze(values, -1)), [-1], False)


def median(x, dim=None, keepdim=False):
    need(dim is None and product(x.shape) > 0, "an index of the middle one")
    need(x.ndim > 0)
    return P.select(P.item(P.sort(P.flatten(x, 0, -1), 0, False), 0), 0, (product(x.shape) - 1) // 2)


def covariance(x, correction=1, fweights=None, aweights=None):
    need(fweights is None and aweights is None and x.ndim == 2, "weights")
    c = x - P.mean(x, [1], True)
    n = x.shape[1] - correction
    need(n > 0)
    y = P.matmul(c, P.transpose(c, 0, 1)) / n
    return y if x.shape[0] > 1 else P.reshape(y, [])


def sum_to_size(x, *shape):
    shape = list(shape[0] if len(shape) == 1 and not isinstance(shape[0], int) else shape)
    lead = x.ndim - len(shape)
    over = [d for d in range(x.ndim) if d < lead or shape[d - lead] != x.shape[d]]
    return P.reshape(P.sum(x, over, True), shape) if over else x


def trapezoid(y, x=None, dx=1.0, dim=-1):
    need(not isinstance(x, E) or x.ndim == 1 and (dim in (-1, y.ndim - 1)))
    mid = (P.slice(y, dim, 1, inf_index, 1) + P.slice(y, dim, 0, -1, 1)) * 0.5
    return P.sum(mid * (dx if x is None else x if not isinstance(x, E) else gathered_diff(x)), [dim], False)


def normalize(x, p=2.0, dim=1, eps=1e-12): return x / P.clamp(P.norm(x, p, dims(dim), True), eps, inf)


def cosine_similarity(a, b, dim=1, eps=1e-8):
    need(a.shape == b.shape, "norms that broadcast")
    length = lambda x: P.clamp(P.norm(x, 2, [dim], False), eps, inf)
    return P.sum(a * b, [dim], False) / (length(a) * length(b))


def smooth_l1(a, b, reduction="mean", beta=1.0):
    return P.l1_loss(a, b, code(reduction)) if beta == 0 else P.huber_loss(a, b, beta, code(reduction)) / beta


def softplus(x, beta=1, threshold=20):
    return P.where(P.greater(x * beta, threshold), x, P.softplus(x * beta) / beta)


def pixel_shuffle(x, upscale_factor):
    r = upscale_factor
    *b, c, h, w = x.shape
    order = [*range(len(b)), len(b), len(b) + 3, len(b) + 1, len(b) + 4, len(b) + 2]
    return P.reshape(P.permute(P.reshape(x, [*b, c // r**2, r, r, h, w]), order), [*b, c // r**2, h * r, w * r])


def pixel_unshuffle(x, downscale_factor):
    r = downscale_factor
    *b, c, h, w = x.shape
    n = len(b)
    return P.reshape(P.permute(P.reshape(x, [*b, c, h // r, r, w // r, r]), [*range(n), n, n + 2, n + 4, n + 1, n + 3]),
                     [*b, c * r**2, h // r, w // r])


def dropped(x, p=0.5, training=True, inplace=False):
    need(not training or p == 0.0, "random numbers")
    return x


def shaped(expression, tensor): return E(expression.call, tensor)


def atleast(shape_of):
    widened = lambda x: x if shape_of(x.shape) == x.shape else P.reshape(x, shape_of(x.shape))
    return lambda *t: (lambda u: [widened(x) for x in u] if u is not t or len(t) > 1 else widened(t[0]))(
        t[0] if len(t) == 1 and isinstance(t[0], (list, tuple)) else t)


def meshgrid(tensors, indexing="ij"):
    need(indexing == "ij")
    shape = [product(t.shape) for t in tensors]
    return [P.expand(P.reshape(t, [n if d == i else 1 for d, n in enumerate(shape)]), shape) for i, t in enumerate(tensors)]


def ordered(x, dim=-1, descending=False, stable=None):
    if isinstance(dim, bool): dim, descending = -1, dim
    need(x.ndim > 0)
    return [P.item(P.sort(x, dim, descending), i) for i in (0, 1)]


def created(value):
    def run(*shape, dtype=None, **_):
        if shape and isinstance(shape[0], E): shape = shape[0].shape if value is not None else shape
        elif len(shape) == 1 and not isinstance(shape[0], int): shape = shape[0]
        return P.full(list(shape), value, dtype or torch.float64)
    return run


def unary_like(value): return lambda x, dtype=None, **_: P.full(x.shape, value, dtype or x.dtype)
def new(value): return lambda x, shape, dtype=None, **_: P.full(list(shape), value, dtype or x.dtype)


MAP = {name: unary(name) for name in
       ("abs acos asin atan ceil cos cosh erf exp expm1 floor log log1p log2 neg reciprocal round rsqrt sigmoid sign sin "
        "sinh sqrt square tan tanh logical_not contiguous").split()}
MAP |= {"nn.functional." + name: lambda x, inplace=False, f=name: getattr(P, f)(x) for name in ("relu", "silu")}
MAP |= {name: lambda x, *_, **__: x for name in
        ("clone positive conj conj_physical resolve_conj resolve_neg real alias_copy double").split()}
MAP |= {name: binary(name) for name in ("mul", "div", "add", "sub", "maximum", "minimum", "pow")}
MAP |= {
    "true_divide": binary("div"), "div/no_rounding_mode": lambda a, b, rounding_mode=None: binary("div")(a, b),
    "__radd__": binary("add"), "__rmul__": binary("mul"), "__rsub__": lambda a, b: P.sub(b, a),
    "rsub": lambda a, b, alpha=1: P.sub(b, a * alpha), "__rdiv__": lambda a, b: P.div(b, a),
    "__rpow__": lambda a, b: P.pow(b, a), "float_power": lambda a, b: P.pow(*(P.to(v, torch.float64) if isinstance(v, E) else v for v in (a, b))), "__rmatmul__": lambda a, b: P.matmul(b, a),
    "div/floor_rounding": lambda a, b, rounding_mode: P.floor(P.div(a, b)), "sgn": unary("sign"),
    "max/binary": binary("maximum"), "min/binary": binary("minimum"), "isnan": unary("isnan"),
    "isfinite": unary("isfinite"), "isinf": lambda x: P.equal(P.abs(x), inf), "isposinf": lambda x: P.equal(x, inf),
    "isneginf": lambda x: P.equal(x, -inf), "deg2rad": lambda x: x * (math.pi / 180),
    "rad2deg": lambda x: x * (180 / math.pi), "erfc": lambda x: 1.0 - P.erf(x), "log10": unary("log10"), "exp2": unary("exp2"),
    "trunc": lambda x: P.sign(x) * P.floor(P.abs(x)),
    "frac": lambda x: x - P.sign(x) * P.floor(P.abs(x)), "clamp": clamped, "clamp_min": lambda x, m: clamped(x, min=m),
    "clamp_max": lambda x, m: clamped(x, max=m), "logit": lambda x, eps=None: (lambda z: P.log(z) - P.log(1.0 - z))(
        x if eps is None else (need(eps <= 0.5, "bounds that cross"), P.clamp(x, eps, 1 - eps))[1]),
    "addcmul": lambda x, a, b, value=1: x + a * b * value, "addcdiv": lambda x, a, b, value=1: x + a / b * value,
    "lerp": lambda a, b, w: a + w * (b - a), "logical_xor": lambda a, b: P.not_equal(P.logical_not(a), P.logical_not(b)),
    "logical_and": lambda a, b: P.logical_and(like(a, b), b), "logical_or": lambda a, b: P.logical_or(like(a, b), b),
    "where": lambda c, a, b: P.where(c, a, like(b, a)), "logaddexp": lambda a, b: P.logsumexp(P.stack([P.add(a, b * 0.0), P.add(a * 0.0, b)], -1), -1, False),
    "masked_fill": lambda x, m, v: (need(m.ndim <= x.ndim, "a mask of more dimensions"), P.where(m, v, x) if isinstance(v, E) else P.masked_fill(x, m, v))[1],
    "ldexp": lambda a, b: a * P.pow(2.0, b), "hypot": lambda a, b: P.norm(P.stack([P.add(a, b * 0.0), P.add(a * 0.0, b)], -1), 2, [-1], False),
    "dist": lambda a, b, p=2: P.norm(P.flatten(a - b, 0, -1), p, [], False),
    "nn.functional.pairwise_distance": lambda a, b, p=2.0, eps=1e-6, keepdim=False: P.norm(a - b + eps, p, [-1], keepdim),
    "cdist": cdist,
}
MAP |= {  # pairs of elements
    "atan2": lambda a, b: P.atan2(like(a, b), b), "fmod": lambda a, b: P.fmod(like(a, b), b),
    "remainder": lambda a, b: P.remainder(like(a, b), b), "__rmod__": lambda a, b: P.remainder(b, a),
    "floor_divide": lambda a, b: P.floor(P.div(like(a, b), b)), "div/trunc_rounding": lambda a, b, rounding_mode: MAP["trunc"](P.div(a, b)),
    "xlogy": lambda a, b: P.where(P.equal(P.add(a, b * 0.0), 0), P.add(a, b) * 0.0, a * P.log(b)), "isclose": is_close,
    "special.xlog1py": lambda a, b: a * P.log1p(b), "logaddexp2": lambda a, b: MAP["logaddexp"](a * math.log(2), b * math.log(2)) / math.log(2),
    "nn.functional.binary_cross_entropy": binary_cross_entropy, "nn.functional.triplet_margin_loss": triplet_margin,
    "nan_to_num": lambda x, nan=0.0, posinf=None, neginf=None: P.where(P.isnan(x), P.full(x.shape, nan or 0.0, x.dtype), P.clamp(
        x, torch.finfo(x.dtype).min if neginf is None else neginf, torch.finfo(x.dtype).max if posinf is None else posinf)),
}
MAP |= {name: lambda a, b, f=f: getattr(P, f)(like(a, b), b) for name, f in
        dict(eq="equal", ne="not_equal", lt="less", le="less_equal", gt="greater", ge="greater_equal").items()}
MAP |= {  # products
    "matmul": lambda a, b: P.matmul(a, b), "mm": lambda a, b: P.matmul(a, b), "bmm": lambda a, b: P.matmul(a, b),
    "bmm/triton_optimized": lambda a, b: P.matmul(a, b), "mv": lambda a, b: P.matmul(a, b),
    "dot": lambda a, b: P.matmul(a, b), "vdot": lambda a, b: P.matmul(a, b), "outer": lambda a, b: P.outer(a, b),
    "addmm": product_plus("ij,jk->ik"), "addmm/decomposed": product_plus("ij,jk->ik"), "addmv": product_plus("ij,j->i"),
    "addbmm": product_plus("bij,bjk->ik"), "baddbmm": product_plus("bij,bjk->bik"), "addr": product_plus("i,j->ij"),
    "inner": lambda a, b: a * b if a.ndim * b.ndim == 0 else einsum("...i,i->..." if b.ndim == 1 else "ai,bi->ab", a, b),
    "einsum": lambda operands, equation: einsum(equation, operands), "linalg.matrix_power": matrix_power,
    "linalg.multi_dot": lambda tensors: __import__("functools").reduce(P.matmul, tensors),
    "linalg.vecdot": lambda a, b, dim=-1: P.sum(a * b, [dim], False), "trace": lambda x: P.sum(P.diagonal(x, 0, 0, 1), [], False),
    "nn.functional.linear": lambda x, w, b=None: (need(w.ndim == 2, "a weight of one dimension"), P.linear(x, w, b))[1],
    "nn.functional.bilinear": lambda a, b, w, bias=None: (lambda y: y if bias is None else y + bias)(einsum("...i,oij,...j->...o", a, w, b)),
    "kron": lambda a, b: P.reshape(P.reshape(a, [a.shape[0], 1, a.shape[1], 1]) * P.reshape(b, [1, b.shape[0], 1, b.shape[1]]), [-1, a.shape[1] * b.shape[1]]),
}
MAP |= {name: reducing(name) for name in ("sum", "mean", "prod")}
MAP |= {"amax": reducing("max"), "amin": reducing("min"), "all": reducing("all"), "any": reducing("any"),
        "max/reduction_with_dim": extreme("max"), "max/reduction_no_dim": extreme("max"),
        "min/reduction_with_dim": extreme("min"), "min/reduction_no_dim": extreme("min"),
        "aminmax": lambda x, dim=None, keepdim=False: [P.min(x, dims(dim), keepdim), P.max(x, dims(dim), keepdim)],
        "var": spread("var"), "var/unbiased": spread("var"), "std": spread("stddev"),
        "std/unbiased": spread("stddev"), "var_mean": with_mean("var"), "var_mean/unbiased": with_mean("var"),
        "std_mean": with_mean("stddev"), "std_mean/unbiased": with_mean("stddev"),
        "nanmean": lambda x, dim=None, keepdim=False, dtype=None: P.sum(P.where(P.isnan(x), P.zeros_like(x), x), dims(dim), keepdim) / P.to(
            P.sum(P.logical_not(P.isnan(x)), dims(dim), keepdim), x.dtype),
        "nansum": lambda x, dim=None, keepdim=False, dtype=None: P.sum(P.where(P.isnan(x), P.zeros_like(x), x), dims(dim), keepdim),
        "count_nonzero": lambda x, dim=None: P.sum(P.not_equal(x, 0), dims(dim), False),
        "argmax": lambda x, dim=None, keepdim=False: P.argmax(P.flatten(x, 0, -1), 0, False) if dim is None and not keepdim else P.argmax(x, dim, keepdim),
        "argmin": lambda x, dim=None, keepdim=False: P.argmin(P.flatten(x, 0, -1), 0, False) if dim is None and not keepdim else P.argmin(x, dim, keepdim),
        "logsumexp": lambda x, dim, keepdim=False: P.logsumexp(x, dim, keepdim) if isinstance(dim, int) else need(False, "several dimensions"),
        "norm": norm, "norm/fro": norm, "norm/inf": norm, "linalg.norm": linalg_norm,
        "linalg.norm/subgradients_at_zero": linalg_norm, "linalg.vector_norm": vector_norm, "linalg.matrix_norm": matrix_norm,
        "cumsum": lambda x, dim, dtype=None: P.cumsum(cast(x, dtype), dim),
        "cumprod": lambda x, dim, dtype=None: P.cumprod(cast(x, dtype), dim),
        "logcumsumexp": lambda x, dim: P.logcumsumexp(x, dim), "median": median, "cov": covariance,
        "sum_to_size": sum_to_size,
        "diff": gathered_diff, "trapezoid": trapezoid, "trapz": trapezoid, "sort": ordered,
        "msort": lambda x: P.item(P.sort(x, 0, False), 0), "argsort": lambda *a, **k: ordered(*a, **k)[1],
        "topk": lambda x, k, dim=-1, largest=True, sorted=True: [P.item(P.topk(x, k, dim, largest), i) for i in (0, 1)],
        "searchsorted": searchsorted}
MAP |= {  # views and what is put together
    "reshape": lambda x, *s: P.reshape(x, s[0] if len(s) == 1 and not isinstance(s[0], int) else s),
    "reshape_as": lambda x, o: P.reshape(x, o.shape), "view_as": lambda x, o: P.reshape(x, o.shape),
    "flatten": lambda x, start_dim=0, end_dim=-1: P.flatten(x, start_dim, end_dim), "ravel": lambda x: P.flatten(x, 0, -1),
    "unflatten": lambda x, d, sizes: P.reshape(x, x.shape[:axis(x, d)] + list(sizes) + x.shape[axis(x, d) + 1:]),
    "permute": lambda x, *d: P.permute(x, d[0] if len(d) == 1 and not isinstance(d[0], int) else d),
    "transpose": lambda x, a, b: P.transpose(x, a, b), "T": lambda x: P.permute(x, list(range(x.ndim))[::-1]),
    "t": lambda x: P.transpose(x, 0, 1) if x.ndim == 2 else x, "mT": lambda x: P.transpose(x, -1, -2),
    "mH": lambda x: P.transpose(x, -1, -2), "H": lambda x: P.transpose(x, 0, 1) if x.ndim == 2 else x, "movedim": movedim,
    "narrow": narrow, "select": lambda x, d, i: P.select(x, d, i), "__getitem__": getitem,
    "slice": lambda x, dim=0, start=None, end=None, step=1: P.slice(x, dim, start or 0, inf_index if end is None else end, step),
    "expand": lambda x, s: P.expand(x, [n if n != -1 else x.shape[i - len(s)] for i, n in enumerate(s)]),
    "expand_as": lambda x, o: P.expand(x, o.shape), "broadcast_to": lambda x, s: P.expand(x, list(s)),
    "squeeze": squeezed, "squeeze/multiple": squeezed, "unsqueeze": lambda x, d: P.unsqueeze(x, d),
    "split": pieces, "split/list_args": pieces, "split_with_sizes": pieces, "tensor_split": tensor_split,
    "hsplit": lambda x, n: tensor_split(x, n, 0 if x.ndim == 1 else 1), "vsplit": lambda x, n: tensor_split(x, n, 0),
    "dsplit": lambda x, n: tensor_split(x, n, 2),
    "chunk": lambda x, n, dim=0: pieces(x, -(-x.shape[dim] // n), dim),
    "unbind": lambda x, dim=0: (lambda parts: [P.item(parts, i) for i in range(x.shape[dim])])(P.unbind(x, dim)),
    "diagonal": lambda x, offset=0, dim1=0, dim2=1: P.diagonal(x, offset, dim1, dim2),
    "linalg.diagonal": lambda x, offset=0, dim1=-2, dim2=-1: P.diagonal(x, offset, dim1, dim2),
    "diag": lambda x, n=0, diagonal=0: P.diag(x, n or diagonal) if x.ndim == 1 else P.diagonal(x, n or diagonal, 0, 1),
    "diagflat": lambda x, offset=0: P.diag(P.flatten(x, 0, -1), offset),
    "unfold": lambda x, d, n, s: P.unfold(x, d, n, s, 1), "tril": lambda x, d=0: P.tril(x, d), "triu": lambda x, d=0: P.triu(x, d),
    "roll": rolled, "flip": lambda x, dims: P.flip(x, list(dims)) if len(dims) else x, "fliplr": lambda x: P.flip(x, [1]), "flipud": lambda x: P.flip(x, [0]),
    "tile": tiled, "repeat": repeated, "cat": lambda t, dim=0: P.cat([x for x in t if x.shape != [0]] or t, dim),
    "stack": lambda t, dim=0: P.stack(t, dim), "hstack": lambda t: P.cat(t, 0 if t[0].ndim == 1 else 1),
    "vstack": lambda t: P.cat([P.unsqueeze(x, 0) if x.ndim == 1 else x for x in t], 0),
    "constant_pad_nd": lambda x, p, value=0.0: padded(x, p, value=value), "nn.functional.pad/constant": padded,
    "rot90": lambda x, k=1, dims=(0, 1): {0: x, 1: P.flip(P.transpose(x, *dims), [dims[0]]), 2: P.flip(x, list(dims)), 3: P.flip(P.transpose(x, *dims), [dims[1]])}[k % 4],
    "atleast_1d": atleast(lambda s: s or [1]), "atleast_2d": atleast(lambda s: [1] * (2 - len(s)) + s),
    "atleast_3d": atleast(lambda s: {0: [1, 1, 1], 1: [1, *s, 1], 2: [*s, 1]}.get(len(s), s)),
    "meshgrid/variadic_tensors": lambda *t, **k: meshgrid(t, **k), "meshgrid/list_of_tensors": lambda t, **k: meshgrid(t, **k),
    "column_stack": lambda t: P.cat([P.reshape(x, [-1, 1]) if x.ndim < 2 else x for x in t], 1),
    "dstack": lambda t: P.cat([MAP["atleast_3d"](x) for x in t], 2),
    "block_diag": lambda *t: (lambda u: P.cat([P.pad(x, 1, sum(y.shape[1] for y in u[:i]), sum(y.shape[1] for y in u[i + 1:]), 0.0)
                                               for i, x in enumerate(u)], 0))([shaped(MAP["atleast_2d"](x), torch.atleast_2d(x.tensor)) for x in t]),
    "broadcast_tensors": lambda *t: [P.expand(x, list(torch.broadcast_shapes(*[y.shape for y in t]))) for x in t],
    "index_fill": lambda x, d, i, v: (need(not isinstance(v, E) or not v.tensor.requires_grad, "a value with a gradient"), P.masked_fill(x, P.reshape(P.greater(
        P.sum(P.equal(P.unsqueeze(P.arange(0, x.shape[axis(x, d)], 1, torch.int64), 1), P.reshape(i, [1, -1])), [1], False), 0),
        [n if k == axis(x, d) else 1 for k, n in enumerate(x.shape)]), v.tensor.item() if isinstance(v, E) else v))[1] if x.ndim else need(False, "no dimensions"),
    "select_scatter": lambda x, s, d, i: (lambda d, i: placed(x, P.unsqueeze(s, d), d, i, i + 1, 1))(axis(x, d), i % x.shape[d]),
    "slice_scatter": lambda x, s, d=0, start=None, end=None, step=1: placed(x, s, d, start, end, step),
    "index_select": lambda x, d, i: P.index_select(x, d, i), "gather": lambda x, d, i, sparse_grad=False: P.gather(x, d, i),
    "take": lambda x, i: P.reshape(P.index_select(P.flatten(x, 0, -1), 0, P.flatten(P.where(P.less(i, 0), i + product(x.shape), i), 0, -1)), i.shape),
    "index_add": index_add, "scatter": scattered, "scatter_add": scatter_add, "index_put": index_put,
    "take_along_dim": take_along_dim, "masked_select": masked_select, "repeat_interleave": repeat_interleave,
    "index_copy": lambda x, d, i, s: P.index_put(P.movedim(x, [d], [0]), [i], P.movedim(s, [d], [0]), False) if x.ndim == 1 else need(False, "slices"),
    "tensordot": tensordot, "masked.var": masked_spread(False), "masked.std": masked_spread(True),
    **{f"scatter_reduce/{name}": scatter_reduced for name in ("sum", "prod", "mean", "amax", "amin")},
    "nn.functional.embedding": lambda w, i, padding_idx=None, **k: (need(not any(k.values())), P.embedding(w, i, -1 if padding_idx is None else padding_idx % w.shape[0]))[1],
    "nn.functional.pixel_shuffle": pixel_shuffle, "nn.functional.pixel_unshuffle": pixel_unshuffle,
    "nn.functional.channel_shuffle": lambda x, g: P.reshape(P.transpose(P.reshape(x, [x.shape[0], g, x.shape[1] // g, *x.shape[2:]]), 1, 2), x.shape),
    "nn.functional.unfold": unfolded,
}
for name in "reshape expand permute transpose squeeze unsqueeze unbind diagonal unfold split_with_sizes t narrow".split():
    MAP[f"{name}_copy"] = MAP[name]
MAP |= {"view": MAP["reshape"], "view_copy": MAP["reshape"], "unsafe_split": MAP["split"], "unsafe_chunk": MAP["chunk"]}
SOFT = lambda f: lambda x, dim=-1, dtype=None, **_: f(cast(x, dtype), dim)
MAP |= {  # rows, activations, losses, windows
    "softmax": SOFT(P.softmax), "softmax/with_dtype": SOFT(P.softmax), "log_softmax": SOFT(P.log_softmax),
    "log_softmax/with_dtype": SOFT(P.log_softmax), "nn.functional.softmin": SOFT(lambda x, d: P.softmax(-x, d)),
    "nn.functional.softmin/with_dtype": SOFT(lambda x, d: P.softmax(-x, d)),
    "torch.ops.aten._safe_softmax.default": SOFT(P.softmax),
    "nn.functional.leaky_relu": lambda x, negative_slope=0.01, **_: P.leaky_relu(x, negative_slope),
    "nn.functional.gelu": lambda x, approximate="none": P.gelu(x, approximate == "tanh"), "nn.functional.softplus": softplus,
    "nn.functional.relu6": lambda x, **_: P.clamp(x, 0, 6), "nn.functional.hardtanh": lambda x, min_val=-1.0, max_val=1.0, **_: P.clamp(x, min_val, max_val),
    "nn.functional.hardsigmoid": lambda x, **_: P.clamp(x / 6 + 0.5, 0, 1), "nn.functional.hardswish": lambda x, **_: x * P.clamp(x + 3.0, 0, 6) / 6,
    "nn.functional.logsigmoid": lambda x: -P.softplus(-x), "nn.functional.softsign": lambda x: x / (P.abs(x) + 1.0),
    "nn.functional.tanhshrink": lambda x: x - P.tanh(x), "nn.functional.mish": lambda x, **_: P.mish(x),
    "nn.functional.elu": lambda x, alpha=1.0, **_: P.elu(x, alpha),
    "nn.functional.celu": lambda x, alpha=1.0, **_: P.elu(x / alpha, 1.0) * alpha if alpha != 1.0 else P.elu(x, 1.0),
    "nn.functional.selu": lambda x, **_: P.elu(x, 1.6732632423543772) * 1.0507009873554805,
    "nn.functional.prelu": lambda x, weight: (lambda w: P.where(P.greater(x, 0), x, x * (P.reshape(w, [1, -1] + [1] * (x.ndim - 2) if x.ndim > 1 else [-1] if x.ndim else []) if w.ndim else w)))(weight),
    "nn.functional.softshrink": lambda x, lambd=0.5: P.relu(x - lambd) - P.relu(-x - lambd),
    "nn.functional.hardshrink": lambda x, lambd=0.5: P.where(P.greater(P.abs(x), lambd), x, P.zeros_like(x)),
    "nn.functional.hinge_embedding_loss": lambda x, t, margin=1.0, reduction="mean": reduced(P.where(P.equal(t, -1), P.zeros_like(x), x) + P.where(
        P.equal(t, 1), P.zeros_like(x), P.relu(margin - x)), reduction),
    "nn.functional.instance_norm": lambda x, *a, use_input_stats=True, weight=None, bias=None, eps=1e-5, **_: (
        need(use_input_stats and not any(isinstance(v, E) for v in a)), group_norm(x, x.shape[1], weight, bias, eps))[1],
    "nn.functional.threshold": lambda x, threshold, value, **_: P.where(P.greater(x, threshold), x, P.full(x.shape, value, x.dtype)),
    "nn.functional.glu": lambda x, dim=-1: P.glu(x, dim),
    "nn.functional.dropout": dropped, "nn.functional.dropout2d": dropped, "nn.functional.dropout3d": dropped,
    "nn.functional.layer_norm": layer_norm, "nn.functional.rms_norm": rms_norm, "nn.functional.group_norm": group_norm,
    "nn.functional.normalize": normalize, "nn.functional.cosine_similarity": cosine_similarity,
    "nn.functional.cross_entropy": cross_entropy, "nn.functional.nll_loss": nll_loss,
    "nn.functional.linear_cross_entropy": linear_cross_entropy, "nn.functional.linear_cross_entropy/chunked": linear_cross_entropy,
    "nn.functional.linear_cross_entropy/chunked_none": linear_cross_entropy,
    "nn.functional.binary_cross_entropy_with_logits": bce_with_logits, "nn.functional.kl_div": kl_div,
    "nn.functional.mse_loss": lambda a, b, reduction="mean": P.mse_loss(a, b, code(reduction)),
    "nn.functional.l1_loss": lambda a, b, reduction="mean": P.l1_loss(a, b, code(reduction)),
    "nn.functional.smooth_l1_loss": smooth_l1, "nn.functional.gaussian_nll_loss": gaussian_nll,
    "nn.functional.poisson_nll_loss": poisson_nll,
    "nn.functional.huber_loss": lambda a, b, reduction="mean", delta=1.0: P.huber_loss(a, b, delta, code(reduction)),
    "nn.functional.soft_margin_loss": lambda x, t, reduction="mean": reduced(P.softplus(-t * x), reduction),
    "nn.functional.margin_ranking_loss": lambda a, b, t, margin=0.0, reduction="mean": reduced(P.relu(-t * (a - b) + margin), reduction),
    "nn.functional.conv1d": conv(1), "nn.functional.conv2d": conv(2), "nn.functional.max_pool1d": pool(1, "max"),
    "nn.functional.max_pool2d": pool(2, "max"), "nn.functional.avg_pool1d": avg_pool(1), "nn.functional.avg_pool2d": avg_pool(2),
    "nn.functional.scaled_dot_product_attention": attention,
    "torch.ops.aten._scaled_dot_product_flash_attention_for_cpu": lambda *a, **k: need(False, "log sums"),
}
MAP |= {"masked." + name: masked(reducing(f), identity) for name, f, identity in
        (("sum", "sum", 0.0), ("prod", "prod", 1.0), ("amax", "max", -inf), ("amin", "min", inf))}
MAP |= {"masked.mean": masked_mean, "masked.softmax": masked(SOFT(P.softmax), -inf), "masked.log_softmax": masked(SOFT(P.log_softmax), -inf),
        "masked.softmin": masked(SOFT(lambda x, d: P.softmax(-x, d)), inf), "masked.cumsum": masked(MAP["cumsum"], 0.0),
        "masked.cumprod": masked(MAP["cumprod"], 1.0), "masked.argmax": masked(MAP["argmax"], -inf), "masked.argmin": masked(MAP["argmin"], inf),
        "masked.norm": masked(lambda x, ord, dim=None, keepdim=False, dtype=None: (need(ord >= 0), vector_norm(x, ord, dim, keepdim, dtype))[1], 0.0),
        "masked.logsumexp": masked(lambda x, dim=None, keepdim=False, dtype=None: MAP["logsumexp"](x, x.ndim - 1 if dim is None and x.ndim == 1 else dim, keepdim), -inf)}
MAP |= {  # creation
    "linspace": linspace, "linspace/tensor_overload": linspace, "logspace": logspace, "logspace/tensor_overload": logspace,
    "eye": lambda n, m=None, dtype=None, **_: P.eye(n, n if m is None else m, dtype or torch.float64),
    "arange": lambda a, b=None, s=1, end=None, step=None, dtype=None, **_: (lambda stop: P.arange(
        0 if stop is None else int(a) if isinstance(a, bool) else a, a if stop is None else stop, step or int(s) if isinstance(s, bool) else step or s,
        dtype or torch.float64))(end if end is not None else int(b) if isinstance(b, bool) else b),
    "full": lambda shape, v, dtype=None, **_: P.full(list(shape), v, dtype or torch.float64), "ones": created(1.0), "zeros": created(0.0),
    "zeros_like": unary_like(0.0), "ones_like": unary_like(1.0), "full_like": lambda x, v, dtype=None, **_: P.full(x.shape, v, dtype or x.dtype),
    "new_zeros": new(0.0), "new_ones": new(1.0), "new_full": lambda x, shape, v, dtype=None, **_: P.full(list(shape), v, dtype or x.dtype),
}
