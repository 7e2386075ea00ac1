"""Match the communication of recorded ranks.

Collectives match by group and order, and sends by pair and order. Ranks without a record do what
the nearest recorded rank below them does, as in net/messenger.py. The sizes in a record are its
word, so they are compared, too.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from virtualgpu.net import collectives
from virtualgpu.net.collectives import CommunicationPath
from virtualgpu.net.communicator import unequal_splits
from virtualgpu.net.errors import mismatch_message
from virtualgpu.net.messenger import mirrored, stands_for
from virtualgpu.replay.format import BadRecord

Group = tuple[str, tuple[int, ...]]  # name and ranks


class RankPost(NamedTuple):
    """One rank's part in a collective, or one send.

    Attributes:
        where: rank and entry, for error messages.
        time: when the rank is ready, or when a sent tensor arrives, in seconds.
        name: the collective.
        call: the collective, with the arguments that all ranks must agree on.
        given: bytes of the inputs, or of the sent tensor.
        taken: bytes of the outputs.
        splits: bytes for and from each rank.
    """

    where: str
    time: float
    name: str
    call: str
    given: int
    taken: int
    splits: Sequence[Sequence[int]] = ()


class Exchange:
    """The collectives and sends that ranks have started so far."""

    def __init__(self, present: Sequence[int]) -> None:
        """Begin with no communication; `present` are the ranks that have a record."""
        self.present = set(present)
        self.posts: defaultdict[tuple[Group, int], dict[int, RankPost]] = defaultdict(dict)
        self.sends: defaultdict[tuple[Group, int, int], list[RankPost]] = defaultdict(list)
        self.received: defaultdict[tuple[Group, int, int], int] = defaultdict(int)

    def _recorded(self, group: Group) -> list[int]:
        return [index for index, rank in enumerate(group[1]) if rank in self.present]

    def post(self, group: Group, number: int, index: int, post: RankPost) -> None:
        """Record that a rank starts a collective.

        Args:
            group: its process group.
            number: number of the collective in this group.
            index: the rank's index in the group.
            post: the rank's part.
        """
        self.posts[group, number][index] = post

    def all_posts(self, group: Group, number: int) -> list[RankPost] | None:
        """Return the parts of all ranks in a collective, or None while one is missing.

        Raises:
            BadRecord: the ranks' calls differ.
        """
        posts, recorded = self.posts[group, number], self._recorded(group)
        if any(index not in posts for index in recorded):
            return None
        first = posts[recorded[0]]
        for index in recorded:
            other = posts[index]
            if (other.name, other.call) != (first.name, first.call):
                raise BadRecord(mismatch_message(f"{first.where}: calls {first.call}",
                                                 f"{other.where}: calls {other.call}"))
        return [posts[index] for index in stands_for(recorded, len(group[1]))]

    def seconds(self, group: Group, posts: Sequence[RankPost], me: int, path: CommunicationPath
                ) -> float:
        """Return the time, in seconds, of a collective once all ranks are ready.

        Args:
            group: its process group.
            posts: the parts of all ranks.
            me: this rank's index among them.
            path: the path between the ranks.

        Raises:
            BadRecord: the ranks' sizes do not match, or the collective is unknown.
        """
        mine = posts[me]
        complete = all(rank in self.present for rank in group[1])
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
            "all_to_all": lambda: _splits_match(posts, me),
            "barrier": lambda: most == 0,
        }.get(mine.name)
        if sizes_match is None:
            raise BadRecord(f"{mine.where}: unknown collective {mine.name!r}; known ones: "
                            f"{', '.join(collectives.COSTS)}")
        if complete and not sizes_match():
            raise BadRecord(
                f"{mine.where}: {mine.name} with {mine.given} bytes in and {mine.taken} bytes out, "
                f"but all ranks together have {given} and {taken}")
        return collectives.seconds(mine.name, path, collectives.BufferSizes(
            mine.given, mine.taken, given, taken, most))

    def missing(self, group: Group, number: int) -> list[int]:
        """Return the ranks that have not started a collective."""
        posts = self.posts[group, number]
        return [group[1][index] for index in self._recorded(group) if index not in posts]

    def _queue(self, group: Group, source: int, target: int) -> tuple[Group, int, int]:
        """Return the queue of a send.

        A send from a rank without a record mirrors the receiver's own send over the same distance.
        """
        ranks = group[1]
        if ranks[source] in self.present:
            return group, source, target
        return group, target, mirrored(source, target, len(ranks))[0]

    def send(self, group: Group, source: int, target: int, post: RankPost) -> None:
        """Record that a rank sends to another; both are indices in the group."""
        self.sends[group, source, target].append(post)

    def receive(self, group: Group, source: int, target: int, number: int) -> RankPost | None:
        """Return the send that matches a rank's receive, or None while it is missing.

        Args:
            group: the process group.
            source: index of the sender.
            target: index of the receiver.
            number: number of earlier receives from this sender.
        """
        queue = self._queue(group, source, target)
        sends = self.sends[queue]
        if len(sends) <= number:
            return None
        self.received[queue] = max(self.received[queue], number + 1)
        return sends[number]

    def check_complete(self) -> None:
        """Raise BadRecord if a collective or a send was never matched."""
        for (group, number), posts in self.posts.items():
            missing = self.missing(group, number)
            if missing:
                first = min(posts.values(), key=lambda post: post.where)
                raise BadRecord(f"{first.where}: {first.call} of ranks {list(group[1])}, which "
                                f"rank {missing[0]} never calls")
        for queue, sends in self.sends.items():
            if self.received[queue] < len(sends):
                post = sends[self.received[queue]]
                raise BadRecord(f"{post.where}: sends {post.given} bytes to rank "
                                f"{queue[0][1][queue[2]]}, which never receives them")


def _splits_match(posts: Sequence[RankPost], me: int) -> bool:
    """Return whether every rank sends as much as this one expects."""
    if any(len(post.splits) != 2 or [len(side) for side in post.splits] != [len(posts)] * 2 or
           sum(post.splits[0]) != post.given or sum(post.splits[1]) != post.taken
           for post in posts):
        return False
    return unequal_splits([post.splits for post in posts], me) is None
