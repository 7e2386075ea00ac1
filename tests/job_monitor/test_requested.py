"""The configuration that a job requested, compared with the one in its log."""

import pytest

from job_monitor import requested
from labcore.workspace import CODE
from tests.job_monitor.samples import job, lines, take

LAUNCH = ("RANKS=2\nBATCH=\"--micro-batch-size 2 --train-iters 20\"\n"
          "srun torchrun --nnodes $SLURM_NNODES --nproc_per_node \"$RANKS\" train.py $BATCH ")


def differences(script, log, **fields):
    config = requested.configuration(log)
    return [str(one) for one in requested.mismatches(job(**fields), script, config)]


def test_a_run_as_asked_for_has_none():
    assert differences(LAUNCH, lines(), command="a.sh") == []


@pytest.mark.parametrize("prefix", ["0: ", " 0: [default0]:", "2024-05-01T10:20:30Z "])
def test_the_table_is_found_behind_a_prefix(prefix):
    log = [prefix + line for line in lines(iters=8)]
    assert differences(LAUNCH, log) == ["--train-iters: requested 20, but the log says 8"]


def test_arguments_win_over_the_script():
    log = lines(iters=8)
    assert differences(LAUNCH + '"$@"', log, command="a.sh --train-iters 8") == []


def test_arguments_that_the_script_drops_are_told():
    assert differences(LAUNCH, lines(), command="a.sh --train-iters 8") == [
        "--train-iters: requested 8, but the log says 20"]


def test_a_variable_that_is_never_passed_on_is_told():
    script = LAUNCH + '\nLAYOUT="--tensor-model-parallel-size 2"\n'
    assert differences(script, lines()) == [
        "--tensor-model-parallel-size: requested 2, but the log says 1"]


def test_ranks_that_never_met_are_told():
    assert differences(LAUNCH, lines(world=2)) == [
        "ranks: requested 4 by the script's launcher, but the log says 2"]


def test_gpus_without_a_rank_are_told():
    script = LAUNCH.replace("RANKS=2", "RANKS=1")
    assert differences(script, lines(world=2), gpus=4) == [
        "ranks: requested 4 GPUs, but the log says 2 rank(s)"]


@pytest.mark.parametrize("script", [
    "# --train-iters 7", "train.py --train-iters $((2 * 4))", "train.py --train-iters $UNKNOWN",
    "for N in 7 8; do train.py --train-iters $N; done",
    "train.py --train-iters 7\ntrain.py --train-iters 9", "N=$N\ntrain.py --train-iters $N"])
def test_what_cannot_be_followed_is_left_out(script):
    assert differences(script, lines()) == []


def test_micro_batch_of_an_indented_call_over_several_lines():
    script = "train.py \\\n    --micro-batch-size 8 \\\n    --train-iters=20\n"
    assert differences(script, lines()) == ["--micro-batch-size: requested 8, but the log says 2"]


def test_the_last_start_of_a_log_counts():
    assert requested.configuration(lines(micro=1) + lines(micro=4, world=2)) == {
        "micro_batch_size": "4", "pipeline_model_parallel_size": "1", "seq_length": "32",
        "tensor_model_parallel_size": "1", "train_iters": "20", "world_size": "2",
        "data_parallel_size": "2"}


@pytest.mark.parametrize("path", [path for path in sorted((CODE / "jobs").glob("*.sh"))
                                  if "#SBATCH" in path.read_text()
                                  and not path.stem.startswith("case_")],
                         ids=lambda path: path.stem)
def test_the_shipped_scripts_launchers_can_be_followed(path):
    text = path.read_text()
    nodes = 2 if "--nodes=2" in text else 1
    gpus = 2 * nodes if "--gpus-per-node=2" in text else None
    if "--nproc_per_node" in text:
        # What the submitter's environment decides, no script says.
        said = None if "${RANKS:-" in text else 2 * nodes
        assert requested.requested_ranks(job(node_count=nodes, gpus=gpus), text) == said
    assert requested.flags(text)["--num-layers"].isdigit()


def test_a_default_counts_only_where_slurm_sets_nothing():
    script = ("torchrun --nnodes ${SLURM_NNODES:-1} "
              "--nproc_per_node ${SLURM_GPUS_ON_NODE:-2} train.py")
    assert requested.requested_ranks(job(node_count=2, gpus=None), script) == 4
    assert requested.requested_ranks(job(node_count=2, gpus=8), script) == 8
    assert requested.requested_ranks(job(node_count=None, gpus=None), script) is None
    assert requested.flags("train.py --train-iters ${SLURM_NNODES:-1}") == {}


def test_a_picture_has_them(tmp_path):
    shown = take(tmp_path, job(command="a.sh --micro-batch-size 16"), lines(), script=LAUNCH)
    assert [one.name for one in shown.mismatches] == ["--micro-batch-size"]


@pytest.mark.parametrize("script", [
    "N=7\n[ -n \"$LONG\" ] && N=9\ntrain.py --train-iters $N",
    "N=7; N=9\ntrain.py --train-iters $N", "N=7\nN+=0\ntrain.py --train-iters $N"])
def test_a_variable_that_is_set_twice_cannot_be_followed(script):
    assert requested.flags(script) == {}


def test_a_variable_before_a_semicolon_is_followed():
    assert requested.flags("N=7; train.py --train-iters $N") == {"--train-iters": "7"}
