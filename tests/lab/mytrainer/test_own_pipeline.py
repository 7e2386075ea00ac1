"""The files of labs 10 to 12 in my_trainer.py: what they compute, and what they need."""

import json
import re
import shlex

import pytest

from lab.mytrainer import flags as ours
from lab.mytrainer import selfcheck
from lab.mytrainer.pieces import PIECES
from minimegatron.errors import UserError
from pipeline_schedules import Action, timeline_of, to_text, zbv
from tests.lab.mytrainer.conftest import FP16, MODEL, SCALED, TRAINING
from tests.lab.mytrainer.test_own_model import FILES as LLAMA_FILES
from tests.lab.mytrainer.test_own_model import GROUPS, LLAMA

pytestmark = pytest.mark.slow

FILES = (*LLAMA_FILES, "stage", "micro_batches", "llama_stage", "program", "pipeline")
DEEP = MODEL.replace("--num-layers 2", "--num-layers 4")
STEPS = TRAINING.replace("--train-iters 32", "--train-iters 4 --lr-decay-iters 32")
TIED = LLAMA.replace("--untie-embeddings-and-output-weights ", "")
PP2, TP2 = "--pipeline-model-parallel-size 2 ", "--tensor-model-parallel-size 2 "
PP4 = PP2.replace("2", "4")
ZERO = "--use-megatron-fsdp --data-parallel-sharding-strategy optim "


@pytest.fixture(scope="session")
def right(train, dataset):
    """Loss and gradient norm of pretrain_gpt.py on one rank, untied and tied."""
    runs = {}
    for flags in (LLAMA, TIED):
        run = train(f"{STEPS}{flags}{GROUPS}--micro-batch-size 2", base=DEEP + dataset.flags)
        runs[flags] = run.column("lm loss"), run.column("grad norm")
    return runs


STRESS = pytest.mark.stress


@pytest.mark.parametrize(("model", "flags", "ranks", "rel"), [
    (LLAMA, PP2 + TP2 + "--schedule zb-h1 --sequence-parallel --delay-wgrad-compute", 4, 1e-5),
    (LLAMA, PP2 + TP2 + "--schedule gpipe --sequence-parallel", 4, 1e-5),
    (TIED, PP2 + "--schedule 1f1b", 4, 1e-5), (LLAMA, PP2 + "--schedule zb-h1", 4, 1e-5),
    (LLAMA, PP2 + "--num-layers-per-virtual-pipeline-stage 1", 4, 1e-5),
    *(pytest.param(*one, marks=STRESS) for one in (
        (LLAMA, PP4 + "--schedule gpipe", 4, 1e-5),
        (LLAMA, PP2 + TP2 + "--schedule zb-h1 --sequence-parallel", 4, 1e-5),
        (LLAMA, PP4 + "--schedule zb-h2", 4, 1e-5),
        (TIED, PP4 + "--schedule 1f1b", 4, 1e-5),
        (TIED, PP2 + TP2, 4, 1e-5),
        (LLAMA, PP2 + "--balance 1-3 --recompute-granularity full --recompute-method uniform", 2,
         1e-5),
        (LLAMA, PP2 + ZERO, 4, 1e-5),
        (TIED, PP2 + TP2 + ZERO + "--sequence-parallel", 8, 1e-5),
        (LLAMA, PP2 + "--bf16", 4, 3e-3)))])
def test_losses_and_gradient_norms_are_the_trainers(
        my_trainer, student, dataset, right, model, flags, ranks, rel):
    student.solve(*FILES, "p2p", "tied", "gpipe", "one_f_one_b", "interleaved", "grid",
                  "split_backward", "deferred_wgrad", "zero_bubble", "zero_bubble_2", "ddp",
                  "checkpointing", "states", "precision", "shards", "zero", "clipping")
    run = my_trainer(f"{DEEP}{STEPS}{model}{GROUPS}--micro-batch-size 2 {dataset.flags} {flags}",
                     ranks)
    assert run.column("lm loss") == pytest.approx(right[model][0], rel=rel)
    assert run.column("grad norm") == pytest.approx(right[model][1], abs=1.01e-3 if rel < 1e-4 else
                                                    0.03)


def test_fp16_skips_the_steps_of_one_rank_on_all_stages(my_trainer, student, train, dataset):
    student.solve(*FILES, "p2p", "one_f_one_b", "ddp", "precision", "unscale", "scaler",
                  "new/train")
    flags = (f"{DEEP}{SCALED}{LLAMA}{GROUPS}{dataset.flags} {FP16}--train-iters 6 "
             "--lr-decay-iters 20 ")
    right = train(flags, base="")
    run = my_trainer(flags + PP2, 2)
    scales = run.column("loss scale")
    assert scales == right.column("loss scale") and len(set(scales)) > 1
    assert run.column("lm loss") == pytest.approx(right.column("lm loss"), rel=1e-3)


