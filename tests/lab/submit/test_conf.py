"""`lab submit`: every wrong configuration is refused, and the message names the right value."""

import re

import pytest

from lab.submit import conf, layout, memory, nodes, scripts, trainer_flags
from labcore import workspace
from labcore.errors import LabError

# The experiment of FASOP's gpt2 script.
XL = {"model": '"xl"', "attention-heads": "16", "cluster": '"a10:4x8"', "data-parallel": "4",
      "pipeline-parallel": "8", "partition": '"0-11-8-8-8-8-5-0"', "global-batch-size": "64",
      "micro-batch-size": "1"}
MIXED = {"model": '"small"', "cluster": '"a100:2x1,a10:2x1"', "pipeline-parallel": "2",
         "partition": '"9-3"', "global-batch-size": "8", "micro-batch-size": "1"}


@pytest.mark.parametrize(("changed", "said"), [
    ({"partitoin": '"4"'}, 'partitoin = "4": no such key; nearest: partition'),
    ({"micro-batch": "1"}, "micro-batch = 1: no such key; nearest: micro-batch-size"),
    ({"model": '"xs"'}, 'model = "xs": not one of small, medium, large, xl; nearest: "xl"'),
    ({"model": ""}, 'model is missing; for example: model = "xl"'),
    ({"profile": '"yes"'}, 'profile = "yes": not true or false; nearest: true'),
    ({"iterations": "0"}, "iterations = 0: not an integer of at least 1; nearest: 1"),
    ({"iterations": "2.6"}, "iterations = 2.6: not an integer of at least 1; nearest: 3"),
    ({"iterations": "true"}, "iterations = true: not an integer"),
    ({"iterations": '"50 steps"'}, 'iterations = "50 steps": not an integer of at least 1; '
     "nearest: 50"),
    ({"precision": '"fp8"'}, 'one of fp32, fp16, bf16; nearest: "fp32"'),
    ({"flags": '"--sequence-parallel"'}, 'nearest: ["--sequence-parallel"]'),
    ({"time": '"soon"'}, "not Slurm's hours:minutes:seconds"),
    ({"name": '"a b/c"'}, 'nearest: "a_b_c"'),
    ({"cluster": "8"}, 'cluster = 8: not a string of one line; nearest: "8"'),
    ({"job": '"mixed"'}, 'job = "mixed": not one of homogeneous, heterogeneous, joined; nearest: '),
    ({"model": "xl"}, "strings need quotes"),
])
def test_a_value_that_cannot_be_read_is_named_with_the_nearest(write, changed, said):
    path = write(XL | changed)
    with pytest.raises(LabError, match=f"^{re.escape(str(path))}: ") as refused:
        conf.read(path)
    assert said in str(refused.value)


def test_a_missing_file_is_named_with_the_nearest(write):
    path = write(XL)
    with pytest.raises(LabError, match=r"no such file; nearest: .*/run\.toml"):
        conf.read(path.with_name("rum.toml"))


@pytest.mark.parametrize(("base", "changed", "said"), [
    (XL, {"partition": '"0-11-8-8-8-8-4-0"'},
     'it has 47 layers, but the model has 48; nearest: "0-11-8-8-8-8-5-0"'),
    (XL, {"partition": '"12-12-12-12"'},
     'it has 4 stages, but pipeline-parallel is 8; nearest: "6-6-6-6-6-6-6-6"'),
    (XL, {"partition": '"11,8"'}, 'joined by hyphens; nearest: "6-6-6-6-6-6-6-6"'),
    (XL, {"partition": '"8-0-8-8-8-8-8-0"'}, "can be without a Transformer layer"),
    (XL, {"partition": "", "layers": "44"}, 'nearest: partition = "6-6-6-6-5-5-5-5"'),
    (XL, {"data-parallel": "2"}, "tensor-parallel 1 x data-parallel 2 x pipeline-parallel 8 is 16, "
     "but the cluster has 32 GPUs; nearest: 4"),
    (XL, {"pipeline-parallel": "6"}, "32 GPUs are not divisible by tensor-parallel 1 x "
     "pipeline-parallel 6; nearest: 4"),
    (XL, {"global-batch-size": "63"},
     "not divisible by micro-batch-size 1 x 4 data-parallel replicas; nearest: 64"),
    (XL, {"cluster": '"a11:4x8"'}, "nearest: a10"),
    (XL, {"cluster": '"a10:4x8,"'}, "KIND:GPUSxNODES"),
    (XL, {"job": '"joined"'}, 'all stages are on a10 nodes; nearest: "homogeneous"'),
    (MIXED, {"job": '"homogeneous"'}, 'several GPU kinds; nearest: "heterogeneous"'),
    (MIXED, {"cluster": '"a100:1x1,a10:3x1"'},
     "stage 0 has 2 ranks (tensor-parallel x data-parallel), which would be on both"),
    (MIXED, {"stages": '["a100"]'}, "it names 1 stages, but pipeline-parallel is 2"),
    (MIXED, {"stages": '["a100", "a1o"]'}, "nearest: a10"),
    (MIXED, {"stages": '["a100", "v100"]'}, "the cluster has no v100; nearest: a100-80gb, a10"),
    (MIXED, {"stages": '["a100", "a100"]'}, "2 stage(s) of 2 ranks on a100-80gb, of which the "
     "cluster has 2 GPUs; nearest: 1 stage(s) on a100-80gb"),
])
def test_numbers_that_do_not_agree_are_named_with_the_nearest(place, base, changed, said):
    with pytest.raises(LabError) as refused:
        place(base | changed)
    assert said in str(refused.value)


