"""Compute the cost of a recorded collective, and check that its ranks' arguments match."""

from __future__ import annotations

from collections.abc import Sequence

from virtualgpu.net import collectives
from virtualgpu.net.collectives import CommunicationPath
from virtualgpu.replay.errors import BadRecord
from virtualgpu.replay.exchange import RankPost


def seconds(path: CommunicationPath, posts: Sequence[RankPost], me: int, complete: bool) -> float:
    """Return the time, in seconds, of a collective once all ranks are ready.

    Args:
        path: the path between the ranks.
        posts: the parts of all ranks.
        me: this rank's index among them.
        complete: whether all ranks have records.

    Raises:
        BadRecord: the ranks' sizes do not match, or the collective is unknown.
    """
    mine = posts[me]
    given, taken = (sum(getattr(post, side) for post in posts) for side in ("given", "taken"))
    most = max(max(post.given, post.taken) for post in posts)
    sizes_match = {
        "all_reduce": lambda: mine.given == mine.taken,
        "broadcast": lambda: mine.given == mine.taken,
        "reduce": lambda: taken == mine.given,
        "all_gather": lambda: mine.taken == given,
        "reduce_scatter": lambda: mine.given == taken,
        "gather": lambda: most == given,
        "scatter": lambda: most == taken,
        "all_to_all": lambda: _splits_match(posts, me, complete),
        "barrier": lambda: most == 0,
    }.get(mine.name)
    if sizes_match is None:
        raise BadRecord(f"{mine.where}: unknown collective {mine.name!r}; known ones: "
                        f"{', '.join(collectives.COSTS)}")
    if complete and not sizes_match():
        raise BadRecord(f"{mine.where}: {mine.name} with {mine.given} bytes in and {mine.taken} "
                        f"bytes out, but all ranks together have {given} and {taken}")
    return collectives.seconds(mine.name, path, collectives.BufferSizes(
        mine.given, mine.taken, given, taken, most))


def _splits_match(posts: Sequence[RankPost], me: int, complete: bool) -> bool:
    """Return whether every rank sends as much as this one expects."""
    if any(len(post.splits) != 2 or [len(side) for side in post.splits] != [len(posts)] * 2 or
           sum(post.splits[0]) != post.given or sum(post.splits[1]) != post.taken
           for post in posts):
        return False
    return not complete or all(post.splits[0][me] == posts[me].splits[1][other]
                               for other, post in enumerate(posts))
