"""Ten times the same virtual job, under load: the same digits."""

import pytest

from ..minimegatron.conftest import dataset, pretrain  # noqa: F401  fixtures
from ..virtualgpu.repeats import repeated


@pytest.mark.stress
@pytest.mark.timeout(1800)
def test_ten_repeats_under_load(pretrain):  # noqa: F811
    first, *others = repeated(pretrain, 10)
    assert len(first) == 16 and all(other == first for other in others)