def test_stages_fill_nodes_in_the_order_of_the_cluster_or_as_named(place):
    xl = place(XL)
    assert [str(one) for one in xl.components] == ["stages 0 to 7 on 8 nodes of 4 x a10"]
    assert (xl.world_size, xl.nodes, xl.data_parallel, xl.job) == (32, 8, 4, "homogeneous")
    mixed = place(MIXED)
    assert [str(one) for one in mixed.components] == [
        "stage 0 on 1 node of 2 x a100", "stage 1 on 1 node of 2 x a10"]
    assert mixed.job == "heterogeneous"
    turned = place(MIXED, stages='["a10", "a100"]')
    assert [one.kind for one in turned.components] == ["a10", "a100"]
    sandwich = place(MIXED | {"cluster": '"a100:2x2,a10:2x1"', "pipeline-parallel": "3",
                              "partition": '"5-2-5"', "stages": '["a100", "a10", "a100"]'})
    assert [(one.kind, one.nodes, [*one.stages]) for one in sandwich.components] == [
        ("a100", 1, [0]), ("a10", 1, [1]), ("a100", 1, [2])]


def test_stages_of_a_kind_that_fill_no_whole_node_are_refused(place):
    with pytest.raises(LabError, match="which do not fill nodes of 4 a10; "
                       "nearest: adjacent stages on a10"):
        place(MIXED | {"cluster": '"a100:2x1,a10:4x1"', "pipeline-parallel": "3",
                       "partition": '"2-8-2"', "stages": '["a10", "a100", "a10"]'})


def test_shipped_configurations_are_valid_and_their_stages_fit():
    shipped = sorted((workspace.CODE / "jobs").glob("*.toml"))
    assert len(shipped) >= 2
    for path in shipped:
        placed = layout.lay_out(conf.read(path))
        trainer_flags.check(placed)
        assert nodes.up_command(placed) in path.read_text() or placed.job == "heterogeneous"
        assert all(one.fits for one in memory.check(placed)), path


def test_every_stage_is_held_against_the_memory_of_its_own_gpu(place):
    heavy = MIXED | {"model": '"xl"', "partition": '"24-24"', "micro-batch-size": "4",
                     "global-batch-size": "32"}
    with pytest.raises(LabError, match=r"partition = \"24-24\": stage 1 \(24 layers\) needs "
                       r"\d\d\.\d\d GiB at its peak, but the a10 has 22\.03 GiB; nearest: ") as no:
        memory.check(place(heavy))
    near = re.search(r'nearest: partition = ("[\d-]+")', str(no.value))
    assert near, no.value
    first, second = memory.check(place(heavy | {"partition": near[1]}))
    assert first.fits and second.fits and (first.kind, second.kind) == ("a100", "a10")


@pytest.mark.parametrize(("flag", "said"), [
    ("--num-layers", "--num-layers is set by the key layers"),
    ("--fp16", "--fp16 is set by the key precision"),
    ("--encoder-seq-length=64", "--encoder-seq-length=64 is set by the key sequence-length"),
    ("-b", "-b is set by the key micro-batch-size"),
    ("--train-samples", "--train-samples is set by the key iterations"),
    ("--pipeline-model-parallel-layout", "is set by the key partition"),
    ("--estimate", "--estimate trains nothing, so a job cannot have it; .*lab estimate"),
    ("--vocab-size=9", "--vocab-size belongs to --estimate"),
    ("--sequence-paralel", "the trainer refuses this run: .*--sequence-parallel"),
])
def test_flags_of_the_trainer_are_checked(place, flag, said):
    with pytest.raises(LabError, match=said):
        trainer_flags.check(place(MIXED, flags=f'["{flag}"]'))


def test_a_flag_that_contradicts_a_default_is_refused_by_name(place):
    with pytest.raises(LabError, match=r"refuses this run: --min-lr 1e-05 is greater than --lr "
                       "1e-06; nearest: --min-lr 1e-06"):
        trainer_flags.check(place(MIXED, flags='["--lr", "1e-6"]'))


def test_a_network_or_schedule_that_does_not_exist_is_refused(place):
    for changed in ({"network": '"ether:1gbit"'}, {"schedule": '"2f2b"'}):
        with pytest.raises(LabError):
            placed = place(MIXED | changed)
            trainer_flags.check(placed)
            memory.check(placed)


SINFO = """slurmnode1|gpu:a100:2|idle
slurmnode1|gpu:a100:2|idle
slurmnode2|gpu:a10:2(S:0-1)|mixed
slurmnode3|gpu:a10:2|down*
slurmnode4|(null)|idle
"""


def test_nodes_are_counted_once_and_only_if_jobs_can_use_them():
    assert nodes.parse(SINFO) == [("slurmnode1", "a100", 2), ("slurmnode2", "a10", 2)]


def test_nodes_that_the_cluster_lacks_are_named_with_the_command(place):
    there = nodes.parse(SINFO)
    assert nodes.match(place(MIXED), there).components == place(MIXED).components
    with pytest.raises(LabError) as refused:
        nodes.match(place(XL), there)
    assert ("the run needs 8 node(s) of 4 x a10, but the running cluster has nodes 1 of 2 x a100, "
            "1 of 2 x a10 with GPUs; nearest: lab cluster down; lab cluster up --gpus 8xa10:4"
            ) in str(refused.value)


def test_slurm_s_own_name_of_the_gpu_type_goes_into_the_script(place):
    full = place(MIXED, cluster='"a100-80gb:2x1,a10:2x1"')
    (script,) = scripts.render(nodes.match(full, nodes.parse(SINFO)))
    assert "#SBATCH --gpus-per-node=a100:2" in script.text


def test_every_key_with_a_flag_exists():
    assert set(trainer_flags.KEYS.values()) <= set(conf.FIELDS)
    assert set(trainer_flags.KEYS) <= set(trainer_flags.flags_by_spelling().values())
