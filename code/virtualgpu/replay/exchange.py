"""Match the communication of recorded ranks.

Collectives match by group and order, and sends by pair and order. Ranks without a record do what
the nearest recorded rank below them does, as in net/wire.py.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from virtualgpu.net.group import differing
from virtualgpu.net.wire import mirrored, stands_for
from virtualgpu.replay.errors import BadRecord

Group = tuple[str, tuple[int, ...]]  # name and ranks


class Post(NamedTuple):
    """One rank's part in a collective, or one send.

    Attributes:
        where: rank and entry, in words.
        time: when the rank is ready, or when a sent tensor arrives.
        name: of the collective.
        what: arguments that all ranks must agree on.
        given: bytes that go in, or are sent.
        taken: bytes that come out.
        splits: bytes for and from each rank.
    """

    where: str
    time: float
    name: str
    what: str
    given: int
    taken: int
    splits: Sequence[Sequence[int]] = ()


class Exchange:
    """Everything that ranks have told each other so far."""

    def __init__(self, present: Sequence[int]) -> None:
        """present: the ranks that have a record."""
        self.present = set(present)
        self.posts: defaultdict[tuple[Group, int], dict[int, Post]] = defaultdict(dict)
        self.sends: defaultdict[tuple[Group, int, int], list[Post]] = defaultdict(list)
        self.received: defaultdict[tuple[Group, int, int], int] = defaultdict(int)

    def _here(self, group: Group) -> list[int]:
        return [index for index, rank in enumerate(group[1]) if rank in self.present]

    def post(self, group: Group, number: int, index: int, post: Post) -> None:
        """One rank begins a collective.

        Args:
            group: its process group.
            number: of the collective in this group.
            index: the rank's, in the group.
            post: what it tells the others.
        """
        self.posts[group, number][index] = post

    def all_posts(self, group: Group, number: int) -> list[Post] | None:
        """The parts of all ranks in a collective; None while one is missing. Raises BadRecord
        where they differ."""
        told, here = self.posts[group, number], self._here(group)
        if any(index not in told for index in here):
            return None
        first = told[here[0]]
        for index in here:
            other = told[index]
            if (other.name, other.what) != (first.name, first.what):
                raise BadRecord(differing(f"{first.where}: calls {first.what}",
                                          f"{other.where}: calls {other.what}"))
        return [told[index] for index in stands_for(here, len(group[1]))]

    def missing(self, group: Group, number: int) -> list[int]:
        """Ranks that have not begun a collective."""
        told = self.posts[group, number]
        return [group[1][index] for index in self._here(group) if index not in told]

    def _queue(self, group: Group, source: int, target: int) -> tuple[Group, int, int]:
        """Return the queue of a send.

        A rank receives from a rank without a record what it would itself send that far ahead.
        """
        ranks = group[1]
        if ranks[source] in self.present:
            return group, source, target
        return group, target, mirrored(source, target, len(ranks))[0]

    def send(self, group: Group, source: int, target: int, post: Post) -> None:
        """One rank sends to another; both are indices in the group."""
        self.sends[group, source, target].append(post)

    def receive(self, group: Group, source: int, target: int, number: int) -> Post | None:
        """The send that belongs to a rank's receive with this number from a source; None while it
        is missing."""
        queue = self._queue(group, source, target)
        sends = self.sends[queue]
        if len(sends) <= number:
            return None
        self.received[queue] = max(self.received[queue], number + 1)
        return sends[number]

    def check_complete(self) -> None:
        """Raise BadRecord where something was said that nobody heard."""
        for (group, number), told in self.posts.items():
            missing = self.missing(group, number)
            if missing:
                first = min(told.values(), key=lambda post: post.where)
                raise BadRecord(f"{first.where}: {first.what} of ranks {list(group[1])}, which "
                                f"rank {missing[0]} never calls")
        for queue, sends in self.sends.items():
            if self.received[queue] < len(sends):
                post = sends[self.received[queue]]
                raise BadRecord(f"{post.where}: sends {post.given} bytes to rank "
                                f"{queue[0][1][queue[2]]}, which never receives them")
