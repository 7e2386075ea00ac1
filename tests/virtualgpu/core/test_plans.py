"""Operations are planned once and made by us: shapes, strides and types are those that torch makes,
and what torch refuses is refused."""

import sys

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from virtualgpu.core import kernels
from virtualgpu.core.cards import CARDS
from virtualgpu.core.errors import NoValue
from virtualgpu.core.gpu import VirtualGpu

A100 = CARDS["a100-80gb"]
HALF, INT = torch.float16, torch.int64


def meta(*shape, **how):
    return torch.empty(*shape, device="meta", **how)


def describe(value):
    if isinstance(value, torch.Tensor):
        # Of a dimension of one element the stride says nothing.
        strides = [0 if size == 1 else stride
                   for size, stride in zip(value.shape, value.stride(), strict=True)]
        return tuple(value.shape), strides, value.dtype, value.requires_grad
    if isinstance(value, (list, tuple)):
        return [describe(item) for item in value]
    return value


def compare(program):
    """Return `program`'s results on meta tensors and on a virtual GPU, planned and replayed."""
    expected = describe(program())
    with VirtualGpu(A100):
        for _ in range(2):
            assert describe(program()) == expected


def backward(make, *shapes, **how):
    def program():
        inputs = [meta(*shape, requires_grad=True, **how) for shape in shapes]
        out = make(*inputs)
        out.sum().backward()
        return [out, *(x.grad for x in inputs)]
    return program


