"""`lab plan`: its tables, its flags, and what it refuses."""

import json

import pytest

from cluster_planner import partition
from cluster_planner.placement import ParallelSizes, Placement
from cluster_planner.plans import ClusterPlan
from cluster_planner.profiles import read_table, write_table
from cluster_planner.stages import TrainingConfig, stages_of
from lab.cli import main
from lab.submit import conf
from lab.submit.layout import lay_out
from layout_estimator import plan_cli
from layout_estimator.layer_profiles import VirtualProfiles
from layout_estimator.plan_report import as_dict
from layout_estimator.requests import estimate, model_flags, read_flags
from tests.cluster_planner.cases import MODEL, profiles
from virtualgpu.net.cluster_spec import parse_nodes

FLAGS = ("--num-layers 6 --hidden-size 256 --num-attention-heads 4 --seq-length 512 "
         "--max-position-embeddings 512 --vocab-size 1024 --fp16")
PLAN = ["plan", "--flags", FLAGS, "--global-batch", "16"]


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "table.json"
    write_table(str(path), MODEL, profiles().known)
    return path


def test_the_trainer_accepts_the_flags_of_every_plan(table, capsys, tmp_path):
    figure = tmp_path / "front.svg"
    words = [*PLAN, "--cluster", "a100:2x1,a10:2x1", "--profiles", str(table), "--json",
             "--plot", str(figure)]
    assert main(words) == 0
    plans = json.loads(capsys.readouterr().out)
    assert [plan["chosen"] for plan in plans] == [True, *[False] * (len(plans) - 1)]
    for plan in plans:
        config = read_flags([*plan["flags"], "--world-size", str(plan["gpus"]),
                             "--device", "virtual:a10", "--gpus-per-node", "2"])
        assert config.num_micro_batches == plan["micro_batches"]
        assert sum(map(int, plan["balance"].split("-"))) == MODEL.layers
    assert figure.read_text().startswith("<?xml")
    assert read_table(str(table), MODEL).known == profiles().known


@pytest.mark.parametrize("planner", ["even", "fasop", "amp"])
def test_people_read_the_cheapest_within_the_deadline_and_its_command(planner, table, capsys):
    words = [*PLAN, "--cluster", "a100:2x1,a10:2x1", "--profiles", str(table)]
    assert main([*words, "--deadline", "100", "--planner", planner]) == 0
    *rows, note, ranks, command = capsys.readouterr().out.splitlines()
    assert "modeled, nothing was run" in rows[0] and rows[-1].startswith(" *")
    assert "deadline" in note and ranks.startswith("run on a100-80gb:2x1")
    assert "--global-batch" in command
    assert main([*words, "--deadline", "1e-9"]) == 1
    assert "the fastest plan takes" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["no_shard", "optim"])
def test_a_flag_fixes_the_sharding_strategy(name, table, capsys):
    words = [*PLAN, "--cluster", "a100:2x1,a10:2x1", "--profiles", str(table), "--json",
             "--data-parallel-sharding-strategy", name]
    assert main(words) == 0
    for plan in json.loads(capsys.readouterr().out):
        assert plan["sharded"] == (name == "optim" and plan["data"] > 1)
        assert ("--use-distributed-optimizer" in plan["flags"]) == plan["sharded"]


def test_a_plan_becomes_a_file_that_lab_submit_accepts(tmp_path, capsys):
    path = tmp_path / "planned.toml"
    words = ["plan", "--cluster", "a10:1x1,t4:1x1", "--model", "gpt2-small", "--global-batch", "8"]
    assert main([*words, "--json", "--conf", str(path)]) == 0
    plan = json.loads(capsys.readouterr().out)[0]
    layout = lay_out(conf.read(path))
    assert layout.split == tuple(map(int, plan["balance"].split("-")))
    assert [part.nodes * part.per_node for part in layout.components] == [1, 1]
    assert layout.conf.micro_batch_size == plan["micro_batch"]
    assert main([*words, "--conf", str(path)]) == 1
    assert f"nearest: --conf {tmp_path / 'planned_2.toml'}" in capsys.readouterr().err


