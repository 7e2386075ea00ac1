"""The lists say what 1F1B says."""

import pytest

from minimegatron.schedules import one_f_one_b


def text(actions):
    return " ".join(map(str, actions))


def test_one_stage_is_gradient_accumulation():
    assert text(one_f_one_b(1, 3)[0]) == "F0 B0 F1 B1 F2 B2"


def test_warm_up_steady_state_cool_down():
    first, last = one_f_one_b(3, 4)[0], one_f_one_b(3, 4)[2]
    assert text(first) == "F0 F1 F2 B0 F3 B1 B2 B3"
    assert text(last) == "F0 B0 F1 B1 F2 B2 F3 B3"


@pytest.mark.parametrize("stages", [1, 2, 4, 7])
@pytest.mark.parametrize("micro_batches", [1, 3, 8])
def test_live_activations_shrink_towards_the_last_stage(stages, micro_batches):
    for stage, actions in enumerate(one_f_one_b(stages, micro_batches)):
        alive, peak = 0, 0
        for action in actions:
            alive += 1 if action.kind == "F" else -1
            peak = max(peak, alive)
        assert (alive, peak) == (0, min(stages - stage, micro_batches))
