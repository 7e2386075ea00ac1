"""Fits the few constants of the virtual A100 to measured iterations, the even rows of vTrain's.

python benchmarks/virtual_calibration.py ground_truth_single.csv [--evaluations 1200]

Each stage's kernels are listed once, by running it on a virtual card; then only their costs are
computed anew, in arrays. Prints the constants, and their error by kind of row.
They are copied by hand into virtualgpu/core/rules/gemm.py and the DEEPSPEED_A100 of
benchmarks/vtrain.py.
The rows with an odd index are never read here.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import replace

import numpy as np
from search import search
from vtrain import A100, DEEPSPEED_A100, EVEN, Row, flags_of, read

from layout_estimator import measurement
from layout_estimator.cluster import modeled_cluster
from layout_estimator.representative import representative_context
from minimegatron.arguments import parse_arguments
from minimegatron.data.vocabulary import pad_vocab_size
from pipeline_schedules import Action, Handler, one_f_one_b, replay
from pipeline_schedules.actions import StageAction
from virtualgpu.core.gpu import VirtualGpu
from virtualgpu.core.rules import gemm as matmul
from virtualgpu.net.communicator import Communicator


class Recorder:
    """Lists the kernels and collectives of every piece of work that is metered."""

    def __init__(self) -> None:
        self.pieces: list[list[tuple]] = []
        self.now: list[tuple] = []
        start, occupy, meter = VirtualGpu.start, Communicator.occupy, measurement.Meter.run
        recorder = self

        def started(gpu, func, args, kwargs, plan, out):
            work = plan.work
            recorder.now.append(("kernel", work.bytes, work.kernels, work.gemm))
            start(gpu, func, args, kwargs, plan, out)

        def occupied(communicator, name, start, end):
            recorder.now.append(("collective", end - start, 0, None))
            occupy(communicator, name, start, end)

        def metered(meter_, work, backlog=0.0):
            recorder.now = []
            found = meter(meter_, work, backlog)
            recorder.pieces.append(recorder.now)
            return found

        VirtualGpu.start, Communicator.occupy, measurement.Meter.run = started, occupied, metered


Key = tuple  # of a stage: hidden, micro-batch, tp, whether it is the first, the last


def stages_of(row: Row) -> list[tuple[int, bool, bool]]:
    """(number, is first, is last) of each kind of stage."""
    last = row.pp - 1
    found = [(0, True, last == 0)]
    return found + ([(1, False, last == 1)] if last else []) + (
        [(last, False, True)] if last > 1 else [])


def record(rows: list[Row]) -> tuple[dict, dict]:
    """({key: {layers: {"F", "B", "B1": kernels}}}, {(key, layers, dp, pp): {"begin", "end"}})."""
    recorder, passes, steps = Recorder(), {}, {}
    card = replace(DEEPSPEED_A100, memory=1 << 60)
    for row in rows:
        vocabulary = pad_vocab_size(50257, 128, row.tp)

        def on_card(stage: int, layers: int, cost: Callable, row=row) -> list:
            flags = flags_of(row, layers) + " --timing-log-level 0"
            config = parse_arguments(flags.split(),
                                     {"RANK": "0", "WORLD_SIZE": str(row.gpus)})
            with modeled_cluster(card, None, row.gpus, 8) as cluster:
                recorder.pieces = []
                cost(representative_context(config, cluster, stage))
            return recorder.pieces

        for stage, first, last in stages_of(row):
            key = row.hidden, row.micro_batch, row.tp, first, last
            for layers in (2, 3) if key not in passes else ():
                pieces = on_card(stage, layers * row.pp, lambda ctx, v=vocabulary:
                                 measurement.chunk_cost(ctx, v, 0, False))
                passes.setdefault(key, {})[layers] = {
                    "F": pieces[2], "B": pieces[3], "B1": pieces[1]}
            where = key, row.layers // row.pp, row.dp, row.pp
            if where not in steps:
                pieces = on_card(stage, row.layers, lambda ctx, v=vocabulary:
                                 measurement.step_cost(ctx, v))
                steps[where] = {"begin": pieces[0], "end": pieces[1]}
    return passes, steps


def padded(pieces: list[list[tuple]], number: Callable[[tuple], float]) -> np.ndarray:
    found = np.zeros((len(pieces), max(map(len, pieces))))
    for at, piece in enumerate(pieces):
        found[at, :len(piece)] = [number(item) for item in piece]
    return found


class Order(Handler):
    """Lists a schedule's actions in an order that their dependencies allow.

    Attributes:
        actions: (stage, action, the action of another stage that it depends on, if any).
    """

    def __init__(self) -> None:
        self.actions: list[tuple[int, Action, StageAction | None]] = []

    def compute(self, stage: int, action: Action, source: StageAction | None) -> None:
        self.actions.append((stage, action, source))


class Machine:
    """Predicts all rows at once from the constants that are fitted."""

    def __init__(self, rows: list[Row]) -> None:
        passes, steps = record(rows)
        self.rows, self.index, pieces = rows, {}, []
        for where, kinds in [((key, layers), kinds) for key, both in passes.items()
                             for layers, kinds in both.items()] + list(steps.items()):
            for kind, piece in kinds.items():
                self.index[*where, kind] = len(pieces)
                pieces.append(piece)
        self.bytes = padded(pieces, lambda item: item[1] if item[0] == "kernel" else 0)
        self.kernels = padded(pieces, lambda item: item[2] if item[0] == "kernel" else 0)
        self.collectives = padded(pieces, lambda item: item[1] if item[0] == "collective" else 0)
        products: dict = {None: 0}
        self.product = padded(pieces, lambda item: products.setdefault(item[3], len(products))
                              ).astype(int)
        self.shapes = np.array([shape[1:5] for shape in list(products)[1:]], dtype=float)
        self.plans = [self._plan(stages, count) for stages, count in sorted(
            {(row.pp, row.batch // row.micro_batch // row.dp) for row in rows})]

    def _plan(self, stages: int, count: int) -> tuple:
        """Return the lookup table for the rows with `stages` stages and `count` micro-batches."""
        ids = [at for at, row in enumerate(self.rows)
               if (row.pp, row.batch // row.micro_batch // row.dp) == (stages, count)]
        found = []
        for stage in range(stages):
            rows = [self.rows[at] for at in ids]
            keys = [(row.hidden, row.micro_batch, row.tp, stage == 0, stage == stages - 1)
                    for row in rows]
            of = {kind: [np.array([self.index[key, layers, kind] for key in keys])
                         for layers in (2, 3)] for kind in ("F", "B", "B1")}
            where = [(key, row.layers // stages, row.dp, stages)
                     for key, row in zip(keys, rows, strict=True)]
            ends = [np.array([self.index[*place, kind] for place in where])
                    for kind in ("begin", "end")]
            found.append((np.array([row.layers // stages for row in rows]), of, *ends))
        order = Order()
        replay(one_f_one_b(stages, count), order)
        sizes = np.array([2.0 * self.rows[at].micro_batch * self.rows[at].sequence
                          * self.rows[at].hidden for at in ids])
        return stages, count, np.array(ids), found, order.actions, sizes

    def pass_seconds(self, at: dict[str, float]) -> tuple[np.ndarray, np.ndarray]:
        """(seconds of every piece of work, of the host's in it)."""
        arithmetic = np.concatenate([[0.0], products_seconds(self.shapes, at)])
        seconds = np.maximum(self.bytes / (A100.bandwidth * at["vector"]), arithmetic[self.product])
        seconds = np.maximum(seconds + self.kernels * A100.efficiency.kernel,
                             self.kernels * at["pace"])
        seconds += self.collectives
        host = ((self.kernels + (self.collectives > 0)) * at["dispatch"]).cumsum(1)
        behind = seconds[:, ::-1].cumsum(1)[:, ::-1]  # what is still to do when a kernel starts
        return (host + behind).max(1), host[:, -1]

    def predict(self, at: dict[str, float]) -> np.ndarray:
        """Seconds per iteration of every row, as layout_estimator.estimate puts passes together."""
        times, hosts = self.pass_seconds(at)
        found = np.zeros(len(self.rows))
        for stages, count, ids, costs, order, sizes in self.plans:
            took, now = [], []
            for layers, of, begin, _ in costs:
                # The host may be the slower one only with more layers than were listed.
                took.append({kind: np.maximum(*(
                    cost[three] + (layers - 3) * (cost[three] - cost[two])
                    for cost in (times, hosts))) for kind, (two, three) in of.items()})
                now.append(count * hosts[begin])
            wire = at["launch"] + at["near"] + sizes / (
                DEEPSPEED_A100.nvlink * at["link"] * at["p2p"])
            came: dict = {}
            left = [0.0] * stages
            for stage, action, source in order:
                start = now[stage]
                if source is not None:
                    start = np.maximum(np.maximum(start + at["dispatch"], left[stage]),
                                       came[source])
                first = "B1" if action.kind == "B" and action.micro_batch == 0 else action.kind
                now[stage] = np.maximum(start, left[stage]) + took[stage][first]
                if 0 <= stage + (1 if action.kind == "F" else -1) < stages:
                    now[stage] = now[stage] + at["dispatch"]
                    came[stage, action] = left[stage] = now[stage] + wire
            found[ids] = np.max([np.maximum(now[stage], left[stage]) + times[cost[3]]
                                 for stage, cost in enumerate(costs)], axis=0)
        return found


def products_seconds(shapes: np.ndarray, at: dict[str, float]) -> np.ndarray:
    """virtualgpu.core.rules.gemm.matmul_seconds for many shapes (batch, m, n, k)."""
    batch, m, n, k = (column[:, None, None] for column in shapes.T)
    rows, columns = (np.array(column, dtype=float)[None, :, None]
                     for column in zip(*matmul.TILES, strict=True))
    slices = np.array(matmul.SLICES, dtype=float)[None, None, :]
    tiles = batch * np.ceil(m / rows) * np.ceil(n / columns)
    quality = (rows * columns / matmul.LARGEST_AREA) ** at["quality"]
    rate = A100.tflops["fp16"] * 1e12 * at["matmul"] / A100.sms * quality
    seconds = (np.ceil(tiles * slices / A100.sms) * 2 * rows * columns
               * (k / slices + at["ramp"]) / rate)
    refused = (slices > 1) & ((k < 1024 * slices) | (tiles * slices > 2 * A100.sms))
    return np.where(refused, np.inf, seconds).min((1, 2))


# (where it starts, lowest, highest).
CONSTANTS = {
    "ramp": (50, 4, 400), "quality": (0.1, 0.01, 0.6), "p2p": (0.06, 0.005, 1.0),
    "pace": (26e-6, 1e-6, 2e-4), "dispatch": (42e-6, 1e-6, 2e-4),
}
# Not fitted: what others measured on the card. The share of the peak is that of the best shapes
# (S. Bekman): these runs are short, and the card keeps its clock.
GIVEN = {"matmul": 0.87, "vector": A100.efficiency.vector, "link": A100.efficiency.link,
         "launch": 12e-6, "near": 2.5e-6}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("path", help="ground_truth_single.csv of VIA-Research/vTrain")
    parser.add_argument("--evaluations", type=int, default=400)
    arguments = parser.parse_args()
    rows = read(arguments.path, EVEN)
    machine, measured = Machine(rows), np.array([row.seconds for row in rows])
    start, low, high = (np.log([bounds[at] for bounds in CONSTANTS.values()]) for at in range(3))

    def constants(point: np.ndarray) -> dict[str, float]:
        return GIVEN | dict(zip(CONSTANTS, map(float, np.exp(point)), strict=True))

    def error(point: np.ndarray) -> float:
        return float(np.abs(machine.predict(constants(point)) / measured - 1).mean())

    best = search(error, start, low, high, arguments.evaluations)
    print(f"{len(rows)} rows with an even index; mean absolute error {error(best):.2%}, "
          f"where the search began {error(start):.2%}")
    for name, value in constants(best).items():
        print(f"  {name:10} {value:.4g}" + ("" if name in CONSTANTS else "  (given)"))
    errors = machine.predict(constants(best)) / measured - 1
    for name in ("hidden", "micro_batch", "tp", "dp", "pp"):
        for size in sorted({getattr(row, name) for row in rows}):
            some = [one for row, one in zip(rows, errors, strict=True)
                    if getattr(row, name) == size]
            print(f"  {name} {size}: {len(some)} rows, mean error {np.mean(np.abs(some)):.1%}, "
                  f"of which {np.mean(some):+.1%} one way")


if __name__ == "__main__":
    main()
