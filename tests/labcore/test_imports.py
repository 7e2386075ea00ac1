"""Large imports: without collections, and out of the way of later ones."""

import gc

import pytest

from labcore.imports import imports_without_gc


@pytest.fixture(autouse=True)
def as_before():
    yield
    gc.unfreeze()
    gc.enable()


def test_nothing_is_collected_within_and_what_is_there_stays_out_of_later_collections():
    gc.unfreeze()
    with imports_without_gc():
        assert not gc.isenabled()
        made = [[]]
    assert gc.isenabled() and gc.get_freeze_count() > 0
    assert not any(one is made for one in gc.get_objects())


def test_an_error_switches_the_collector_on_again_and_who_has_it_off_keeps_it_off():
    with pytest.raises(ImportError), imports_without_gc():
        raise ImportError
    assert gc.isenabled()
    gc.disable()
    with imports_without_gc():
        pass
    assert not gc.isenabled()
