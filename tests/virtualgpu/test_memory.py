"""The allocator's arithmetic, its message, and live bytes that are the CPU's to the byte."""

import re

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.checkpoint import checkpoint

from virtualgpu.cards import CARDS
from virtualgpu.gpu import VirtualGpu
from virtualgpu.memory import Allocator, OutOfMemory, amount

MIB, GIB = 2**20, 2**30
V100 = CARDS["v100-sxm2-16gb"]


@pytest.mark.parametrize(("size", "live"), [
    (0, 0), (1, 512), (512, 512), (513, 1024), (MIB, MIB), (MIB + 1, MIB + 512),
])
def test_a_request_is_rounded_to_512_bytes(size, live):
    memory = Allocator(GIB)
    memory.allocate(size)
    assert (memory.live, memory.peak, memory.requested) == (live, live, size)


@pytest.mark.parametrize(("size", "reserved"), [
    (1, 2 * MIB), (MIB, 2 * MIB), (MIB + 1, 20 * MIB), (10 * MIB - 512, 20 * MIB),
    (10 * MIB, 10 * MIB), (10 * MIB + 1, 12 * MIB), (33 * MIB, 34 * MIB),
])
def test_segments(size, reserved):
    memory = Allocator(GIB)
    memory.allocate(size)
    assert memory.reserved == memory.peak_reserved == reserved
    memory.release(size)
    assert (memory.live, memory.reserved, memory.peak_reserved) == (0, reserved, reserved)
    memory.allocate(size)  # from the cache
    assert memory.peak_reserved == reserved