LABELS = (6,)
PROGRAMS = {
    "products": lambda: [meta(3, 4) @ meta(4, 5), meta(2, 3, 4) @ meta(2, 4, 5),
                         meta(2, 3, 4) @ meta(4, 5), torch.addmm(meta(5), meta(3, 4), meta(4, 5)),
                         torch.baddbmm(meta(1, 3, 5), meta(2, 3, 4), meta(2, 4, 5)),
                         meta(4, 3).t() @ meta(5, 4).t(), meta(4) @ meta(4)],
    "16 bits": lambda: [meta(3, 4, dtype=HALF) @ meta(4, 5, dtype=HALF), meta(3, dtype=HALF) * 2.5,
                        meta(3, dtype=HALF) + meta(3), meta(3, dtype=HALF).float(),
                        meta(3).half().sum(), meta(2, 3, dtype=HALF).softmax(-1)],
    "ranges": lambda: [torch.arange(*numbers, device="meta", **how) for numbers, how in (
        ((5,), {}), ((2, 9, 3), {}), ((5, 0, -2), {}), ((3, 3), {}), ((0.5, 2), {}),
        ((4,), {"dtype": HALF}))],
    "elementwise": lambda: [meta(3, 4) + meta(4), meta(3, 1) * meta(1, 4), meta(3, 4).t() + 1,
                            torch.frexp(meta(3, 4)), torch.frexp(meta(3, 4).t()),
                            torch.bucketize(meta(3, 4), meta(5)),
                            torch.searchsorted(meta(5), meta(3, 4), out_int32=True),
                            meta(1, 4).expand(3, 4) * 2, meta(3, 4).t() + meta(4, 3),
                            meta(3, 4).t() + meta(3, 4).t(), F.gelu(meta(3, 4)), -meta(3),
                            meta(3).exp(), meta(2, 3, 4).transpose(0, 1) / 2, meta(3) ** 2],
    "whole numbers": lambda: [meta(3, dtype=INT) * 2, meta(3, dtype=INT) * 2.0,
                              meta(3, dtype=INT) / 2, meta(3, dtype=INT) + True,
                              meta(3, dtype=INT).sum(), meta(3, dtype=INT).exp()],
    "comparisons": lambda: [meta(3) > 0, meta(3, 4) == meta(4), meta(3).isfinite(),
                            torch.where(meta(3) > 0, meta(3), 0.0), ~(meta(3) > 0),
                            (meta(3) > 0).any(), torch.where(meta(3) > 0, meta(3), meta(3))],
    "reductions": lambda: [meta(3, 4).sum(), meta(3, 4).sum(0), meta(3, 4).sum(-1, keepdim=True),
                           meta(3, 4).sum((0, 1)), meta(3, 4).amax(-1), meta(3, 4).mean(1),
                           torch.linalg.vector_norm(meta(3, 4), dim=1, dtype=torch.float32),
                           torch.linalg.vector_norm(meta(3, 4)), meta(3, dtype=HALF).sum(
                               dtype=torch.float32)],
    "made": lambda: [torch.zeros(3, 4, device="meta"), torch.full((2,), 1.5, device="meta"),
                     torch.full((2,), 1, device="meta"), torch.full((2,), True, device="meta"),
                     torch.arange(5, device="meta"), torch.ones_like(meta(3, 4).t()),
                     meta(3).new_zeros(2, dtype=INT), meta(3, dtype=HALF).new_empty(2, 5),
                     torch.zeros_like(meta(3), dtype=INT),
                     torch.ones(2, dtype=HALF, device="meta")],
    "moved": lambda: [torch.cat([meta(3, 4), meta(2, 4)]), torch.cat([meta(3, 4), meta(3, 1)], -1),
                      torch.stack([meta(3, 4), meta(3, 4)], 1), meta(3, 4).t().clone(),
                      torch.stack([meta(3), meta(3)], -1), meta(3, 4).t().contiguous(),
                      meta(3, 4).t().reshape(12), meta(2, 3, 4).permute(1, 2, 0).clone(),
                      meta(3, 4).t().half(), meta(3, 8)[:, ::2].clone(), meta(5)[::2].half()],
    "looked up": lambda: [F.embedding(meta(2, 3, dtype=INT), meta(9, 4)),
                          meta(9, 4)[meta(3, dtype=INT)],
                          meta(3, 9).gather(1, meta(3, 1, dtype=INT))],
    "in place": lambda: [meta(3, 4).add_(1), meta(3, 4).mul_(meta(4)), meta(3, 4).zero_(),
                         meta(3, 4).copy_(meta(4)), meta(3, dtype=HALF).copy_(meta(3)),
                         meta(3, 4).t().fill_(2), meta(3).lerp_(meta(3), 0.5),
                         torch.add(meta(3), meta(3), out=meta(3))],
    "named again": lambda: [meta(3, 4).unsqueeze_(0), meta(3, 4).t_(), meta(1, 3).squeeze_(0),
                            meta(3, 4).detach_(), meta(3, 4).view(12), meta(3).resize_(5)],
    "several": lambda: [torch._foreach_mul([meta(3), meta(4)], 2), meta(5).sort()[0],
                        torch._foreach_add_([meta(3), meta(4)], 1), meta(5).topk(2)[1]],
    "norm": backward(lambda x, w, b: F.layer_norm(x, (4,), w, b), (3, 4), (4,), (4,)),
    "norm alone": backward(lambda x: F.layer_norm(x, (4,)), (3, 4)),
    "norm of a constant": backward(lambda w: F.layer_norm(meta(3, 4), (4,), w), (4,)),
    "RMSNorm": backward(lambda x, w: F.rms_norm(x, (3, 4), w), (2, 3, 4), (3, 4)),
    "RMSNorm alone": backward(lambda x: F.rms_norm(x.transpose(0, 1), (3,)), (3, 4)),
    "loss": backward(lambda x: F.cross_entropy(x, meta(*LABELS, dtype=INT)), (6, 9)),
    "losses": backward(lambda x: F.cross_entropy(x, meta(*LABELS, dtype=INT), reduction="none"),
                       (6, 9)),
    "linear": backward(F.linear, (2, 3, 4), (5, 4), (5,)),
    "attention": backward(lambda q, k, v: (q @ k.transpose(1, 2)).softmax(-1) @ v,
                          (2, 3, 4), (2, 3, 4), (2, 3, 4)),
    "embedding": backward(lambda w: F.embedding(meta(2, 3, dtype=INT), w), (9, 4)),
    "permuted": backward(lambda x: x.transpose(0, 1).reshape(3, -1).exp(), (2, 3, 4)),
    "in bf16": backward(lambda x, w: F.gelu(x @ w), (3, 4), (4, 5), dtype=torch.bfloat16),
}


@pytest.mark.parametrize("program", PROGRAMS)
def test_results_are_those_of_torch(program):
    compare(PROGRAMS[program])


SIDES = st.integers(1, 4)


