"""Generations are found in the shapes of forward passes, without hints from the program."""

import pytest

from virtualgpu.export.passes import ForwardPass, cached, generations, growth


def passes(*lengths, batch=2, left=0):
    return [ForwardPass((1, "Model"), 0.0, [(batch, length)], left, tokens=batch * length)
            for length in lengths]


@pytest.mark.parametrize("lengths, found", [
    ([5, 1, 1, 1], [4]),  # a cache
    ([5, 1, 1, 7, 1, 1, 1], [3, 4]),  # two prompts
    ([5, 6, 7, 8], [4]),  # no cache
    ([5, 6, 7, 7, 7, 5, 6], [5, 2]),  # a context cropped to 7 tokens, then another prompt
    ([1, 1, 1], [3]),  # a prompt of one token
    ([1, 2, 3, 1, 2], [3, 2]),  # twice, without a cache
    ([16, 16, 16], [1, 1, 1]),  # an encoder
])
def test_generations(lengths, found):
    assert [len(group) for group in generations(passes(*lengths))] == found


def test_another_batch_or_module_begins_a_generation():
    other = ForwardPass((2, "Draft"), 0.0, [(2, 1)], 0, tokens=2)
    mixed = [*passes(5, 1), other, *passes(1, batch=1)]
    assert [len(group) for group in generations(mixed)] == [2, 1, 1]


@pytest.mark.parametrize("shapes, tokens, batch, length", [
    ([(4, 9), (4, 1), (1,)], 4, 4, 1),  # a mask, the tokens, and their position
    ([(7,)], 7, 1, 7),  # tokens without a batch
    ([(4, 9), (4, 3, 64)], 0, 4, 3),  # a mask, and embeddings
    ([(8, 3, 224, 224)], 0, 8, 0),  # images
    ([], 6, 1, 6),  # tokens in a dictionary
])
def test_the_batch_and_the_length_of_an_input(shapes, tokens, batch, length):
    one = ForwardPass((1, "Model"), 0.0, shapes, 0, tokens=tokens)
    assert (one.batch, one.length) == (batch, length)


def test_a_cache_grows_by_what_passes_leave_behind():
    group = passes(5, 1, 1, 1, 1, 1)
    for number, one in enumerate(group):
        one.left = 10**6 if number == 1 else 512 * number  # the prompt's logits are freed later
    assert cached(group) and not cached(passes(5, 6))
    assert growth(group) == 512
    assert growth(passes(5, 1, 1)) == 0