@pytest.mark.parametrize(("before", "ranks", "after", "then"), [
    (PP2 + ZERO, 4, PP2 + TP2, 4), *(pytest.param(*one, marks=STRESS) for one in (
        (PP2 + TP2 + ZERO + "--num-layers-per-virtual-pipeline-stage 1", 8, PP2, 2),
        (PP4, 4, PP2 + ZERO, 4)))])
def test_other_stages_resume(
        my_trainer, student, dataset, right, tmp_path, before, ranks, after, then):
    student.solve(*FILES, "p2p", "one_f_one_b", "interleaved", "tied", "ddp", "shards", "zero",
                  "clipping", "reshard")
    base = f"{DEEP}{STEPS}{TIED}{GROUPS}--micro-batch-size 2 {dataset.flags} "
    my_trainer(f"{base}{before} --train-iters 2 --save {tmp_path} --save-interval 2", ranks)
    run = my_trainer(f"{base}{after} --load {tmp_path}", then)
    assert run.column("lm loss") == pytest.approx(right[TIED][0][2:], rel=1e-5)
    assert run.column("grad norm") == pytest.approx(right[TIED][1][2:], abs=1.01e-3)


def test_the_timeline_of_a_step_shows_the_stages(my_trainer, student, dataset, tmp_path):
    student.solve(*FILES, "p2p", "gpipe", "ddp")
    run = my_trainer(f"{DEEP}{STEPS}{LLAMA}{GROUPS}--micro-batch-size 2 {dataset.flags} {PP2}"
                     f"--schedule gpipe --timeline {tmp_path} --timeline-iteration 2", 4)
    assert f" timeline of iteration 2 written to {tmp_path}/timeline.json: bubble" in run.out
    spans = timeline_of(tmp_path).spans
    assert [[str(Action(*span[:3])) for span in stage] for stage in spans.values()] == [
        ["F0", "F1", "F2", "F3", "B3", "B2", "B1", "B0"]] * 2


def test_a_grid_of_other_ranks_is_refused(my_trainer, student, dataset):
    student.solve(*FILES, "gpipe", "ddp")
    student.write("grid", """import torch.distributed as dist


class Grid:
    def __init__(self, tensor, pipeline):
        rank = dist.get_rank()
        pairs = [dist.new_group([first, first + 1]) for first in (0, 2)]
        alone = [dist.new_group([one]) for one in range(4)]
        self.tensor, self.data, self.model = alone[rank], pairs[rank // 2], pairs[rank // 2]
        self.links, self.ends = {"F": pairs[rank // 2], "B": pairs[rank // 2]}, pairs[rank // 2]
""")
    run = my_trainer(f"{DEEP}{STEPS}{LLAMA}{GROUPS}--micro-batch-size 2 {dataset.flags} {PP2}"
                     "--schedule gpipe", 4, code=1)
    assert ('mytrainer/grid.py: links["F"] of Grid(1, 2) has the ranks 0, 1 on rank 0 instead of '
            "0, 2" in run.err)


def test_a_schedule_that_cannot_run_is_refused(my_trainer, student, dataset):
    student.solve(*FILES)
    student.write("gpipe", "def gpipe(stages, micro_batches):\n    return [['F0', 'B0']] * stages\n"
                  "\n\ndef one_by_one(stages, micro_batches): ...\n")
    run = my_trainer(f"{DEEP}{STEPS}{LLAMA}{GROUPS}--micro-batch-size 2 {dataset.flags} {PP2}"
                     "--schedule gpipe", 2, code=1)
    assert "mytrainer/gpipe.py: no stage runs micro-batch 1, 2, 3" in run.err


def test_a_schedule_with_v_shaped_placement_is_refused(my_trainer, student, dataset, tmp_path):
    """The executor would place its chunks round-robin, and so train another model."""
    student.solve(*FILES, "split_backward", "interleaved")
    file = tmp_path / "vee.json"
    file.write_text(json.dumps({"placement": "v", "stages": to_text(zbv(2, 8))}))
    run = my_trainer(f"{DEEP}{STEPS}{LLAMA}{GROUPS}--micro-batch-size 2 {dataset.flags} {PP2}"
                     f"--num-layers-per-virtual-pipeline-stage 1 --schedule {file}", 2, code=1)
    assert f"--schedule {file}: its chunks are placed in a V" in run.err


