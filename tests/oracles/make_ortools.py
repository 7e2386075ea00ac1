"""Prints the fastest partitions that OR-Tools' CP-SAT finds and proves, as JSON.

    pip install --no-deps --target /tmp/ortools ortools==9.15.6755 "immutabledict>=3"
    PYTHONPATH=/tmp/ortools:code:. python -m tests.oracles.make_ortools \
        > tests/oracles/ortools.json

Without --no-deps, pip would install protobuf 6.33, which OR-Tools asks for, and TensorBoard's pin
here is 7.36; CP-SAT runs with either.
"""

from __future__ import annotations

import json

from layout_estimator.cluster_planner.stages import Stages
from pipeline_schedules import BACKWARD, FORWARD, passes
from tests.layout_estimator.cluster_planner.cases import INTEGER_CASES, integer_stages


def optimum(stages: Stages, simulated: bool) -> int:
    """Return the least time of a step, proved, in the unit of the stages' times.

    Args:
        stages: with times that are integers and linear in the layers.
        simulated: a step takes what the simulation of its schedule says, instead of the cost model
            of partition.exact.
    """
    from ortools.sat.python import cp_model

    model, (count, width) = cp_model.CpModel(), stages.forward.shape
    horizon = int(10 * stages.micro_batches * stages.both[:, -1].sum())
    allowed = [[n for n in range(width) if stages.fits[stage, n]] for stage in range(count)]
    layers = [model.new_int_var_from_domain(cp_model.Domain.from_values(values), f"n{stage}")
              for stage, values in enumerate(allowed)]
    model.add(sum(layers) == width - 1)

    def linear(row, stage):
        return int(row[stage, 0]) + int(row[stage, 1] - row[stage, 0]) * layers[stage]

    def largest(terms):
        most = model.new_int_var(0, horizon, "")
        for term in terms:
            model.add(most >= term)
        return most

    times = {FORWARD: stages.forward, BACKWARD: stages.backward}
    send = [int(one) for one in stages.send]
    both = [linear(stages.both, stage) for stage in range(count)]
    if not simulated:
        total = sum(both) + 2 * sum(send) + (stages.micro_batches - 1) * largest(both)
    else:
        ends, last = [], {}
        for kind, stage, source, boundary, _ in passes(stages.schedule, count,
                                                       stages.micro_batches):
            end = model.new_int_var(0, horizon, "")
            for ready in ([last[stage]] if stage in last else []) + (
                    [] if source is None else [ends[source] + send[boundary]]):
                model.add(end >= ready + linear(times[kind], stage))
            if stage not in last and source is None:
                model.add(end >= linear(times[kind], stage))
            last[stage] = end
            ends.append(end)
        ready = [last[stage] for stage in range(count)]
        if count > 1:
            ready[0] = ready[-1] = largest([ready[0], ready[-1]]) + int(stages.ends)
        total = largest([one + linear(stages.sync, stage) for stage, one in enumerate(ready)]
                        ) + largest([linear(stages.update, stage) for stage in range(count)])
    model.minimize(total)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers, solver.parameters.max_time_in_seconds = 1, 60
    if solver.solve(model) != cp_model.OPTIMAL:
        raise RuntimeError("CP-SAT has not proved an optimum within a minute")
    return round(solver.objective_value)


if __name__ == "__main__":
    print(json.dumps([{"modeled": optimum(stages, False), "simulated": optimum(stages, True)}
                      for stages in map(integer_stages, range(INTEGER_CASES))], indent=1))
