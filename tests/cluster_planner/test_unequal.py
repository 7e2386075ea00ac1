"""Replicas on unlike GPUs take as many micro-batches as they can."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from cluster_planner import partition, unequal
from cluster_planner.placement import ParallelSizes, Placement
from cluster_planner.profiles import Key, write_table
from cluster_planner.search import Search
from cluster_planner.stages import TrainingConfig, stages_of
from lab.cli import main
from tests.cluster_planner.cases import MODEL, profiles
from tests.layout_estimator.test_plan_cli import FLAGS
from virtualgpu.net.cluster_spec import parse_nodes

CONFIG, LINK = TrainingConfig(1, "none", False, "1f1b"), "ethernet:25gbit"


def placed(cluster, *sizes):
    order = tuple(group for group in parse_nodes(cluster) for _ in range(group.nodes))
    return Placement(ParallelSizes(*sizes), order, LINK)


def test_no_other_numbers_of_micro_batches_are_faster():
    placement, known = placed("a100:1x1,a10:1x2", 1, 1, 3), profiles()
    made = unequal.best(replace(MODEL, global_batch=12), placement, CONFIG, known, np.inf)
    both = [sum(getattr(known.get(Key(card, 1, 1, "none")), part).both * count
                for part, count in (("embedding", 1), ("layer", MODEL.layers), ("head", 1)))
            for card in ("a100-80gb", "a10", "a10")]
    end = made.stages.sync[0, -1] + made.stages.update[0, -1]
    best = min(max(count * one for count, one in zip(counts, both, strict=True))
               for counts in product(range(1, 13), repeat=3) if sum(counts) == 12)
    assert made.partition.time == pytest.approx(best + end)
    assert sum(made.micro_batches) == 12 and made.micro_batches[0] > made.micro_batches[1]


def test_equal_replicas_take_equal_numbers():
    placement = placed("a10:2x2", 1, 2, 2)
    made = unequal.best(MODEL, placement, CONFIG, profiles(), np.inf)
    stages = stages_of(MODEL, placement, CONFIG, profiles())
    assert made.micro_batches == (8, 8)
    assert made.partition.time == pytest.approx(partition.best(stages).time)


def test_what_is_no_faster_or_needs_more_memory_is_left_out():
    placement = placed("a100:2x1,a10:2x1", 1, 2, 2)
    made = unequal.best(MODEL, placement, CONFIG, profiles(), np.inf)
    assert unequal.best(MODEL, placement, CONFIG, profiles(), made.partition.time) is None
    few = replace(MODEL, global_batch=2)  # fewer micro-batches than stages
    assert unequal.best(few, placement, CONFIG, profiles(), np.inf) is None


def test_the_search_adds_them_on_request_and_nothing_can_run_them(tmp_path, capsys):
    cluster, table = "a100:2x1,a10:2x1", str(tmp_path / "table.json")
    search = [Search(MODEL, parse_nodes(cluster), profiles(), {}, LINK, unequal=on).front()[0]
              for on in (False, True)]
    assert search[1].seconds < search[0].seconds and sum(search[1].shares) == 16 // (
        search[1].config.micro_batch)
    write_table(table, MODEL, profiles().known)
    words = ["plan", "--flags", FLAGS, "--global-batch", "16", "--cluster", cluster, "--profiles",
             table, "--unequal-replicas"]
    assert main(words) == 0
    shown = capsys.readouterr().out
    assert "micro-batches per replica" in shown and "the trainer cannot run it" in shown
    assert main(["plan", "--model", "gpt2-small", "--global-batch", "8", "--cluster", "a10:1x1",
                 "--unequal-replicas", "--conf", str(tmp_path / "p.toml")]) == 1
    assert "--unequal-replicas: the trainer cannot run such plans" in capsys.readouterr().err
