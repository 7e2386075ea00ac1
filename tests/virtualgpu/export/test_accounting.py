"""Steps, FLOPs, tokens, and memory of a run, against what is known of it otherwise."""

import functools
import json

import pytest
import torch
from torch import nn

import virtualgpu
from minimegatron.formulas import state_bytes
from virtualgpu.core.cards import CARDS
from virtualgpu.core.gpu import VirtualGpu
from virtualgpu.export.ledger import Ledger
from virtualgpu.export.measures import measure
from virtualgpu.export.steps import period
from warmranks import run_ranks

from .accounted_trainer import run

A100 = CARDS["a100-80gb"]
H = 256


def accounted(program, error=None):
    """The measures of a program that is given its ledger, and that may end with an error."""
    with VirtualGpu(A100) as gpu:
        ledger = Ledger(gpu)
        ledger.start()
        program(ledger)
        ledger.stop()
    measured = measure(ledger, error=error)
    json.dumps(measured, allow_nan=False)  # data, and nothing else
    return measured


def training(steps, update):
    """A program that trains a small model and calls update(model, optimizer, ledger)."""
    def program(ledger):
        model = nn.Sequential(nn.Embedding(512, H), nn.Linear(H, H), nn.Linear(H, 512)).to("meta")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)
        for _ in range(steps):
            for _ in range(2):
                model(torch.zeros(4, 32, dtype=torch.int64, device="meta")).sum().backward()
            update(model, optimizer, ledger)
    return program


def by_hand(model, _optimizer, _ledger):
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.sub_(parameter.grad, alpha=0.1)
            parameter.grad = None


def with_optimizer(_model, optimizer, _ledger):
    optimizer.step()
    optimizer.zero_grad()


def with_mark(model, optimizer, ledger):
    with_optimizer(model, optimizer, ledger)
    with_optimizer(model, optimizer, ledger)  # a second step of the optimizer in the same step
    virtualgpu.mark_step()


@pytest.mark.parametrize(("update", "found_by"), [
    (by_hand, "repetition of operations"), (with_optimizer, "optimizer steps (SGD)"),
    (with_mark, "marked steps")])
def test_steps_are_found_and_the_report_says_how(update, found_by):
    result = accounted(training(5, update))
    assert result["step"]["found_by"] == found_by
    assert result["step"]["count"] == 5
    # Two micro-batches; each of the two linear layers needs the gradient of its input, too.
    rows = 2 * 4 * 32
    assert result["flops"]["model_per_step"] == 3 * 2 * rows * (H * H + H * 512)
    assert result["tokens"]["per_step"] == rows
    assert result["tokens"]["per_second"] == rows / result["step"]["seconds"]


@pytest.mark.parametrize("by", [by_hand, with_optimizer])
def test_embeddings_of_the_same_tokens_count_once(by):
    """Three of one shape, one of them cast first, as in models with an embedding per layer."""
    def program(ledger):
        tables = nn.ModuleList(nn.Embedding(512, H) for _ in range(3)).to("meta")
        head = nn.Linear(H, 512, device="meta")
        model = nn.ModuleList([tables, head])
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)
        for _ in range(6):
            for _ in range(2):
                tokens = torch.zeros(4, 32, dtype=torch.int64, device="meta")
                half = nn.functional.embedding(tokens, tables[0].weight.bfloat16())
                head(half.float() + tables[1](tokens) + tables[2](tokens)).sum().backward()
            by(model, optimizer, ledger)

    assert accounted(program)["tokens"]["per_step"] == 2 * 4 * 32


@pytest.mark.parametrize(("error", "found"), [
    ("RuntimeError: the loss is NaN", False), ("SystemExit: the program exited with 3", False),
    ("KeyboardInterrupt: interrupted by Ctrl-C", True), (None, True)])
def test_only_a_run_without_an_error_has_steps_by_repetition(error, found):
    assert (accounted(training(5, by_hand), error)["step"] is not None) == found
    step = accounted(training(5, with_optimizer), error)["step"]
    assert step["count"] == 5 and step["found_by"] == "optimizer steps (SGD)"


def test_the_time_of_a_step_is_the_gpu_s_and_not_the_host_s():
    """Nobody waits for the GPU: the host is far ahead of it at the end of each step."""
    def program(ledger):
        a = torch.empty(8192, 8192, device="meta")
        for _ in range(4):
            a @ a
            ledger.mark()
        assert ledger.gpu.clock.host < 1e-3
    result = accounted(program)
    each = result["step"]["kernel_seconds"]
    assert result["step"]["seconds"] == pytest.approx(each, rel=1e-3) and each > 0.01
    assert result["flops"]["mfu"] == pytest.approx(2 * 8192**3 / 19.5e12 / each, rel=1e-3)


def test_a_program_that_does_not_repeat_itself_has_no_steps():
    def program(_ledger):
        for size in range(10, 60):
            torch.empty(size, size, device="meta").add_(1)
    result = accounted(program)
    assert result["step"] is None and result["flops"] is None and result["tokens"] is None


def test_repetition_is_a_step_only_if_something_is_computed():
    def layers(_ledger):
        for _ in range(9):
            nn.Linear(H, H, device="meta")

    def products(_ledger):
        a = torch.empty(H, H, device="meta")
        for _ in range(9):
            a @ a
    assert accounted(layers)["step"] is None
    assert accounted(products)["step"]["count"] == 9


def test_repetition_on_another_stream_is_no_step():
    def program(ledger):
        a, ledger.gpu.stream = torch.empty(64, 64, device="meta"), "user 1"
        for _ in range(9):
            a @ a
    assert accounted(program)["step"] is None


