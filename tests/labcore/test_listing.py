"""Lists as phrases, with a comma before "and" from three items on."""

from labcore.listing import listed


def test_a_list_becomes_a_phrase():
    assert [listed("abcd"[:count]) for count in range(5)] == [
        "", "a", "a and b", "a, b, and c", "a, b, c, and d"]
    assert listed(map(str, (2, 4))) == "2 and 4"
