"""Sharded data parallelism: its units, its flags, and checkpoints under every strategy.

That every strategy trains as one process does is in test_layouts.py and test_precision_layouts.py;
its time and memory are in tests/virtualgpu/test_trainer_sharding.py.
"""

import ast
import shlex
from pathlib import Path

import pytest

import minimegatron
from minimegatron.arguments import parse_arguments
from minimegatron.errors import UserError
from minimegatron.model.gpt import Stage
from minimegatron.model.parameters import named_param_specs
from minimegatron.parallel.units import make_units
from warmranks import run_ranks

from . import layout_steps, resume_steps
from .test_arguments import GOOD
from .test_layouts import FSDP, HYBRID, KEEP, OVERLAP, OVERLAPS, PP2, Z1, Z2, Z3, ZERO
from .test_model import VOCABULARY

FULL = "--recompute-granularity full --recompute-method uniform"
PACKAGE = Path(minimegatron.__file__).parent
OPTIONAL = ("fully_sharded", "overlap", "sharding", "units")
SAVING = {Z3: [Z3, ""], ZERO: [Z3]}
MORE = {f"{Z2} --bf16": [f"{Z3} {OVERLAPS} --bf16", f"{ZERO} --bf16"],
        f"{Z3} {OVERLAPS}": [f"{Z1} {OVERLAPS}", Z2], "": [Z2, f"{Z3} {OVERLAPS}"],
        f"{Z3} {OVERLAPS} {PP2} {HYBRID}": [PP2, f"{PP2} {Z2}"], PP2: [f"{PP2} {Z3}"]}
REFUSED = {
    f"{FSDP} zero3": "invalid choice: 'zero3'",
    "--data-parallel-sharding-strategy optim_grads": "only with --use-megatron-fsdp, as in "
    "Megatron-LM; nearest: --use-megatron-fsdp --data-parallel-sharding-strategy optim_grads",
    HYBRID: "nothing is sharded; nearest: --use-distributed-optimizer --num-distributed",
    f"{Z2} --num-distributed-optimizer-instances 3": r"data parallel size \(4\) is not divisible by"
    " --num-distributed-optimizer-instances 3; nearest: --num-distributed-optimizer-instances 2 or "
    "4",
    f"{Z2} --num-distributed-optimizer-instances 0": "must be at least 1",
    f"{Z3} {HYBRID} --outer-dp-sharding-strategy optim": "invalid choice: 'optim'",
    OVERLAPS: "--overlap-param-gather only supported with distributed optimizer or megatron fsdp",
    f"{Z3} --overlap-param-gather": "--overlap-grad-reduce should be turned on when using",
    f"{Z2} {KEEP}": "optim_grads_params gathers parameters in the forward pass; nearest: leave it",
    f"{Z2} --ddp-bucket-size 1000": "--ddp-bucket-size 1000 with .* optim_grads: the buckets are",
    f"--use-distributed-optimizer {OVERLAPS} --ddp-bucket-size 7": "7 with --overlap-param-gather",
    f"{Z3} --bf16 --fp8-format hybrid": "optim_grads_params with --fp8-format hybrid: .* nearest: "
                                        "--data-parallel-sharding-strategy optim_grads",
    f"{Z2} --bf16 --fp8-format hybrid --fp8-param-gather": "--fp8-param-gather with .* nearest: "
                                                           "--use-distributed-optimizer",
    "--use-torch-fsdp2": "sharding follows --data-parallel-sharding-strategy",
    "--overlap-param-gather-with-optimizer-step": "after the whole optimizer step",
}


def config_of(flags, ranks=4):
    batch = "--micro-batch-size 1 --global-batch-size 8"
    return parse_arguments(shlex.split(f"{GOOD} {batch} {flags}"),
                           {"RANK": "0", "WORLD_SIZE": str(ranks)})


@pytest.mark.parametrize("flags", REFUSED)
def test_what_cannot_be_combined_is_refused_by_name(flags):
    with pytest.raises(UserError, match=REFUSED[flags]):
        config_of(flags)


@pytest.mark.parametrize("flags, stage, by_unit", [
    ("", 0, False), ("--use-megatron-fsdp", 0, False), (f"{FSDP} no_shard", 0, False),
    (ZERO, 1, False), (Z1, 1, False), (f"{FSDP} no_shard {ZERO}", 1, False),
    (f"{Z1} {OVERLAP}", 1, False), (f"{Z1} {OVERLAPS}", 1, True), (Z2, 2, True), (Z3, 3, True),
    (f"{Z3} --use-distributed-optimizer --outer-dp-sharding-strategy no_shard", 3, True)])
def test_a_strategy_is_a_stage_of_zero(flags, stage, by_unit):
    """Two spellings of stage 1 are one; every stage is a distributed optimizer to checkpoints."""
    config = config_of(flags)
    assert (config.zero_stage, config.shards_by_unit) == (stage, by_unit)
    assert config.use_distributed_optimizer == (stage > 0)


