"""--estimate --cluster says what the ranks say: random clusters of several kinds of nodes."""

import pytest

from ..layout_estimator.mixed_runs import compare, draw
from ..minimegatron.conftest import dataset  # noqa: F401  fixture

pytestmark = [pytest.mark.stress, pytest.mark.timeout(600)]


@pytest.mark.parametrize("seed", range(20))
def test_one_process_says_what_all_ranks_say(dataset, tmp_path, seed):  # noqa: F811
    errors = compare(draw(seed), dataset, tmp_path)
    assert abs(errors.time) < 0.02
    assert abs(errors.memory) < 0.02
