"""Peak memory by category, to the byte, on programs that can be counted by hand."""

from contextlib import contextmanager

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from virtualgpu.core.cards import CARDS
from virtualgpu.core.gpu import VirtualGpu
from virtualgpu.export.ledger import Ledger
from virtualgpu.export.measures import measure

B, H, LAYERS = 32, 128, 4
X, W = 4 * B * H, 4 * H * H  # bytes of an activation and of a weight; both multiples of 512
SCALAR = 512


@contextmanager
def accounted():
    with VirtualGpu(CARDS["a100-80gb"]) as gpu:
        ledger = Ledger(gpu)
        ledger.start()
        yield ledger
        ledger.stop()


def at_peak(ledger):
    """Categories that hold anything; they must add up to the peak."""
    memory = measure(ledger)["memory"]
    assert sum(memory["at_peak"].values()) == memory["peak_allocated_bytes"]
    return {name: size for name, size in memory["at_peak"].items() if size}


def chain():
    return nn.Sequential(*(nn.Linear(H, H, bias=False) for _ in range(LAYERS))).to("meta")


def data():
    return torch.empty(B, H, device="meta")


def test_a_forward_and_a_backward_pass():
    """At the peak autograd computes the first layer's weight gradient: the input is still saved,
    and the program holds the output, the loss, and the gradient of the loss. Each later layer's
    input is gone."""
    with accounted() as ledger:
        model, x = chain(), data()
        out = model(x)
        loss = out.sum()
        loss.backward()
    # Temporary: the gradient of the first layer's output.
    assert at_peak(ledger) == {"parameters": LAYERS * W, "gradients": LAYERS * W,
                               "activations": 2 * X + 2 * SCALAR, "temporary": X}


def test_activations_are_what_autograd_saves():
    """With inputs much larger than weights, the peak lies in the last layer's backward pass."""
    rows = 64 * B
    with accounted() as ledger:
        model = chain()
        model(torch.empty(rows, H, device="meta")).exp().sum().backward()
    big = 4 * rows * H
    # Every layer's input is saved. Temporary: the gradients of the last layer's output and input.
    assert at_peak(ledger) == {"parameters": LAYERS * W, "gradients": W,
                               "activations": LAYERS * big + 2 * SCALAR, "temporary": 2 * big}


def test_a_parameter_that_is_tied_twice_counts_once():
    with accounted() as ledger:
        words = nn.Embedding(256, H, device="meta")
        head = nn.Linear(H, 256, bias=False, device="meta")
        head.weight = words.weight
        tokens = torch.zeros(2, 8, dtype=torch.int64, device="meta")
        loss = head(words(tokens)).sum()
        del tokens
        loss.backward()
        assert measure(ledger)["memory"]["at_peak"]["parameters"] == 4 * 256 * H


@pytest.mark.parametrize("foreach", [False, True], ids=["one by one", "foreach"])
def test_adamw_keeps_two_moments_of_every_parameter(foreach):
    with accounted() as ledger:
        model = chain()
        optimizer = torch.optim.AdamW(model.parameters(), foreach=foreach)
        for _ in range(2):
            model(data()).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    peak = at_peak(ledger)
    assert peak["optimizer_state"] == 2 * peak["parameters"] == 2 * LAYERS * W
    assert peak["gradients"] == LAYERS * W and "other" not in peak


def test_gradients_that_are_views_of_a_bucket_count_once_as_gradients():
    """Make buckets as DDP does with gradient_as_bucket_view=True."""
    with accounted() as ledger:
        model = chain()
        bucket = torch.zeros(LAYERS * H * H, device="meta")
        for number, parameter in enumerate(model.parameters()):
            start = number * H * H
            parameter.grad = bucket[start:start + H * H].view(H, H)
        optimizer = torch.optim.SGD(model.parameters())
        model(data()).sum().backward()
        optimizer.step()
    peak = at_peak(ledger)
    assert peak["gradients"] == LAYERS * W and peak["parameters"] == LAYERS * W
    # Before a weight's gradient is added to the bucket, it is temporary, with its layer's output's.
    assert peak["temporary"] == W + X