def test_hybrid_sharding_divides_by_the_ranks_of_an_instance():
    assert config_of(f"{Z3} {HYBRID}").sharding_size == 2 and config_of(Z3).sharding_size == 4


def units_of(make_context, flags, layers=6, **ends):
    ctx = make_context(f"{flags} --num-layers {layers}")
    stage = Stage(ctx, VOCABULARY, range(layers), **ends)
    return make_units(ctx.config, stage)


def short(names):
    return sorted({name.split(".")[2] if "layers" in name else name.split(".")[1]
                   for name in names})


def test_units_are_the_embedding_the_layers_and_the_output(make_context):
    """The tied output layer needs the embedding's unit, too."""
    calls, units = units_of(make_context, "", layers=2)
    assert [short(names) for names in units] == [
        ["position_embeddings", "word_embeddings"], ["0"], ["1"], ["final_layernorm"]]
    assert [call.units for call in calls] == [(0,), (1,), (2,), (3, 0)]
    assert [call.backward for call in calls] == [False, True, True, True]
    assert [call.next_forward for call in calls] == [1, 2, 3, None]
    assert [call.next_backward for call in calls] == [None, None, 1, 2]


def test_a_parameter_of_two_stages_has_a_unit_of_its_own(make_context):
    for ends, expected in (({"is_last": False}, [["word_embeddings"], ["position_embeddings"]]),
                           ({"is_first": False}, [["word_embeddings"], ["final_layernorm"]])):
        _, units = units_of(make_context, "", layers=1, **ends)
        assert [short(names) for names in units if short(names) != ["0"]] == expected


def test_frozen_parameters_are_in_no_unit(make_context):
    ctx = make_context("--num-layers 2")
    stage = Stage(ctx, VOCABULARY, range(2))
    for name, spec in named_param_specs(stage).items():
        spec.trained = "layers.1" in name
    calls, units = make_units(ctx.config, stage)
    assert [short(names) for names in units] == [["1"]]
    assert [call.units for call in calls] == [(), (), (0,), ()]


@pytest.mark.parametrize("flags, recompute, backward", [
    (FULL, [None] * 8, [None, None, 1, 2, 3, 4, 5, 6]),
    (f"{FULL} --recompute-num-layers 2", [None, 2, None, 4, None, 6, None, None],
     [None, None, None, 1, 1, 3, 3, 5]),
    (f"{FULL} --recompute-num-layers 4", [None, 2, 3, 4, None, 6, None, None],
     [None, None, None, None, None, 1, 1, 5])])
def test_the_next_unit_follows_the_order_of_recomputation(make_context, flags, recompute, backward):
    """Six layers, with the embedding before and the output layer after them."""
    calls, _ = units_of(make_context, flags)
    assert [call.next_recompute for call in calls] == recompute
    assert [call.next_backward for call in calls] == backward


@pytest.mark.slow
@pytest.mark.parametrize("cases, ranks", [
    (SAVING, 2), pytest.param(MORE, 4, marks=[pytest.mark.stress, pytest.mark.timeout(600)])])
def test_a_checkpoint_loads_under_another_strategy_to_the_last_bit(cases, ranks, tmp_path):
    """Parameters, moments, and master weights; then training goes on as without the pause."""
    results = run_ranks(resume_steps.run, ranks, str(tmp_path), list(cases.items()), timeout=500)
    for rank in results:
        for (saved, loading), (whole, resumed) in zip(cases.items(), rank, strict=True):
            for loaded, one in zip(loading, resumed, strict=True):
                same = 4e-3 if "--bf16" in saved else 1e-5
                assert one["saved"] == whole["saved"], (saved, loaded)
                assert len(one["saved"]) == 3 + ("--bf16" in saved)
                assert one["saved"] != one["after"] and one["iteration"] == whole["iteration"] == 4
                assert one["loss and norm"] == pytest.approx(whole["loss and norm"], rel=same)
                assert saved != loaded or one == whole


def test_only_a_flag_imports_the_files_of_sharding():
    """No other file imports them when it is imported itself."""
    optional = {f"minimegatron.parallel.{name}" for name in OPTIONAL}
    files = {PACKAGE / "parallel" / f"{name}.py" for name in OPTIONAL}
    assert all(path.exists() for path in files)
    for path in set(PACKAGE.rglob("*.py")) - files:
        body = ast.parse(path.read_text()).body
        top = {alias.name for node in body if isinstance(node, ast.Import) for alias in node.names}
        for node in body:
            if isinstance(node, ast.ImportFrom):
                top |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        assert not top & optional, path


@pytest.mark.slow
def test_nothing_keeps_a_model_alive():
    """Hooks of parameters and modules refer to each other, and estimates build many models."""
    case = f"{Z3} {OVERLAPS}"
    assert run_ranks(layout_steps.left_alive, 2, case, backend=None, timeout=120) == [0, 0]
