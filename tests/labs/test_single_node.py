"""Lab 02: answers that differ from the reference and are right have full marks."""

import pytest

from labcore import shipping, workspace
from tests.labs import graded
from tests.labs.test_labs import lab_of

LAB = workspace.CHECKOUT / "solutions" / "02_single_node.py"
START = r'''srun --cpus-per-task="$SLURM_CPUS_PER_TASK" --kill-on-bad-exit=1 \
    torchrun --standalone --nproc_per_node 2'''
REPAIRED = "torchrun --standalone --nproc_per_node 2"
FUNCTIONS = '''
    class Enter(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.view_as(x)

        @staticmethod
        def backward(ctx, gradient):
            dist.all_reduce(gradient)
            return gradient

    class Leave(torch.autograd.Function):
        @staticmethod
        def forward(ctx, part):
            part = part.clone()
            dist.all_reduce(part)
            return part

        @staticmethod
        def backward(ctx, gradient):
            return gradient

    loss = mean_squared_error(Leave.apply(mlp(Enter.apply(x), first, second)), y)
    loss.backward()
    return loss.detach()
'''
ONE_FORWARD_ONE_BACKWARD = '''
    waiting, sent, total = [], [], torch.zeros(1)
    if x is not None:
        def backward():
            activations = waiting.pop(0)
            gradient = torch.empty_like(activations)
            dist.recv(gradient, src=1)
            activations.backward(gradient)

        for part in x.chunk(micro_batches):
            waiting.append(functional.gelu(part @ weight))
            sent.append(dist.isend(waiting[-1].detach(), dst=1))
            if len(waiting) == 2:
                backward()
        while waiting:
            backward()
        for request in sent:
            request.wait()
        return None
    for part in y.chunk(micro_batches):
        activations = torch.empty(len(part), len(weight))
        dist.recv(activations, src=0)
        loss = mean_squared_error(activations.requires_grad_() @ weight, part) / micro_batches
        loss.backward()
        total += loss.detach()
        dist.send(activations.grad, dst=0)
    return total
'''


@pytest.fixture(scope="module")
def judged(tmp_path_factory):
    home, lab = tmp_path_factory.mktemp("workspace"), lab_of(LAB)
    shipping.make_workspace(home)

    def judge(answer: str, change) -> str:
        check = f"{answer}-check"
        outcome = graded.run(lab, home, lambda cell: change(cell.source) if
                             cell.grade_id == answer else cell.source, {check})
        assert answer not in outcome.answers
        return graded.text(outcome.checks[check])

    return judge


def replacing(old, new):
    def change(source):
        assert source.count(old) == 1
        return source.replace(old, new)

    return change


@pytest.mark.parametrize(("answer", "body"), [
    ("tensor-parallel", FUNCTIONS), ("pipeline-parallel", ONE_FORWARD_ONE_BACKWARD)])
def test_another_right_step_has_full_marks(judged, answer, body):
    assert judged(answer, lambda source: source.rpartition("    ### BEGIN")[0] + body) == "None"


@pytest.mark.parametrize("start", [
    REPAIRED, f"srun -c2 --cpu-bind=none {REPAIRED}",
    REPAIRED.replace("--standalone", "--rdzv-backend=c10d --rdzv-endpoint=localhost:0"),
    f"srun -c 2 taskset -c 0,1 {REPAIRED}",
    f"export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK\nsrun {REPAIRED}"])
def test_every_repair_that_works_has_full_marks(judged, start):
    assert judged("repaired", replacing(START, start)) == "None"