def test_a_plan_is_handed_to_lab_submit(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("LAB_HOME", str(tmp_path))
    (tmp_path / "code").mkdir()
    words = ["plan", "--cluster", "t4:1x1", "--model", "gpt2-small", "--global-batch", "4"]
    assert main([*words, "--submit"]) == 1
    assert "cluster is not running" in capsys.readouterr().err
    assert conf.read(tmp_path / "code" / "plan.toml").cluster == "t4:1x1"


@pytest.mark.parametrize(("words", "text"), [
    (["--flags", FLAGS, "--submit"], "GPT-2 models, not that of --flags; nearest: --model gpt2-xl"),
    (["--model", "gpt-1.7b", "--conf", "p.toml"], "not gpt-1.7b"),
    (["--model", "gpt2-xl", "--conf", "p.json"], "nearest: --conf p.toml")])
def test_a_plan_that_lab_submit_cannot_run_is_refused_before_the_search(words, text, capsys):
    assert main(["plan", "--cluster", "a10:2x1", "--global-batch", "8", *words]) == 1
    assert text in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("cluster", [
    pytest.param("a10:2x2", marks=pytest.mark.stress), "a100:2x1,a10:2x2"])
def test_a_plan_agrees_with_the_estimate_of_its_own_flags(cluster, capsys):
    assert main([*PLAN, "--cluster", cluster, "--json"]) == 0
    for plan in json.loads(capsys.readouterr().out):
        estimated = estimate(["--cluster", plan["cluster"], *plan["flags"]])
        assert plan["seconds_per_iteration"] == pytest.approx(estimated.estimate.seconds, rel=0.1)
        assert max(plan["memory"]) == pytest.approx(
            max(stage.total for stage in estimated.plan.memory), rel=0.1)


@pytest.mark.slow
@pytest.mark.parametrize("cluster, config, split", [
    ("a100:1x1,a10:1x1", TrainingConfig(1, "none", False, "zb-h1"), (20, 4)),
    ("a10:2x1", TrainingConfig(1, "selective", False, "interleaved", 3), (12, 12))])
def test_other_schedules_agree_with_the_estimate_within_2_percent(cluster, config, split):
    groups, flags = parse_nodes(cluster), [*model_flags("gpt2-medium"), "--fp16", *plan_cli.QUIET]
    model, known = plan_cli._model(flags, 8), VirtualProfiles(flags, {
        group.card.name: group.per_node for group in groups})
    placement = Placement(ParallelSizes(1, 2, 1), groups, "ethernet:25gbit")
    stages = stages_of(model, placement, config, known)
    plan = as_dict(ClusterPlan(placement, config, partition.even(stages) if config.chunks > 1 else
                              partition.improved(stages, split), stages), flags, 8)
    estimated = estimate(["--cluster", plan["cluster"], "--virtual-network", "ethernet:25gbit",
                          *plan["flags"]])
    assert plan["seconds_per_iteration"] == pytest.approx(estimated.estimate.seconds, rel=0.02)
    assert plan["memory"] == pytest.approx(
        [stage.total for stage in estimated.plan.memory], rel=0.02)


@pytest.mark.parametrize("words, why", [
    (["--cluster", "a1000:4"], "--cluster: cluster 'a1000:4': .*nearest: a100"),
    (["--cluster", "a10:2x2,a10:4"], "of 4 a10; a plan takes .*nearest: a10:2x1"),
    (["--cluster", "a10:2", "--network", "fast"], "--network: network 'fast': a kind"),
    (["--cluster", "a10:2", "--price", "a10=free"], "--price a10=free: .*nearest: --price a10="),
    (["--cluster", "a10:2", "--price", "a10=-1"], "not a price above 0"),
    (["--cluster", "a10:2", "--model", "gpt2-xl"], "either --model NAME or --flags"),
    (["--cluster", "a10:2", "--global-batch", "0"], "nearest: --global-batch 1"),
    (["--cluster", "a10:2", "--flags", FLAGS + " --micro-batch-size 2"], "planner chooses --micro"),
    (["--cluster", "a10:2", "--flags", FLAGS + " --hiden-size 2"], "did you mean --hidden-size"),
    (["--cluster", "a10:2", "--profiles", "none.json"], "--profiles none.json: .*No such file"),
    (["--cluster", "a10:2", "--plot", "x.pdf"], "--plot x.pdf: a file that ends in"),
    (["--cluster", "a10:2", "--data-parallel-sharding-strategy", "optim_grads"],
     "optim_grads: on unlike nodes, .* nearest: --data-parallel-sharding-strategy optim, or lab"),
    (["--cluster", "a10:2", "--data-parallel-sharding-strategy", "zero1"],
     "strategy zero1: no such strategy; nearest: --data-parallel-sharding-strategy "),
    (["--cluster", "a10:2", "--flags", FLAGS + " --use-megatron-fsdp"], "planner chooses --use-m"),
])
def test_wrong_input_is_named(words, why, capsys):
    import re

    assert main([*PLAN, *words]) == 1
    assert re.search(why, capsys.readouterr().err)


def test_an_unknown_model_names_the_nearest(capsys):
    assert main(["plan", "--cluster", "a10:2", "--global-batch", "8", "--model", "gpt2-xxl"]) == 1
    assert "--model gpt2-xxl: no such model; nearest: gpt2-xl" in capsys.readouterr().err


@pytest.mark.parametrize("change, why", [
    ({"format": "2"}, "not a table of profiles"),
    ({"model": {}}, "measured for {}, but the model to plan is"),
    ({"profiles": []}, '"profiles" has no rows'),
    ({"gpu": "a1000"}, 'row 0: "gpu": no virtual GPU model'),
    ({"gpu": 3}, 'row 0: "gpu"'),
    ({"tensor": 0}, '"tensor": 0 is not an integer of at least 1'),
    ({"recompute": "some"}, "is not one of none, selective, full"),
    ({"layer": 3}, '"layer": 3 is not an object'),
    ({"layer": {"forwards": 1}}, 'has no "forwards"; it has forward, backward'),
    ({"layer": {"forward": 1}}, "'backward' is missing"),
    ({"micro_batch": 2}, "a second row of"),
    ({"split": 1}, '"split": 1 is neither true nor false'),
])
def test_a_wrong_table_is_named(table, change, why):
    from labcore.errors import LabError

    record = json.loads(table.read_text())
    (name, _), = change.items()
    (record if name in record else record["profiles"][0]).update(change)
    table.write_text(json.dumps(record))
    with pytest.raises(LabError) as caught:
        read_table(str(table), MODEL)
    assert why in str(caught.value) and str(table) in str(caught.value)