def test_a_segment_serves_many_requests_of_its_pool_only():
    memory = Allocator(GIB)
    for _ in range(4):
        memory.allocate(MIB // 2)
    assert memory.reserved == 2 * MIB
    memory.allocate(1)
    assert memory.reserved == 4 * MIB
    memory.allocate(4 * MIB)  # of the other pool: free small blocks do not serve it
    assert memory.reserved == 24 * MIB
    memory.allocate(4 * MIB)
    assert memory.reserved == 24 * MIB


def test_the_peak_is_of_what_lives_at_once():
    memory = Allocator(GIB)
    for size in (3 * MIB, 5 * MIB):
        memory.allocate(size)
    memory.release(3 * MIB)
    memory.allocate(2 * MIB)
    assert (memory.live, memory.peak) == (7 * MIB, 8 * MIB)
    assert (memory.requested, memory.peak_requested) == (7 * MIB, 8 * MIB)


def test_the_cache_is_given_back_before_memory_runs_out():
    memory = Allocator(100 * MIB, 10 * MIB)
    memory.allocate(60 * MIB)
    memory.allocate(512)
    memory.release(60 * MIB)
    assert memory.reserved == 62 * MIB and memory.free == 28 * MIB
    memory.allocate(MIB // 2)  # nothing is given back without need
    assert memory.reserved == 62 * MIB
    memory.allocate(80 * MIB)
    assert memory.reserved == 82 * MIB and memory.free == 8 * MIB
    with pytest.raises(OutOfMemory):
        memory.allocate(9 * MIB)
    assert memory.live == 80 * MIB + MIB // 2 + 512  # as if it had not been asked


def test_the_last_byte_can_be_had_and_no_more():
    memory = Allocator(40 * MIB, 10 * MIB)
    memory.allocate(30 * MIB)
    assert memory.free == 0
    for ask in (memory.allocate, memory.take):
        with pytest.raises(OutOfMemory):
            ask(1)


def test_what_is_not_torch_s_takes_room():
    memory = Allocator(100 * MIB)
    memory.allocate(50 * MIB)
    memory.release(50 * MIB)
    memory.take(80 * MIB)  # the cache makes room for it
    assert (memory.reserved, memory.free, memory.taken) == (0, 20 * MIB, 80 * MIB)
    with pytest.raises(OutOfMemory, match=r"^CUDA out of memory. Tried to allocate 21.00 MiB"):
        memory.take(21 * MIB)
    assert memory.taken == 80 * MIB


def test_the_classic_message_to_the_letter():
    memory = Allocator(V100.memory, 600 * MIB)
    memory.allocate(15 * GIB)
    with pytest.raises(OutOfMemory) as error:
        memory.allocate(512 * MIB)
    assert str(error.value) == (
        "CUDA out of memory. Tried to allocate 512.00 MiB (GPU 0; 15.78 GiB total capacity; "
        "15.00 GiB already allocated; 200.00 MiB free; 15.00 GiB reserved in total by PyTorch)")


def test_what_programs_that_read_old_logs_look_for():
    """PyTorch 1.10: c10/cuda/CUDACachingAllocator.cpp, format_size and TORCH_CHECK_WITH."""
    size = r"\d+\.\d\d (?:KiB|MiB|GiB)|\d+ bytes"
    with pytest.raises(torch.OutOfMemoryError) as error, VirtualGpu(V100):
        torch.empty(2**33, device="meta")
    assert re.fullmatch(
        rf"CUDA out of memory\. Tried to allocate ({size}) \(GPU 0; ({size}) total capacity; "
        rf"({size}) already allocated; ({size}) free; ({size}) reserved in total by PyTorch\) "
        r"\[virtual v100-sxm2-16gb\]", str(error.value))


@pytest.mark.parametrize(("size", "text"), [
    (0, "0 bytes"), (1023, "1023 bytes"), (1024, "1.00 KiB"), (1536 * 1024, "1.50 MiB"),
    (16_160 * MIB, "15.78 GiB")])
def test_amounts(size, text):
    assert amount(size) == text


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 50 * MIB)), max_size=60))
def test_the_books_always_balance(requests):
    memory, held = Allocator(400 * MIB, 30 * MIB), []
    for give_back, size in requests:
        if give_back and held:
            memory.release(held.pop(size % len(held)))
        else:
            try:
                memory.allocate(size)
                held.append(size)
            except OutOfMemory:
                assert memory.reserved + 30 * MIB + size > 400 * MIB - 20 * MIB
        assert memory.requested == sum(held) <= memory.live == sum(
            -(-size // 512) * 512 for size in held)
        assert memory.live <= memory.reserved <= memory.peak_reserved <= 370 * MIB
        assert memory.peak_requested >= memory.requested and memory.peak >= memory.live
        assert memory.reserved % (2 * MIB) == 0


class Watched(VirtualGpu):
    """Notes the books after every operation."""

    def __init__(self, watched):
        super().__init__(CARDS["a100-80gb"], watched)
        self.notes = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = super().__torch_dispatch__(func, types, args, kwargs)
        if func.namespace == "aten":
            memory = self.memory
            self.notes.append((str(func), memory.requested, memory.peak_requested))
        return out


def normal(norm, x):
    return norm(x.float()).to(x.dtype)


class Gpt(torch.nn.Module):
    """Plain torch, no operation of ours. Norms are in fp32: of 16-bit ones the CPU keeps less than
    CUDA and meta do."""

    def __init__(self, layers, h, heads, s, vocabulary, again, device):
        super().__init__()
        self.heads, self.again = heads, again
        on = {"device": device}
        self.words = torch.nn.Embedding(vocabulary, h, **on)
        self.places = torch.nn.Embedding(s, h, **on)
        self.layers = torch.nn.ModuleList(torch.nn.ModuleDict({
            "norm1": torch.nn.LayerNorm(h, **on), "qkv": torch.nn.Linear(h, 3 * h, **on),
            "out": torch.nn.Linear(h, h, **on), "norm2": torch.nn.LayerNorm(h, **on),
            "up": torch.nn.Linear(h, 4 * h, **on), "down": torch.nn.Linear(4 * h, h, **on),
        }) for _ in range(layers))
        self.norm = torch.nn.LayerNorm(h, **on)

    def layer(self, x, part):
        b, s, h = x.shape
        q, k, v = (each.view(b, s, self.heads, -1).transpose(1, 2)
                   for each in part["qkv"](normal(part["norm1"], x)).chunk(3, -1))
        mask = torch.ones(s, s, dtype=torch.bool, device=x.device).triu(1)
        scores = (q @ k.transpose(2, 3)).mul(8**-0.5).masked_fill(mask, -1e4)
        mixed = F.dropout(scores.softmax(-1), 0.1) @ v
        x = x + F.dropout(part["out"](mixed.transpose(1, 2).reshape(b, s, h)), 0.1)
        wide = F.gelu(part["up"](normal(part["norm2"], x)))
        return x + F.dropout(part["down"](wide), 0.1)

    def forward(self, tokens, labels):
        b, s = tokens.shape
        x = self.words(tokens) + self.places(torch.arange(s, device=tokens.device))
        for part in self.layers:
            x = checkpoint(self.layer, x, part, use_reentrant=False, preserve_rng_state=False
                           ) if self.again else self.layer(x, part)
        logits = normal(self.norm, x) @ self.words.weight.t()
        return F.cross_entropy(logits.view(b * s, -1), labels.view(-1))


def steps(device, again, dtype=torch.float32):
    """The books after every operation of two steps with SGD."""
    with Watched(device) as gpu:
        model = Gpt(2, 32, 4, 24, 61, again, device)
        for module in model.modules():
            if isinstance(module, torch.nn.Linear | torch.nn.Embedding):
                module.to(dtype)
        for _ in range(2):
            tokens = torch.zeros(3, 24, dtype=torch.int64, device=device)
            loss = model(tokens, tokens)
            loss.backward()
            with torch.no_grad():
                for weight in model.parameters():
                    weight.sub_(weight.grad, alpha=0.1)
                    weight.grad = None
            del loss, tokens
        del weight
        weights = sum(p.numel() * p.element_size() for p in model.parameters())
        assert gpu.memory.requested == weights
        del model, module
        assert gpu.memory.requested == gpu.memory.live == 0
    return gpu.notes


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("again", [False, True], ids=["keeping", "recomputing"])
def test_bytes_on_meta_are_the_cpu_s_after_every_operation(again, dtype):
    meta, cpu = (steps(device, again, dtype) for device in ("meta", "cpu"))
    assert len(meta) > 300 and meta == cpu


def test_recomputation_lowers_the_peak():
    assert steps("meta", True)[-1][2] < 0.75 * steps("meta", False)[-1][2]


def test_what_only_autograd_keeps_is_counted_until_it_lets_go():
    """Python sees no tensor any more, the graph holds its storage."""
    with VirtualGpu(V100) as gpu:
        weight = torch.ones(1024, device="meta", requires_grad=True)
        out = (weight * 2).exp().sum()  # exp keeps its result
        assert gpu.memory.requested == 4 * (1024 + 1024 + 1)
        out.backward()
        assert gpu.memory.requested == 4 * (1024 + 1024 + 1)  # the result gone, the gradient there
        del out
        assert gpu.memory.requested == 4 * 2048


def test_views_and_operations_in_place_take_nothing():
    with VirtualGpu(V100) as gpu:
        x = torch.empty(8, 8, device="meta")
        before = gpu.memory.requested
        kept = [x.view(64), x.t(), x[0], x.expand(3, 8, 8), x.detach(), x.add_(1), x.view(64)[:5]]
        assert gpu.memory.requested == before == 256
        del x
        assert gpu.memory.requested == 256  # the views hold it
        del kept
        assert gpu.memory.requested == 0


def test_out_of_memory_leaves_the_books_as_they_were():
    with VirtualGpu(V100) as gpu:
        kept = torch.empty(2**30, device="meta")
        for _ in range(3):
            with pytest.raises(torch.OutOfMemoryError, match=r"Tried to allocate 12\.00 GiB"):
                torch.empty(3 * 2**30, device="meta")
        assert gpu.memory.requested == kept.nbytes
        torch.empty(2**30, device="meta")


def test_tensors_of_other_devices_are_not_counted():
    with VirtualGpu(V100) as gpu:
        torch.zeros(1000).add(1).sum().item()
        assert gpu.memory.requested == 0 and gpu.now() == 0.0
