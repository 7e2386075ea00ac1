import pytest
from tests.lab.mytrainer.test_loop import *
from tests.lab.mytrainer.test_loop import scaled, reference
for n in [n for n in globals() if n.startswith("test_")]: del globals()[n]
ZERO=("shards","zero","zero2","zero3","prefetch","clipping","reshard")
S="--use-megatron-fsdp --data-parallel-sharding-strategy "
P=S+"optim_grads_params --overlap-grad-reduce --overlap-param-gather "
SHORT = TRAINING.replace("--train-iters 32", "--train-iters 4 --lr-decay-iters 32")+"--micro-batch-size 2 "
LONG = TRAINING.replace("--train-iters 32", "--train-iters 8 --lr-decay-iters 32")+"--micro-batch-size 2 "
def test_resume(my_trainer, student, dataset, reference, tmp_path):
    student.solve(*ZERO, "ddp")
    losses, norms = (column[:8] for column in reference)
    for before, after, ranks in ((P, "--use-distributed-optimizer ", (4, 2)), ("", S+"optim_grads ", (2, 4)), (S+"optim_grads ", "", (2,0))):
        f = f"--save {tmp_path}/{before.split()[-1] if before else 0}{ranks[1]} --save-interval 100 "
        a = my_trainer(MODEL + SHORT + dataset.flags + before + f, ranks[0])
        b = my_trainer(MODEL + LONG + dataset.flags + after + f.replace("save ", "load ").replace("--save-interval 100", ""), ranks[1])
        print(a.out[-900:], b.out)
        assert a.column("lm loss") + b.column("lm loss") == pytest.approx(losses, rel=1e-5)
        assert a.column("grad norm") +b.column("grad norm")== pytest.approx(norms, abs=1.01e-3)
def test_fp16(my_trainer, student, dataset, scaled, tmp_path):
    student.solve(*ZERO, *NEEDED, "collectives", "ddp", "launch")
    a = my_trainer(MODEL + SCALED.replace("iters 20","iters 7 --lr-decay-iters 20") + FP16 + dataset.flags + P + f"--save {tmp_path} --save-interval 100", 2)
    b = my_trainer(MODEL + SCALED + FP16 + dataset.flags +"--use-distributed-optimizer " + f"--load {tmp_path}", 4)
    both = lambda c: a.column(c) + b.column(c)
    assert both("lm loss") == pytest.approx(scaled.column("lm loss"), rel=1e-4)
    assert both("grad norm") == pytest.approx(scaled.column("grad norm"), abs=3e-3)
    for column in ("loss scale", "number of skipped iterations", "learning rate"):
        assert both(column) == scaled.column(column)
    print(both("loss scale"), both("number of skipped iterations"))
@pytest.mark.parametrize("s", [S+"optim ", S+"optim_grads ", P])
def test_auto(my_trainer, student, dataset, reference, s):
    student.solve("collectives", "ddp", "precision", "autocast", *ZERO)
    run = my_trainer(MODEL + SHORT + dataset.flags + "--bf16 --autocast", 2)
    b = my_trainer(MODEL + SHORT + dataset.flags + "--bf16 --autocast " + s, 2)
    assert run.column("lm loss") == pytest.approx(b.column("lm loss"), rel=1e-5)
    assert run.column("grad norm") == pytest.approx(b.column("grad norm"), abs=3e-3)
@pytest.mark.parametrize("s", [S+"optim ", S+"optim_grads "])
def test_fp8(my_trainer, student, dataset, s):
    student.solve("collectives", "ddp", "precision", "fp8", *ZERO)
    f = MODEL.replace("--hidden-size 32", "--hidden-size 64") + SHORT + dataset.flags + "--bf16 --fp8-format hybrid --fp8-recipe tensorwise "
    run = my_trainer(f, 2)
    b = my_trainer(f+ s, 2)
    assert run.column("lm loss") == pytest.approx(b.column("lm loss"), rel=1e-5)
    assert run.column("grad norm") == pytest.approx(b.column("grad norm"), abs=3e-3)