BASE = f"--lr 1e-3 {DEEP}{GROUPS}--micro-batch-size 2 --train-iters 1 --eval-iters 0 "
REFUSED = [
    (LLAMA + "--overlap-grad-reduce", "--overlap-grad-reduce with --pipeline-model-parallel-size "
     "2: your executor runs all backward passes of a step in one call; nearest: leave out "
     "--overlap-grad-reduce"),
    (LLAMA + ZERO.replace("optim", "optim_grads"), "only the optimizer state can be sharded"),
    (LLAMA + TP2 + "--use-distributed-optimizer", "the ranks share one replica of the model"),
    (LLAMA + "--samples-per-rank 2,2,0,0", "--samples-per-rank 2,2,0,0 with "
     "--pipeline-model-parallel-size 2: unequal shares need ranks that each have a whole replica"),
    (LLAMA + "--hidden-dropout 0.1 --recompute-granularity full --recompute-method uniform",
     "with --hidden-dropout 0.1, a recomputed layer would have the masks of another micro-batch"),
    (LLAMA + "--schedule zb-h1 --delay-wgrad-compute", "--delay-wgrad-compute with "
     "--pipeline-model-parallel-size 2: it delays the weight gradients of your SequenceRegion, "
     "which needs --sequence-parallel; nearest: leave out --delay-wgrad-compute"),
    (LLAMA + "--balance 3-2", "--balance 3-2 adds up to 5 layers"),
    ("--swiglu --group-query-attention", "--pipeline-model-parallel-size 2 trains "
     "mytrainer/llama.py, which is a Llama; add --normalization RMSNorm --position-embedding-type "
     "rope --disable-bias-linear")]


@pytest.mark.parametrize(("flags", "problem"), REFUSED)
def test_what_a_pipeline_cannot_do_is_refused(monkeypatch, dataset, flags, problem):
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.raises(UserError, match=re.escape(problem)):
        ours.parse(shlex.split(f"{BASE}{dataset.flags} {PP2}{flags}"))


@pytest.mark.parametrize(("flags", "absent", "problem"), [
    (LLAMA, "pipeline", "--pipeline-model-parallel-size 2 needs mytrainer/pipeline.py, which you "
     "write in lab 10; until then, leave the flag out"),
    (TIED, "tied", "--pipeline-model-parallel-size 2 without --untie-embeddings-and-output-weights "
     "needs mytrainer/tied.py, which you write in lab 10; until then, add --untie"),
    (LLAMA, "one_f_one_b", "--schedule 1f1b needs mytrainer/one_f_one_b.py, which you write in lab "
     "11; until then, choose --schedule gpipe"),
    (LLAMA + "--schedule zb-h1", "split_backward", "--schedule zb-h1 needs "
     "mytrainer/split_backward.py, which you write in lab 12")])
def test_a_missing_file_names_its_lab(monkeypatch, student, dataset, flags, absent, problem):
    monkeypatch.setenv("WORLD_SIZE", "2")
    student.solve(*(name for name in (*FILES, "tied", "one_f_one_b", "zero_bubble",
                                      "split_backward") if name != absent))
    config = ours.parse(shlex.split(f"{BASE}{dataset.flags} {PP2}{flags}"))
    with pytest.raises(UserError, match=f"^{re.escape(problem)}"):
        ours.require_pieces(config, object)


@pytest.mark.parametrize(("name", "old", "new", "message"), [
    ("stage", "self.in_flight.pop(key)", "self.in_flight[key]",
     "after the backward passes, in_flight still has 8 micro-batches"),
    ("gpipe", "reversed(range(micro_batches))", "range(1, micro_batches)", "gpipe: stage 0"),
    ("llama_stage", "* data.loss_mask).sum() / data.loss_mask.sum()", ").mean()", "the loss"),
    ("pipeline", "return weights[number] * y", "return y", "the loss on rank 1"),
    ("program", 'programs[stage].append(f"send {action} to {target[0]}")',
     'programs[stage].insert(0, f"send {action} to {target[0]}")', "KeyError"),
    ("p2p", "return dist.irecv(tensor, group_src=stage, group=self.groups[kind])",
     'return dist.irecv(tensor, group_src=stage, group=self.groups["B"])',
     "two ranks never finish"),
    ("tied", "        dist.all_reduce(self.weight.grad, group=self.group)\n", "        pass\n",
     "its gradient is")])
def test_a_wrong_piece_fails_its_self_check(student, name, old, new, message):
    student.solve(*FILES)
    student.change(name, old, new)
    problem = selfcheck.problem(PIECES[name])
    assert message in problem
