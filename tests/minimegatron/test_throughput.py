"""--log-throughput: rates and shares are the FLOPs over the time; memory on paper is the run's."""

import re
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks

from minimegatron.context import MicroBatch, Progress
from minimegatron.device.device import CpuDevice
from minimegatron.device.gpus import CudaDevice
from minimegatron.dropout import Dropout
from minimegatron.formulas import head_activations, step_flops
from minimegatron.model.gpt import Stage
from minimegatron.optim import Optimizer
from minimegatron.parallel.ddp import DistributedDataParallel
from minimegatron.report import throughput
from minimegatron.report.log_lines import theoretical_memory_line, throughput_line
from minimegatron.report.step_log import StepLog
from minimegatron.report.tensorboard import TensorBoard
from minimegatron.report.throughput import (
    Throughput,
    ThroughputReport,
    shape_of,
    theoretical_memory,
)
from minimegatron.timers import Timers
from pipeline_schedules import one_f_one_b

VOCABULARY = 2048
FLAGS = "--log-throughput --log-interval 2 --train-iters 4 --global-batch-size 4 --eval-iters 0 "


class Named(CudaDevice):
    """A device with a name and a data sheet."""

    torch_device = torch.device("meta")

    def __init__(self, name):
        self.name = name


def test_a_rate_is_model_flops_per_second_and_device(make_context):
    ctx = replace(make_context(FLAGS), device=Named("NVIDIA A100-SXM4-80GB"))
    ctx = replace(ctx, config=replace(ctx.config, world_size=4))
    log = Throughput(ctx, VOCABULARY)
    flops = step_flops(shape_of(ctx.config, VOCABULARY), 4, causal=True)
    assert log.rate(0.5) == flops / 0.5 / 4 / 1e12
    assert throughput_line(9.75, log.peaks) == (
        " model TFLOP/s per device: 9.7500 | share of the data-sheet peak "
        "(NVIDIA A100-SXM4-80GB, fp32, 19.5): 50.0% |")


def test_a_card_without_a_data_sheet_is_told(make_context, capsys):
    ctx = replace(make_context(FLAGS), device=Named("NVIDIA Unknown"))
    peaks = Throughput(ctx, VOCABULARY).peaks
    assert throughput_line(1.0, peaks) == " model TFLOP/s per device: 1.0000 |"
    assert "no data-sheet peak of 'NVIDIA Unknown' in fp32 is known" in capsys.readouterr().out


def test_the_cpu_is_measured(make_context, monkeypatch):
    class Clock(CpuDevice):
        ticks = iter([0.0, 9.0, 10.0, 10.5, 20.0, 22.0, 30.0, 33.0])

        def now(self):
            return next(self.ticks)

    monkeypatch.setattr(throughput, "SIZE", 64)
    ctx = replace(make_context(FLAGS), device=Clock())
    (name, most), = Throughput(ctx, VOCABULARY).peaks
    assert most == 2 * 64**3 / 0.5 / 1e12  # the fastest of four products
    assert name.startswith(f"measured matmul peak (64^3, fp32, {torch.get_num_threads()} thread")


@pytest.mark.parametrize("in_fp32, dtype", [((torch.float16,), "bf16"),
                                            ((torch.float16, torch.bfloat16), "fp32")])
def test_a_bf16_run_is_measured_in_the_dtype_that_the_cpu_multiplies(in_fp32, dtype, make_context,
                                                                     monkeypatch):
    monkeypatch.setattr(throughput, "SIZE", 64)
    monkeypatch.setattr(throughput, "IN_FP32", in_fp32)
    measured = []
    monkeypatch.setattr(throughput, "measured_peak", lambda ctx, dtype: measured.append(dtype) or 1)
    (name, _), = Throughput(make_context(FLAGS + " --bf16"), VOCABULARY).peaks
    assert f"(64^3, {dtype}, " in name
    assert measured == [{"bf16": torch.bfloat16, "fp32": torch.float32}[dtype]]


def test_a_virtual_card_has_a_data_sheet_and_is_not_measured(make_context, virtual_device):
    (peak,) = Throughput(replace(make_context(FLAGS), device=virtual_device), 128).peaks
    assert peak == ("data-sheet peak (virtual v100-sxm2-16gb, fp32, 15.7)", 15.7)
    assert virtual_device.now() == 0.0


def test_throughput_is_plotted(make_context, monkeypatch):
    points = []

    class Board(TensorBoard):
        def scalar(self, tag, value, iteration, samples=None):
            points.append((tag, value, iteration))

    monkeypatch.setattr(throughput, "SIZE", 64)
    ctx = make_context(FLAGS)
    optimizer = Optimizer(ctx, DistributedDataParallel(ctx, Stage(ctx, 128, range(2))))
    report = ThroughputReport(ctx)
    report.start(SimpleNamespace(vocab_size=128, schedule=one_f_one_b(1, 2)))
    log = StepLog(ctx, Timers(ctx.device.now), optimizer, [report, Board(ctx)])
    for _ in range(2):
        log.add(torch.tensor(1.0), torch.tensor(1.0), seconds=0.25)
    log.report(Progress(2, 8), torch.tensor(1e-3))
    assert points == [("throughput", report.throughput.flops / 0.25 / 1e12, 2)]