def test_main_grad_is_a_gradient():
    """Megatron-LM's data parallelism attaches it to every parameter, a view of its buffer."""
    with accounted() as ledger:
        model = chain()
        buffer = torch.zeros(LAYERS * H * H, device="meta")
        for number, parameter in enumerate(model.parameters()):
            parameter.main_grad = buffer[number * H * H:(number + 1) * H * H].view(H, H)
        torch.optim.SGD(model.parameters()).step()
    assert at_peak(ledger) == {"parameters": LAYERS * W, "gradients": LAYERS * W}


def test_buckets_beside_the_gradients_hold_gradients_too():
    """Make buckets as DDP does with gradient_as_bucket_view=False: reduced in backward passes."""
    with accounted() as ledger:
        model = chain()
        bucket = torch.zeros(LAYERS * H * H, device="meta")
        first = next(model.parameters())
        first.register_post_accumulate_grad_hook(
            lambda _: ledger.communicated("all_reduce", [bucket]))
        model(data()).sum().backward()
    assert at_peak(ledger)["gradients"] == 2 * LAYERS * W


def test_recomputed_activations_are_activations_and_their_flops_are_not_the_model_s():
    def run(again):
        with accounted() as ledger:
            model, x = chain(), torch.empty(64 * B, H, device="meta", requires_grad=True)
            for _ in range(2):
                out = checkpoint(model, x, use_reentrant=again == "reentrant") if again else (
                    model(x))
                out.sum().backward()
                ledger.mark()
        return measure(ledger)

    plain, nested, hooked = (run(again) for again in (None, "reentrant", "hooks"))
    one = 2 * LAYERS * 64 * B * H * H  # FLOPs of a forward pass
    assert plain["flops"]["model_per_step"] == 3 * one
    assert plain["flops"]["recomputed_per_step"] == 0
    assert nested["flops"]["model_per_step"] == hooked["flops"]["model_per_step"] == 3 * one
    assert nested["flops"]["recomputed_per_step"] == one
    assert hooked["flops"]["recomputed_per_step"] in (one, one - one // LAYERS)  # it stops early
    for each in (nested, hooked):
        assert each["flops"]["hfu"] > each["flops"]["mfu"]
        assert each["memory"]["at_peak"]["activations"] >= LAYERS * 4 * 64 * B * H


def test_recomputation_inside_a_function_s_own_backward_is_reported():
    class Again(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, weight):
            ctx.save_for_backward(x, weight)
            return x @ weight

        @staticmethod
        def backward(ctx, gradient):
            x, weight = ctx.saved_tensors
            x @ weight  # again, and nothing says so
            return gradient @ weight.t(), x.t() @ gradient

    with accounted() as ledger:
        x = torch.empty(B, H, device="meta", requires_grad=True)
        weight = nn.Parameter(torch.empty(H, H, device="meta"))
        for _ in range(2):
            Again.apply(x, weight).sum().backward()
            ledger.mark()
    measured = measure(ledger)
    assert not measured["flops"]["recomputation_identified"]
    assert "3.00 times" in measured["assumptions"][0]["text"]


def test_buffers_and_what_the_program_keeps():
    with accounted() as ledger:
        model = chain()
        model.register_buffer("table", torch.zeros(H, H, device="meta"))
        kept = torch.zeros(2 * H, H, device="meta")
        optimizer = torch.optim.SGD(model.parameters())
        for _ in range(3):
            model(data()).sum().backward()
            optimizer.step()
        del kept
    peak = at_peak(ledger)
    assert peak["buffers"] == W and peak["other"] == 2 * W


def test_results_that_no_backward_pass_needs_are_temporary():
    with accounted() as ledger, torch.no_grad():
        model = chain()
        model(data())
    # The program's input, and one layer's input and output.
    assert at_peak(ledger) == {"parameters": LAYERS * W, "temporary": 3 * X}


def test_what_lives_when_memory_runs_out_in_a_forward_pass_is_activations():
    with accounted() as ledger:
        model, kept = chain(), [torch.empty(H, H, device="meta", requires_grad=True)]
        with pytest.raises(torch.OutOfMemoryError):
            while True:
                kept.append(kept[-1].repeat(8, 1).exp())
        ledger.stop()
        peak = at_peak(ledger)
        del model
    # Temporary: the operand of the last exponential that fitted.
    assert peak == {"parameters": LAYERS * W, "temporary": kept[-1].nbytes,
                    "activations": sum(tensor.nbytes for tensor in kept)}


def test_parameters_are_known_even_where_the_program_has_dropped_its_model():
    with accounted() as ledger, torch.no_grad():
        model = chain()
        for _ in range(4):
            model(data())
        del model
    assert at_peak(ledger)["parameters"] == LAYERS * W


def test_parameters_of_a_lazy_layer_are_known_once_it_has_them():
    with accounted() as ledger:
        model = nn.LazyLinear(H, bias=False, device="meta")
        with torch.no_grad():
            model(data())
    assert at_peak(ledger)["parameters"] == W


def test_parameters_are_known_even_where_an_error_has_unwound_their_modules():
    with accounted() as ledger, pytest.raises(torch.OutOfMemoryError):
        [nn.Linear(2**15, 2**15, bias=False, device="meta") for _ in range(100)]
    assert at_peak(ledger) == {"parameters": 19 * 2**32}


def test_the_peak_is_the_allocator_s_and_includes_what_was_there_before():
    with VirtualGpu(CARDS["a100-80gb"]) as gpu:
        before = torch.empty(H, H, device="meta")
        ledger = Ledger(gpu)
        ledger.start()
        more = torch.empty(H, H, device="meta")
        del more
        ledger.stop()
        assert sum(at_peak(ledger).values()) == gpu.memory.peak == 2 * W
        del before


def test_storages_that_are_resized_stay_what_they_are():
    """Free and restore gathered parameters as FSDP does."""
    with accounted() as ledger:
        gpu = ledger.gpu
        weight = nn.Parameter(torch.empty(H, H, device="meta"))
        nn.Module().register_parameter("weight", weight)
        key = weight.untyped_storage()._cdata
        ledger.label(key, "parameters")
        gpu.resize(key, 0)
        assert ledger.blocks.live[key].size == 0
        gpu.resize(key, W)
    assert at_peak(ledger) == {"parameters": W}


def test_an_optimizer_of_ones_own_has_master_weights_moments_and_gradients():
    """Megatron-style: flat buffers, and torch's fused kernel instead of an optimizer class."""
    with accounted() as ledger:
        layer = nn.Linear(H, H, bias=False, device="meta", dtype=torch.bfloat16)
        gradients, *states = (torch.zeros(H * H, device="meta") for _ in range(4))
        count = torch.zeros((), device="meta")
        layer(torch.empty(B, H, device="meta", dtype=torch.bfloat16))
        torch._fused_adamw_([states[0]], [gradients], [states[1]], [states[2]], [], [count],
                            lr=0.1, beta1=0.9, beta2=0.95, weight_decay=0.1, eps=1e-8,
                            amsgrad=False, maximize=False)
    peak = at_peak(ledger)
    assert (peak["gradients"], peak["optimizer_state"]) == (W, 3 * W)
    assert peak["parameters"] == W // 2


def test_numbers_that_change_from_step_to_step_do_not_hide_the_repetition():
    with accounted() as ledger:
        x, w = data(), torch.empty(H, H, device="meta")
        for step in range(6):
            (x @ w).add(0.5 + step).exp()
        assert measure(ledger)["step"]["count"] >= 3
