"""Answers that call the course's own formulas, schedules, and roundings. They would be right."""

from __future__ import annotations

GPT = "from minimegatron import formulas\n"
SCHEDULES = "import pipeline_schedules as schedules\n"

# By lab and by the grade_id of the answer.
BORROWED = {
    "07_the_bill": {
        "count-transformer": """def count_transformer(model, batch=1, recompute=False):
    from lablib.blocks import measure
    return measure(model, batch, recompute)""",
    },
    "10_pipeline_1": {
        "gpipe": """%%writefile mytrainer/gpipe.py
import pipeline_schedules as schedules


def one_by_one(stages, micro_batches):
    return [" ".join(f"F{k} B{k}" for k in range(micro_batches))] * stages


def gpipe(stages, micro_batches):
    return schedules.to_text(schedules.gpipe(stages, micro_batches))""",
        "bubble": """from minimegatron.formulas import bubble_fraction
def enough(p, limit):
    return next(m for m in range(1, 10**5) if bubble_fraction(p, m) <= limit)""",
        "stage": """%%writefile mytrainer/stage.py
from lablib.executor import Stage
""",
    },
    "11_pipeline_2": {
        "one-f-one-b": """%%writefile mytrainer/one_f_one_b.py
import pipeline_schedules as schedules
def one_f_one_b(stages, micro_batches):
    made = schedules.to_text(schedules.one_f_one_b(stages, micro_batches))
    return [text.split() for text in made]""",
        "interleaved": """%%writefile mytrainer/interleaved.py
import pipeline_schedules as schedules
def interleaved(stages, micro_batches, chunks):
    made = schedules.to_text(schedules.interleaved(stages, micro_batches, chunks))
    return [text.split() for text in made]""",
    },
    "13_eight_bits": {
        "blocks": """%%writefile mytrainer/blocks.py
from minite.quantize import quantize_blocks as made
def quantize_blocks(x, dtype, rows, columns):
    found = made(x, dtype, (rows, columns))
    return found.data, found.scale_inv
class Blocks:
    def pair(self, x, dtype, role):
        if role == "weight":
            data, inverse = quantize_blocks(x, dtype, 128, 128)
            return (data, inverse), (data.t().contiguous(), inverse.t())
        return quantize_blocks(x, dtype, 1, 128), quantize_blocks(x.t(), dtype, 1, 128)""",
        "mx": """%%writefile mytrainer/mx.py
from minite import quantize
def mxfp8(x, dtype):
    made = quantize.quantize_mx(x, dtype)
    return made.data, made.scale_inv.view(torch.uint8).int() - 127
class MX:
    def pair(self, x, dtype, role):
        return mxfp8(x, dtype), mxfp8(x.t(), dtype)
import torch""",
    },
    "14_heterogeneous_clusters": {
        "stage-times": """from cluster_planner.case_model import durations as stage_times""",
        "simulate": SCHEDULES + """def simulate(forward, backward, link, micro_batches):
    schedule = schedules.load("1f1b", len(forward), micro_batches)
    timeline = schedules.simulate(schedule, schedules.Durations(forward, backward, 0, link))
    return [[[f"{span.kind}{span.micro_batch}", float(span.start), float(span.end)]
              for span in stage]
            for stage in timeline.spans.values()]""",
        "best-split": """def best_split(case, replicas, kinds):
    from cluster_planner.case_planners import balanced
    plan = balanced(case, replicas, kinds)
    return plan and [layers for _, layers in plan["stages"]]""",
        "placements": """from cluster_planner.placement import orders
def placements(counts):
    return list(orders(counts))""",
        "planner": "from cluster_planner.case_planners import search as plan",
    },
}