@pytest.mark.parametrize(("tokens", "found"), [
    ([9, 8, *[1, 2, 2, 3] * 5, 7], (2, 4, 5)),
    ([1, 2] * 3, (0, 2, 3)),
    ([1, 2] * 2, None),  # too few
    ([*[1, 2] * 3, *range(100, 120)], None),  # too little of the whole
    ([*[5, *[1, 1, 2] * 4, 6] * 3, 5], (0, 14, 3)),  # layers repeat inside a step
    ([], None), ([1], None),
])
def test_the_shortest_repetition_that_makes_up_the_run(tokens, found):
    assert period(tokens) == found


def test_a_second_optimizer_ends_no_step():
    def program(_ledger):
        models = [nn.Linear(H, H, device="meta") for _ in range(2)]
        optimizers = [torch.optim.SGD(model.parameters()) for model in models]
        for _ in range(3):
            for model, optimizer in zip(models, optimizers, strict=True):
                model(torch.empty(8, H, device="meta")).sum().backward()
                optimizer.step()
    assert accounted(program)["step"]["count"] == 3


def test_mfu_weighs_every_dtype_by_its_own_peak():
    def program(ledger):
        for _ in range(3):
            for dtype in (torch.float32, torch.bfloat16):
                a = torch.empty(2048, 2048, dtype=dtype, device="meta")
                a @ a
            ledger.mark()
    result = accounted(program)
    one = 2 * 2048**3
    ideal = one / 19.5e12 + one / 312e12
    assert result["flops"]["mfu"] == pytest.approx(ideal / result["step"]["seconds"])
    assert result["flops"]["peak_tflops"] == {"fp32": 19.5, "bf16": 312}


def test_scores_that_flash_attention_computes_again_count_for_the_hardware_only():
    """Its backward pass has five products to the forward pass's two; one of them is repeated."""
    batch, heads, rows, width = 2, 4, 512, 64

    def program(ledger):
        q = torch.empty(batch, heads, rows, width, dtype=torch.bfloat16, device="meta",
                        requires_grad=True)
        for _ in range(3):
            torch.ops.aten._scaled_dot_product_flash_attention(q, q, q)[0].sum().backward()
            ledger.mark()
    result = accounted(program)["flops"]
    product = 2 * batch * heads * rows * rows * width
    assert (result["model_per_step"], result["recomputed_per_step"]) == (6 * product, product)
    assert result["hfu"] == pytest.approx(7 / 6 * result["mfu"])


def test_operations_without_a_cost_rule_are_named_with_their_share():
    def program(_ledger):
        a = torch.empty(64, 64, device="meta")
        a @ a
        torch.cummax(a, 0)
    result = accounted(program)["without_cost_rule"]
    assert [each["name"] for each in result["operations"]] == ["aten.cummax"]
    assert result["operations"][0]["calls"] == 1 and 0 < result["share_of_kernel_time"] < 1


def test_assumptions_are_listed_with_their_place_and_how_often():
    def program(ledger):
        for _ in range(2):
            ledger.gpu.assumptions.note("the loss is finite", "train.py", 12)
    assert accounted(program)["assumptions"] == [
        {"text": "the loss is finite", "file": "train.py", "line": 12, "times": 2}]


def test_the_report_has_the_whole_run_s_peaks():
    """A program that resets them for its own measurement changes nothing in the report."""
    def program(ledger, resets):
        large = torch.empty(2**24, device="meta")
        del large
        ledger.gpu.empty_cache()
        if resets:
            ledger.gpu.memory.reset_peaks()
        return torch.empty(2**20, device="meta")

    results = [accounted(functools.partial(program, resets=resets))["memory"]
               for resets in (True, False)]
    assert results[0] == results[1] and results[0]["peak_reserved_bytes"] == 2**26


def test_to_be_accounted_for_changes_neither_time_nor_memory():
    def seconds(watch):
        with VirtualGpu(A100) as gpu:
            ledger = Ledger(gpu)
            if watch:
                ledger.start()
            training(3, with_optimizer)(ledger)
            if watch:
                ledger.stop()
            return gpu.now(), gpu.memory.peak, gpu.memory.peak_reserved
    assert seconds(True) == seconds(False)


@pytest.mark.slow
@pytest.mark.parametrize(("flags", "precision"), [
    ("", "fp32"), ("--bf16", "bf16"), ("--bf16 --device virtual:h100", "bf16")])
def test_the_trainer_s_memory_is_what_its_estimate_says(flags, precision):
    """Model states to the byte; activations and the rest are the other part of the peak."""
    (got,) = run_ranks(run, 1, flags)
    count, planned = got["parameters"], got["planned"].memory[0]
    memory = got["found"]["memory"]
    each, parts = state_bytes(precision), memory["at_peak"]
    assert parts["parameters"] == each.weights * count == planned.weights
    assert parts["gradients"] == each.gradients * count == planned.gradients
    assert parts["optimizer_state"] == each.optimizer * count == planned.optimizer
    rest = sum(parts[name] for name in ("activations", "temporary", "buffers", "other"))
    assert rest == pytest.approx(planned.activations, rel=1e-3)
    cublas = 65 * 2**20 if "h100" in flags else 0  # workspaces
    assert parts["activations"] > 0.95 * (rest - cublas)
    flops = got["found"]["flops"]
    seconds = got["found"]["step"]["seconds"]
    assert flops["model_per_step"] / seconds == pytest.approx(
        1e12 * got["planned"].teraflops_per_gpu, rel=0.05)
