"""Prints the fastest partitions that OR-Tools' CP-SAT finds and proves, as JSON.

    pip install --no-deps --target /tmp/ortools ortools==9.15.6755 "immutabledict>=3"
    PYTHONPATH=/tmp/ortools:code:. python -m tests.oracles.make_ortools \
        > tests/oracles/ortools.json

Without --no-deps, pip would install protobuf 6.33, which OR-Tools asks for, and TensorBoard's pin
here is 7.36; CP-SAT runs with either.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from operator import add
from typing import Any

import numpy as np

from cluster_planner.stages import Stages
from pipeline_schedules import BACKWARD, FORWARD, passes
from tests.cluster_planner.cases import INTEGER_CASES, integer_stages


def linear(row: np.ndarray, stage: int, layers: Sequence[Any]) -> Any:
    """Return a stage's time [p, l + 1] as an expression of its number of layers."""
    return int(row[stage, 0]) + int(row[stage, 1] - row[stage, 0]) * layers[stage]


def simulated_ends(model: Any, stages: Stages, layers: Sequence[Any], horizon: int) -> list[Any]:
    """Add the passes of the stages' schedule to a model. Return when each stage has finished.

    Args:
        model: the CP-SAT model.
        stages: the stages.
        layers: a variable for each stage.
        horizon: no pass ends later.
    """
    times, ends, last = {FORWARD: stages.forward, BACKWARD: stages.backward}, [], {}
    for kind, stage, source, boundary, _ in passes(stages.schedule, len(layers),
                                                   stages.micro_batches):
        ready = [last[stage]] if stage in last else []
        ready += [] if source is None else [ends[source] + int(stages.send[boundary])]
        end = model.new_int_var(0, horizon, "")
        for begin in ready or [0]:
            model.add(end >= begin + linear(times[kind], stage, layers))
        last[stage] = end
        ends.append(end)
    return [last[stage] for stage in range(len(layers))]


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

    def largest(terms):
        most = model.new_int_var(0, horizon, "")
        for term in terms:
            model.add(most >= term)
        return most

    both, sync, update = ([linear(row, stage, layers) for stage in range(count)]
                          for row in (stages.both, stages.sync, stages.update))
    if simulated:
        ready = simulated_ends(model, stages, layers, horizon)
        if count > 1:
            ready[0] = ready[-1] = largest([ready[0], ready[-1]]) + int(stages.ends)
        total = largest(map(add, ready, sync)) + largest(update)
    else:
        total = (sum(both) + 2 * sum(map(int, stages.send))
                 + (stages.micro_batches - 1) * largest(both))
    model.minimize(total)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers, solver.parameters.max_time_in_seconds = 1, 60
    if solver.solve(model) != cp_model.OPTIMAL:
        raise RuntimeError("CP-SAT has not proved an optimum within a minute")
    return round(solver.objective_value)


if __name__ == "__main__":
    print(json.dumps([{"modeled": optimum(stages, False), "simulated": optimum(stages, True)}
                      for stages in map(integer_stages, range(INTEGER_CASES))], indent=1))
