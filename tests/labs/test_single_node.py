"""Lab 02, exercises 8 and 9: other layouts that are as fast are right, and slower ones are told
why."""

import pytest

from labcore import shipping, workspace
from tests.labs import graded
from tests.labs.test_labs import lab_of

LAB = workspace.CHECKOUT / "solutions" / "02_single_node.py"
BATCH = " --global-batch-size 16"
RIGHT = [("fastest", "--micro-batch-size 2 --overlap-grad-reduce"),
         ("large", "--tensor-model-parallel-size 2 --sequence-parallel --micro-batch-size 2"),
         ("large", "--use-distributed-optimizer --recompute-activations --micro-batch-size 2")]
WRONG = [("fastest", "--tensor-model-parallel-size 2 --sequence-parallel --micro-batch-size 4",
          "wait for messages in every layer"),
         ("fastest", "--micro-batch-size 2 --attention-dropout 0 --use-flash-attn",
          "--attention-dropout 0.0; the exercise uses"),
         ("large", "--recompute-granularity full --recompute-method block "
          "--recompute-num-layers 4 --pipeline-model-parallel-size 2 --micro-batch-size 1",
          "is something computed twice?")]


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
def test_other_layouts_that_are_as_fast_are_right(judged, answer, layout):
    assert judged(answer, layout) == "None"


@pytest.mark.slow
@pytest.mark.parametrize(("answer", "layout", "said"), WRONG)
def test_slower_layouts_are_told_why(judged, answer, layout, said):
    assert said in judged(answer, layout)
