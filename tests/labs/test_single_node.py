"""Lab 02, the layouts of exercises 6 and 7: sensible ones are right, and others are told why."""

import pytest

from labcore import shipping, workspace
from tests.labs import graded
from tests.labs.test_labs import lab_of

LAB = workspace.CHECKOUT / "solutions" / "02_single_node.py"
BATCH = " --global-batch-size 16"
TENSOR, FULL = "--tensor-model-parallel-size 2 ", "--recompute-granularity full --recompute-method "
RIGHT = [("fastest", "--micro-batch-size 2 --overlap-grad-reduce"),
         ("fastest", TENSOR + "--sequence-parallel --micro-batch-size 4"),
         ("large", TENSOR + "--sequence-parallel --micro-batch-size 1"),
         ("large", "--pipeline-model-parallel-size 2 --recompute-activations --micro-batch-size 2"),
         ("large", "--use-distributed-optimizer --recompute-activations --micro-batch-size 2")]
WRONG = [("fastest", "--pipeline-model-parallel-size 2 --micro-batch-size 1",
          "stages wait for each other"),
         ("fastest", "--micro-batch-size 2 --attention-dropout 0 --use-flash-attn",
          "--attention-dropout 0.0; the exercise uses"),
         ("large", FULL + "uniform --pipeline-model-parallel-size 2 --micro-batch-size 1",
          "more computed twice than necessary?")]


@pytest.fixture(scope="module")
def judged(tmp_path_factory):
    home, lab = tmp_path_factory.mktemp("workspace"), lab_of(LAB)
    shipping.make_workspace(home)

    def judge(answer: str, layout: str) -> str:
        def change(cell):
            lines = [f'LAYOUT="{layout}{BATCH}"' if line.startswith("LAYOUT=") else line
                     for line in cell.source.split("\n")]
            return "\n".join(lines) if cell.grade_id == answer else cell.source

        check = f"{answer}-check"
        return graded.text(graded.run(lab, home, change, {check}).checks[check])

    return judge


@pytest.mark.slow
@pytest.mark.parametrize(("answer", "layout"), RIGHT)
def test_sensible_layouts_are_right(judged, answer, layout):
    assert judged(answer, layout) == "None"


@pytest.mark.slow
@pytest.mark.parametrize(("answer", "layout", "said"), WRONG)
def test_other_layouts_are_told_why(judged, answer, layout, said):
    assert said in judged(answer, layout)