def kept_bytes(stage, x, batch):
    """Bytes that the forward pass keeps for the backward pass, by unique storage."""
    storages = {}
    ours = {p.untyped_storage().data_ptr() for p in (*stage.parameters(), *stage.buffers())}

    def pack(tensor):
        storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage()
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        stage(x, batch)
    return sum(kept.nbytes() for at, kept in storages.items() if at not in ours)


def batch(config):
    text = torch.zeros(config.micro_batch_size, config.seq_length, dtype=torch.int64)
    return MicroBatch(text, text, torch.ones(text.shape), Dropout(1, 5, torch.tensor([7, 8])))


@pytest.mark.parametrize("flags", ["", "--recompute-activations", "--num-layers 4",
                                   "--use-flash-attn --attention-dropout 0",
                                   "--activations-checkpoint-method block --hidden-dropout 0"])
def test_memory_on_paper_is_the_memory_of_the_run(make_context, flags):
    ctx = make_context(FLAGS + flags)
    config = ctx.config
    stage = Stage(ctx, VOCABULARY, range(config.num_layers))
    states, activations = theoretical_memory(config, VOCABULARY, [1])
    assert kept_bytes(stage, None, batch(config)) == pytest.approx(activations, rel=0.15)
    optimizer = Optimizer(ctx, DistributedDataParallel(ctx, stage))
    flat = [optimizer.param_buffer, optimizer.ddp.grad_buffer, *optimizer.moments.values()]
    assert states == sum(tensor.nbytes for tensor in flat)


def test_the_head_on_paper(make_context):
    ctx = make_context()
    stage = Stage(ctx, VOCABULARY, range(0), is_first=False)
    x = torch.ones(ctx.config.seq_length, 2, ctx.config.hidden_size).requires_grad_()
    assert kept_bytes(stage, x, batch(ctx.config)) == pytest.approx(
        head_activations(shape_of(ctx.config, VOCABULARY), 2, bytes_each=4), rel=0.05)


def test_the_most_loaded_stage_counts(make_context):
    config = make_context(FLAGS + "--num-layers 4").config

    def activations(layers, live):
        return theoretical_memory(replace(config, layers_per_chunk=layers), 128, live)[1]

    layer = activations((0, 1, 0), [1, 1, 1])
    assert activations((1, 3, 0), [3, 2, 1]) == 6 * layer
    assert activations((0, 3, 1), [3, 2, 1]) == 6 * layer
    assert activations((3, 1, 0), [3, 2, 1]) == 9 * layer
    # Two chunks a stage: a pair is half of what the stage keeps for one micro-batch.
    assert activations((2, 0, 0, 2, 0, 0), [3, 2, 1]) == 6 * layer


def test_offloaded_layers_do_not_count_but_for_the_two_in_use(make_context):
    config = replace(make_context(FLAGS + "--num-layers 4").config, layers_per_chunk=(6,))
    none, some, most = (theoretical_memory(
        replace(config, cpu_offloading_num_layers=count), 128, [1])[1] for count in (0, 3, 5))
    assert (none - most) / (none - some) == pytest.approx(4 / 3)


def test_the_line_of_theoretical_memory():
    assert theoretical_memory_line(2**20, 2**19) == (
        "Theoretical memory footprints: weight and optimizer=1.00 MB, activation=0.50 MB, "
        "total=1.50 MB")


@pytest.mark.alone
def test_a_run_prints_its_throughput(train):
    out = train(FLAGS + "--timing-log-level 1 --timing-log-option all", ranks=2).out
    assert out.count(" | throughput per GPU (TFLOP/s/GPU): ") == 2
    rates = re.findall(r"^ model TFLOP/s per device: (\S+) \| share of the measured matmul peak "
                       r"\(2048\^3, fp32, 1 thread\(s\), (\S+)\): (\S+)% \|$", out, re.MULTILINE)
    assert len(rates) == 2
    for rate, most, percent in rates:
        assert 0 < float(rate) < float(most) and 0 < float(percent) < 100
    memory = out.index("Theoretical memory footprints: weight and optimizer=")
    assert memory < out.index("[Rank 0] (after 2 iterations) memory")
    times = r"times across ranks \(ms\):\n  forward-backward:\n     rank  0: \S+\n     rank  1: "
    assert len(re.findall(times, out)) == 2
    assert "forward-compute" not in out and "time (ms) |" not in out
    assert "times across ranks (ms):\n  model-and-optimizer-setup:\n     rank  0: " in out


@pytest.mark.slow
def test_stages_with_different_timers(train):
    """A stage that receives nothing has no part in that timer."""
    out = train(FLAGS + "--timing-log-level 2 --timing-log-option all "
                   "--pipeline-model-parallel-size 2 --recompute-activations", ranks=2).out
    assert re.search(r"^  forward-recv:\n     rank  1: \S+\n", out, re.MULTILINE)
    assert re.search(r"^  forward-compute:\n     rank  0: \S+\n     rank  1: ", out, re.MULTILINE)
