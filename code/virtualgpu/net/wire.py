"""How the ranks of one process group exchange messages.

Ranks that are not present are those that another rank stands for, in a symmetric world: each does
what the nearest present rank below it does, at the same time. For point-to-point messages, symmetry
means that what a rank receives from the rank d places before it is what it itself sends to the rank
d places after it.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from datetime import timedelta

from virtualgpu.net.board import Board
from virtualgpu.net.errors import Asymmetric
from virtualgpu.net.messages import Message

HOUR = timedelta(hours=1)


def stands_for(here: Sequence[int], count: int) -> list[int]:
    """Return, for each rank of a group, the present one that does the same.

    Args:
        here: indices of the ranks that are present, in order.
        count: ranks in the group.
    """
    return [max((one for one in here if one <= index), default=here[0]) for index in range(count)]


def mirrored(source: int, target: int, count: int) -> tuple[int, int]:
    """Return which of a rank's own sends stands for one from a rank that is not present.

    Args:
        source: index of the rank that is not present.
        target: index of the rank that receives.
        count: ranks in the group.

    Returns the index of the rank that the send goes to, and how far ahead it is.
    """
    distance = (target - source) % count
    return (target + distance) % count, distance


class Wire:
    """Exchanges messages between the ranks of a group over the board."""

    def __init__(self, rank: int, ranks: Sequence[int], board: Board | None = None, name: str = "",
                 timeout: timedelta = HOUR) -> None:
        """Args:
            rank: this rank's index in the group.
            ranks: the group's ranks, in the job's numbers.
            board: where messages are posted; None for a rank that stands for all others.
            name: of the group; unique.
            timeout: of real time.
        """
        self.rank, self.ranks, self.board, self.name = rank, list(ranks), board, name
        self.timeout = timeout
        self.here = [rank] if board is None else [
            index for index, one in enumerate(ranks) if one in set(board.present)]
        self.stands_for = stands_for(self.here, len(ranks))
        self.posted: deque[int] = deque()  # collectives whose entries are still on the board
        self.settled = 0
        self.mirrored: defaultdict[int, deque[Message]] = defaultdict(deque)  # by distance

    @property
    def symmetric(self) -> bool:
        """Whether some ranks are not present."""
        return len(self.here) < len(self.ranks)

    def meet(self, number: int, mine: Message) -> Callable[[], list[Message]]:
        """Tell the others something.

        Args:
            number: of the collective in this group.
            mine: what this rank says.

        Returns a function that waits for the others and returns all messages, by rank.
        """
        if len(self.here) == 1:
            return lambda: [mine] * len(self.ranks)
        mine = mine._replace(settled=self.settled)
        self.board.post(self._key(number, self.rank), mine.pack())
        self.posted.append(number)

        def wait() -> list[Message]:
            keys = [self._key(number, index) for index in self.here]
            text = (f"waits in {mine.what} of ranks {self._names(self.here)} ({mine.place})")
            told = [Message.unpack(one)
                    for one in self.board.take(keys, text, self.timeout)]
            self.settled = number + 1
            self._clear(min(one.settled for one in told))
            by_rank = dict(zip(self.here, told, strict=True))
            return [by_rank[index] for index in self.stands_for]
        return wait

    def _clear(self, settled: int) -> None:
        """Remove this rank's entries that all have read."""
        while self.posted and self.posted[0] < settled:
            self.board.drop(self._key(self.posted.popleft(), self.rank))

    def send(self, target: int, number: int, message: Message) -> None:
        """Tell one rank something.

        Args:
            target: the receiver's index in the group.
            number: how many messages went from this rank to it before.
            message: what is said.
        """
        if target in self.here:
            self.board.post(self._pair(self.rank, target, number), message.pack())
        else:
            self.mirrored[(target - self.rank) % len(self.ranks)].append(message)

    def receive(self, source: int, number: int, text: str) -> Callable[[], Message]:
        """Return a function that waits for a message.

        Args:
            source: the sender's index in the group.
            number: how many messages came from it before.
            text: what this rank waits for, in words.
        """
        if source not in self.here:
            return lambda: self._mirror(source, text)

        def wait() -> Message:
            key = self._pair(source, self.rank, number)
            (packed,) = self.board.take([key], text, self.timeout)
            self.board.drop(key)
            return Message.unpack(packed)
        return wait

    def _mirror(self, source: int, text: str) -> Message:
        ahead, distance = mirrored(source, self.rank, len(self.ranks))
        if self.mirrored[distance]:
            return self.mirrored[distance].popleft()
        raise Asymmetric(
            f"rank {self.ranks[self.rank]} {text}, which is not present, and has itself sent "
            f"nothing to rank {self.ranks[ahead]}: the ranks are not symmetric here; make rank "
            f"{self.ranks[source]} present as well, or run all ranks")

    def unmatched(self) -> str | None:
        """Sends to ranks that are not present for which nothing was received, in words."""
        for distance, waiting in self.mirrored.items():
            if waiting:
                target = self.ranks[(self.rank + distance) % len(self.ranks)]
                return (f"rank {self.ranks[self.rank]} sends to rank {target}, which is not "
                        f"present ({waiting[0].place}), and receives nothing from the rank as far "
                        f"before it: the ranks are not symmetric here; make rank {target} present "
                        "as well, or run all ranks")
        return None

    def _key(self, number: int, index: int) -> str:
        return f"{self.name}/{number}/{index}"

    def _pair(self, source: int, target: int, number: int) -> str:
        return f"{self.name}/{source}-{target}/{number}"

    def _names(self, indices: Sequence[int]) -> str:
        return ",".join(str(self.ranks[index]) for index in indices)