@settings(max_examples=60)
@given(st.lists(SIDES, min_size=1, max_size=4), st.randoms(use_true_random=False),
       st.sampled_from((torch.float32, HALF, INT, torch.bool)),
       st.sampled_from((torch.float32, HALF, INT)))
def test_any_two_operands(shape, random, one, other):
    """Broadcast, permuted and sliced, of any two types."""
    order = random.sample(range(len(shape)), len(shape))
    thin = [1 if random.random() < 0.3 else size for size in shape]
    wide = [2 * size for size in shape]

    def program():
        x, y = meta(wide, dtype=one), meta(thin, dtype=other)
        x = x[tuple(slice(0, size) for size in shape)].permute(order)
        y = y.permute(order)
        return [x + y, x * y, torch.where(x > 0, y, x), x.clone(), x.to(other), x.sum(-1), x > y,
                x.contiguous() + y, torch.zeros_like(x), y.reshape(-1), x.amax(0)]

    compare(program)


REFUSED = {
    "a product that does not join": lambda: meta(3, 4) @ meta(5, 6),
    "products of two batches": lambda: torch.bmm(meta(3, 4, 5), meta(2, 5, 6)),
    "a product of two types": lambda: meta(3, 4) @ meta(4, 5, dtype=HALF),
    "shapes that do not spread": lambda: meta(3) + meta(4),
    "a target that is too small": lambda: meta(3).add_(meta(4)),
    "a target that would grow": lambda: meta(1).add_(meta(4)),
    "a range that never ends": lambda: torch.arange(5, 0, device="meta"),
    "a tensor that is elsewhere": lambda: meta(3) + torch.zeros(3),
    "a target that is elsewhere": lambda: torch.zeros(3).add_(meta(3)),
}


@pytest.mark.parametrize("program", REFUSED)
def test_what_a_real_card_refuses(program):
    with pytest.raises((RuntimeError, NoValue)), VirtualGpu(A100):
        REFUSED[program]()


def test_operations_of_the_trainer_do_not_import_the_compiler(monkeypatch):
    """Its import takes each rank 0.5 s."""
    for name in ("sympy", "torch.fx.experimental.symbolic_shapes"):
        monkeypatch.setitem(sys.modules, name, None)
    with VirtualGpu(A100):
        x = meta(3, 1, 4, requires_grad=True)
        out = kernels.dropout(x * 2, meta(3, 1, 4, dtype=torch.bool))
        (out * torch.arange(4, device="meta")).sum().backward()
        other = torch.where(meta(3, 4, dtype=torch.bool), 0.0, meta(3, 1))
        assert other.sub_(meta(3, 1)).shape == (3, 4) and x.grad.shape == x.shape


VALUES = {
    "item": lambda x: x[0].item(), "tolist": lambda x: x.tolist(), "if": lambda x: bool(x[0] > 0),
    "float": lambda x: float(x[0]), "cpu": lambda x: x.cpu(), "to": lambda x: x.to("cpu"),
    "copy_": lambda x: torch.zeros(3).copy_(x), "nonzero": lambda x: x.nonzero(),
    "a mask": lambda x: x[x > 0], "equal": lambda x: torch.equal(x, x),
    "unique": lambda x: x.unique(), "allclose": lambda x: torch.allclose(x, x),
}


@pytest.mark.parametrize("how", VALUES)
def test_a_value_that_is_read_is_explained(how):
    with VirtualGpu(A100):
        torch.zeros(3)[0].item()  # reading the host's is nothing
        for _ in range(2):
            with pytest.raises(NoValue) as error:
                VALUES[how](meta(3))
    line = VALUES[how].__code__.co_firstlineno
    assert str(error.value).startswith(f"{__file__}, line {line} (")
    assert "virtual a100-80gb" in str(error.value) and "ctx.read" in str(error.value)


def test_a_plan_s_memory_and_time_are_those_of_its_first_run():
    with VirtualGpu(A100) as gpu:
        seen = []
        for _ in range(3):
            start, before = gpu.now(), gpu.memory.requested
            kept = F.gelu(meta(512, 512) @ meta(512, 512))
            seen.append((gpu.memory.requested - before, gpu.memory.peak_requested))
            del kept
            seen[-1] += (round(gpu.now() - start, 12),)
    assert seen[0] == seen[1] == seen[2]
