"""The scripts of all kinds of parallelism, recorded and priced: `make stress`."""

from __future__ import annotations

import contextlib
import io

import pytest

from virtualgpu.launch.cluster import parse
from virtualgpu.launch.process import script
from virtualgpu.launch.ranks import run_ranks
from virtualgpu.launch.settings import Settings

from ..launch.running import SCRIPTS
from ..launch.test_parallel import SHARDED
from .recorded import priced, texts
from .test_price import equal

pytestmark = pytest.mark.stress
DDP = [("ddp", variant, "64", 2) for variant in ("plain", "views", "unused", "no_sync", "hook")]
BY_HAND = [("handwritten", name, 2) for name in ("ring", "overlapped", "tensor")]
ALONE = [("features", "streams", 1), ("gpt", "--dtype=float16", 1), ("hugging_face", "llama", 1)]


@pytest.mark.parametrize("case", [*DDP, *BY_HAND, *ALONE, *(
    ("sharded", name, ranks) for name, ranks in SHARDED.items())], ids=str)
def test_the_price_is_what_the_script_s_run_said(case):
    name, *arguments, ranks = case
    program = script(str(SCRIPTS / f"{name}.py"), arguments)

    def quietly():
        with contextlib.redirect_stdout(io.StringIO()):
            program()

    results = run_ranks(parse(f"h100:{ranks}"), Settings(record=True), quietly)
    assert [rank.error for rank in results] == [None] * len(results)
    for one, rank in zip(priced(texts(results), f"h100:{ranks}"), results, strict=True):
        equal(one, rank)
