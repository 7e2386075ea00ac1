"""Large imports: without collections, and out of the way of later ones."""

import gc
import shlex
import subprocess
import sys

import pytest

from minimegatron.imports import quick_imports

from .conftest import MODEL


@pytest.fixture(autouse=True)
def as_before():
    yield
    gc.unfreeze()
    gc.enable()


def test_nothing_is_collected_within_and_what_is_there_stays_out_of_later_collections():
    gc.unfreeze()
    with quick_imports():
        assert not gc.isenabled()
        made = [[]]
    assert gc.isenabled() and gc.get_freeze_count() > 0
    assert not any(one is made for one in gc.get_objects())


def test_an_error_switches_the_collector_on_again_and_who_has_it_off_keeps_it_off():
    with pytest.raises(ImportError), quick_imports():
        raise ImportError
    assert gc.isenabled()
    gc.disable()
    with quick_imports():
        pass
    assert not gc.isenabled()


@pytest.mark.slow
def test_the_trainer_starts_without_a_full_collection():
    """Full ones, which walk all of torch, must not happen before it reads its data."""
    program = ("import gc, os, sys, minimegatron.main as program\n"
               "def full(phase, info):\n"
               "    if phase == 'start' and info['generation'] == 2: os._exit(7)\n"
               "gc.callbacks.append(full)\n"
               "program.main(sys.argv[1:])")
    nowhere = [word for name in ("data-path", "vocab-file", "merge-file")
               for word in (f"--{name}", "nowhere")]
    done = subprocess.run([sys.executable, "-c", program, *shlex.split(MODEL), "--train-iters", "1",
                           *nowhere], capture_output=True, text=True, timeout=100)
    assert done.returncode == 1 and "nowhere" in done.stderr, done.stderr
