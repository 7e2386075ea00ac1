"""Our rules give the shapes and dtypes that torch's meta kernels give."""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Callable
from random import Random

import pytest
import torch
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from virtualgpu.core.operand import tensors
from virtualgpu.core.plan import OperationKind, changed_argument, kind_of, nested
from virtualgpu.core.rules.pointwise import is_elementwise
from virtualgpu.core.rules.results import result_rule_of
from virtualgpu.core.rules.returns import RESULT_RULES
from virtualgpu.core.rules.work import is_free
from virtualgpu.replay import BadRecord
from virtualgpu.replay.operations import decode_operation, encode_operation

DTYPES = (torch.float32, torch.bfloat16, torch.float64, torch.int64, torch.bool, torch.complex64)
ROUNDS = 3


class Compared(TorchDispatchMode):
    """Describes every operation as a record does, and lets our rules read it."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.wrong: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if kind_of(func) is OperationKind.COMPOSITE:
            with self:
                out = func.decompose(*args, **kwargs)
            if out is not NotImplemented:
                return out
        operands = tensors((*args, *kwargs.values()))
        out = func(*args, **kwargs)
        if kind_of(func) is OperationKind.COSTED and not is_free(func):
            changed = changed_argument(func, args, kwargs) if operands else None
            text = encode_operation(func, args, kwargs, operands, [True] * len(operands),
                                    list(nested(out)) if changed is None else [])
            try:
                decode_operation(json.loads(text), "operation")
                self.names.add(str(func._overloadpacket))
            except BadRecord as error:
                self.wrong.append(f"{error}: {text[:400]}")
        return out


def shapes(random: Random) -> list[list[int]]:
    """Return two shapes that broadcast."""
    whole = [random.choice([1, 2, 3, 4, 8]) for _ in range(random.randint(0, 4))]
    part = [1 if random.random() < 0.3 else size for size in whole[random.randint(0, 1):]]
    return random.sample([whole, part], 2)


def made(shape: list[int], dtype: torch.dtype = torch.float32, grad: bool = False) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta", requires_grad=grad)


def attempted(compared: Compared, call: Callable[[], object]) -> None:
    """Make a call, unless torch refuses these operands."""
    with contextlib.suppress(Exception), compared:  # meta kernels raise errors of many types
        call()


def elementwise_names() -> list[str]:
    """The operations that are elementwise, such as "aten.add"."""
    names = {full.replace("::", ".") for full in torch._C._dispatch_get_all_op_names()}
    return sorted({name for full in names
                   if is_elementwise(name := ".".join(full.split(".")[:2]))})


def test_elementwise_operations():
    compared, random = Compared(), Random(0)
    names = [name for name in elementwise_names() if not name.endswith("_")]
    for name in names:
        packet = getattr(torch.ops.aten, name.removeprefix("aten."))
        for overload, dtype, _ in itertools.product(packet.overloads(), DTYPES, range(2)):
            if "out" in overload:
                continue
            first, second = shapes(random)
            schema = getattr(packet, overload)._schema.arguments
            args, others = [], [first, second, first]
            for item in schema:
                if item.has_default_value():
                    continue
                kind = str(item.real_type)
                if item.name in ("condition", "mask"):
                    args.append(made(first, torch.bool))
                elif kind == "Tensor":
                    args.append(made(others.pop(0) if others else first, dtype))
                else:
                    args.append({"str": "none", "bool": False}.get(
                        kind, random.choice([2, 1.5]) if kind in ("number", "float") else 2))
            attempted(compared, lambda: getattr(packet, overload)(*args))  # noqa: B023
    assert not compared.wrong, "\n".join(compared.wrong)
    assert len(compared.names & {*names}) >= 0.9 * len(names)


def test_lists_of_tensors():
    compared = Compared()
    for name in torch._C._dispatch_get_all_op_names():
        base, _, overload = name.removeprefix("aten::").partition(".")
        if (not base.startswith("_foreach_") or "out" in overload
                or not result_rule_of(f"aten.{base}")):
            continue
        func = getattr(getattr(torch.ops.aten, base), overload or "default")
        for dtype in (torch.float32, torch.bfloat16):
            args = [{"List[Tensor]": [made([2, 3], dtype), made([4], dtype)],
                     "Tensor": made([]), "List[number]": [2.0, 3.0]}.get(str(item.real_type), 2.0)
                    for item in func._schema.arguments if not item.has_default_value()]
            attempted(compared, lambda: func(*args))  # noqa: B023
    assert not compared.wrong, "\n".join(compared.wrong)
    assert len(compared.names) > 90


def calls(random: Random, dtype: torch.dtype) -> list[Callable[[], object]]:
    """Calls of a drawn shape; most have a backward pass."""
    b, h, s, d = (random.choice([1, 2, 4, 6, 8]) for _ in range(4))
    whole = [b, h, s, d]
    grad = dtype.is_floating_point
    x, y = made(whole, dtype, grad), made(whole, dtype, grad)
    dim, keep = random.randrange(-4, 4), random.random() < 0.5
    dims = random.sample(range(4), random.randint(1, 3))
    m, n = made([s, d], dtype, grad), made([d, h], dtype, grad)
    index = made([b, h], torch.int64)
    labels, target = made([b * h], torch.int64), made([b * h, d], dtype)
    images, kernel = made([b, 4, 9, 8 + s], dtype, grad), made([6, 2, 3, 3], dtype, grad)
    stride, padding = random.randint(1, 3), random.randint(0, 1)
    logits = made([b * h, d], dtype, grad)

    def backward(out: torch.Tensor) -> None:
        if out.requires_grad:
            out.sum().backward()

    reductions = [lambda op=op: op(x, dim, keepdim=keep) for op in (
        torch.sum, torch.mean, torch.amax, torch.amin, torch.var, torch.std, torch.logsumexp,
        torch.any, torch.all, torch.argmax, torch.argmin, torch.max, torch.min, torch.median,
        torch.mode, torch.prod, torch.nansum, torch.var_mean, torch.std_mean, torch.cummax,
        torch.linalg.vector_norm, torch.kthvalue)]
    whole_reductions = [lambda op=op: op(x) for op in (
        torch.sum, torch.mean, torch.max, torch.min, torch.any, torch.all, torch.argmax, torch.prod,
        torch.aminmax, torch.norm, torch.count_nonzero, torch.median, torch.clone, torch.triu,
        torch.tril, torch.zeros_like, torch.ones_like, torch.rand_like, torch.bernoulli,
        torch.nonzero, F.relu, F.silu, F.gelu, F.logsigmoid, F.hardswish, F.elu)]
    along = [lambda op=op: op(x, dim) for op in (
        torch.cumsum, torch.cumprod, torch.sort, torch.softmax, torch.log_softmax)]
    matrices = [
        lambda: backward(m @ n), lambda: backward(torch.addmm(made([h], dtype), m, n)),
        lambda: backward(made([b, s, d], dtype, grad) @ made([b, d, h], dtype, grad)),
        lambda: backward(F.linear(x, made([h, d], dtype, grad), made([h], dtype, grad))),
        lambda: torch.baddbmm(made([s, h], dtype), made([b, s, d], dtype), made([b, d, h], dtype)),
        lambda: m @ made([d], dtype), lambda: torch.outer(made([s], dtype), made([d], dtype)),
        lambda: torch.mm(m.detach(), n.detach(), out=made([s, h], dtype)),
        lambda: torch.trace(m)]
    layers = [
        lambda: backward(F.layer_norm(x, [d], made([d], dtype, grad), made([d], dtype, grad))),
        lambda: backward(F.batch_norm(x, None, None, training=True)),
        lambda: backward(F.group_norm(made([b, 4, s], dtype, grad), 2)),
        lambda: backward(F.dropout(x)), lambda: backward(F.glu(made([b, 2 * d], dtype, grad))),
        lambda: backward(F.cross_entropy(logits, labels)),
        lambda: F.cross_entropy(logits, labels, reduction="none"),
        lambda: backward(F.mse_loss(logits, target)), lambda: backward(F.smooth_l1_loss(x, y)),
        lambda: backward(F.huber_loss(x, y)), lambda: F.kl_div(x, y, reduction="batchmean"),
        lambda: backward(F.binary_cross_entropy_with_logits(logits, target)),
        lambda: backward(F.embedding(index, made([9, d], dtype, grad))),
        lambda: backward(F.scaled_dot_product_attention(x, x, y, is_causal=True))]
    images_calls = [
        lambda: backward(F.conv2d(images, kernel, made([6], dtype, grad), stride, padding, 1, 2)),
        lambda: backward(F.conv_transpose2d(images, made([4, 3, 3, 2], dtype, grad),
                                            None, stride, padding)),
        lambda: backward(F.conv1d(made([b, 4, 9], dtype, grad), made([5, 4, 3], dtype, grad))),
        lambda: backward(F.max_pool2d(images, 3, stride, padding, ceil_mode=keep)),
        lambda: backward(F.avg_pool2d(images, 2, stride, padding, ceil_mode=keep)),
        lambda: backward(F.adaptive_avg_pool2d(images, (3, 2))),
        lambda: backward(F.pad(images, (1, 2, padding, 0)))]
    moves = [
        lambda: torch.cat([x, y], dim), lambda: torch.stack([x, y], dim),
        lambda: x.repeat(2, *whole), lambda: torch.roll(x, 1, dim), lambda: torch.flip(x, dims),
        lambda: torch.gather(x, dim, made(whole, torch.int64)), lambda: x[index.new_empty([3])],
        lambda: x[:, index.new_empty([3]), :, index.new_empty([2, 3])], lambda: x.sum(dims),
        lambda: x.index_select(dim, made([5], torch.int64)), lambda: x.to(torch.float16),
        lambda: torch.where(made([s, d], torch.bool), x, y),
        lambda: torch.topk(x, 1, dim),
        lambda: x.scatter(dim, made(whole, torch.int64), y),
        lambda: x.scatter_add(dim, made(whole, torch.int64), y),
        lambda: x.index_add(0, made([b], torch.int64), y), lambda: x.masked_fill(x > 0, 1),
        lambda: x.detach().index_put_((made([3], torch.int64),), made([h, s, d], dtype)),
        lambda: x.detach().copy_(made([d], dtype)), lambda: x.detach().fill_(1),
        lambda: x.detach().zero_(), lambda: x.detach().add_(made([s, d], dtype), alpha=2),
        lambda: torch.diag_embed(x), lambda: torch.diagonal_copy(x), lambda: x.unfold(3, 1, 1),
        lambda: backward(x[:, :, :1]), lambda: backward(x[0]), lambda: backward(x.unfold(3, 1, 1)),
        lambda: x.unsafe_split(2, dim), lambda: torch.split_with_sizes_copy(x, [1, d - 1], 3),
        lambda: torch._chunk_cat([x, y], 0, 2)]
    factories = [
        lambda: torch.zeros(whole, device="meta"), lambda: torch.full([s], 2, device="meta"),
        lambda: torch.full([s], 2.0, device="meta"), lambda: torch.eye(s, d, device="meta"),
        lambda: torch.arange(s, device="meta"), lambda: torch.arange(3, 3 + s, 2, device="meta"),
        lambda: torch.linspace(0, 1, s, device="meta"), lambda: torch.randn(whole, device="meta"),
        lambda: torch.randint(9, whole, device="meta"), lambda: torch.randperm(s, device="meta"),
        lambda: torch.tril_indices(s, d, dim, device="meta"), lambda: x.new_zeros(whole),
        lambda: torch.triu_indices(s, d, dim, device="meta"), lambda: x.new_full([2], 1),
        lambda: torch.normal(x.detach(), 1.0), lambda: torch.nn.init.normal_(x.detach()),
        lambda: torch.nn.init.uniform_(x.detach()), lambda: torch.multinomial(m, 1)]
    return [*reductions, *whole_reductions, *along, *matrices, *(layers if grad else []),
            *images_calls, *moves, *factories]


def test_operations_of_training():
    compared = Compared()
    for seed, dtype in itertools.product(range(ROUNDS), DTYPES):
        for call in calls(Random(f"{seed} {dtype}"), dtype):
            attempted(compared, call)
    assert not compared.wrong, "\n".join(compared.wrong)
    assert len(compared.names) > 130


def test_every_rule_is_for_an_operation_of_torch():
    known = {name.replace("::", ".").split(".")[0] + "." + name.split("::")[1].split(".")[0]
             for name in torch._C._dispatch_get_all_op_names()}
    missing = [name for name in RESULT_RULES if name not in known
               and f"{name}_" not in known and not name.startswith("fsdp.")]
    assert missing == []


@pytest.mark.parametrize("name", ["aten._foobar", "aten.resize", "aten.set", "aten._cudnn_rnn",
                                  "aten._foreach_nothing", "aten._fused_nothing_"])
def test_the_list_is_closed(name):
    assert result_rule_of(name) is None


def test_every_elementwise_operation_is_in_the_list():
    missing = set()
    for full in torch._C._dispatch_get_all_op_names():
        namespace, _, name = full.partition("::")
        base, _, overload = name.partition(".")
        if namespace == "aten":
            func = getattr(getattr(torch.ops.aten, base), overload or "default", None)
            if (func is not None and torch.Tag.pointwise in func.tags
                    and kind_of(func) is OperationKind.COSTED
                    and result_rule_of(f"aten.{base}") is None):
                missing.add(base)
    assert missing == {"equal"}  # it returns no tensor
