"""The exchange of messages between the ranks of one process group.

Only some ranks may be present, as processes. Each of the others is represented by the nearest
present rank below it, which is assumed to do the same at the same time. For point-to-point
messages, this symmetry means that what a rank receives from the rank d places before it equals what
it sends to the rank d places after it.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from datetime import timedelta

from virtualgpu.net.errors import Asymmetric
from virtualgpu.net.job_store import JobStore
from virtualgpu.net.messages import RankMessage

HOUR = timedelta(hours=1)


def stands_for(present: Sequence[int], count: int) -> list[int]:
    """Return, for each rank of a group, the present rank that represents it.

    Args:
        present: indices of the ranks that are present, in order.
        count: number of ranks in the group.
    """
    return [max((one for one in present if one <= index), default=present[0])
            for index in range(count)]


def mirrored(source: int, target: int, count: int) -> tuple[int, int]:
    """Return which of the receiver's own sends mirrors a send from a rank that is not present.

    Args:
        source: index of the rank that is not present.
        target: index of the rank that receives.
        count: number of ranks in the group.

    Returns:
        The index of the rank that the send goes to, and its distance.
    """
    distance = (target - source) % count
    return (target + distance) % count, distance


class Messenger:
    """Exchanges messages between the ranks of a group through the store."""

    def __init__(self, rank: int, ranks: Sequence[int], job_store: JobStore | None = None,
                 name: str = "", timeout: timedelta = HOUR) -> None:
        """Connect a rank to the others.

        Args:
            rank: this rank's index in the group.
            ranks: the group's ranks in the job.
            job_store: where messages are posted; None for a rank that represents all others.
            name: unique name of the group.
            timeout: limit of a wait, in real time.
        """
        self.rank, self.ranks, self.job_store, self.name = rank, list(ranks), job_store, name
        self.timeout = timeout
        self.present = [rank] if job_store is None else [
            index for index, each in enumerate(ranks) if each in set(job_store.present)]
        self.stands_for = stands_for(self.present, len(ranks))
        self.posted: deque[int] = deque()  # collectives with entries in the store
        self.settled = 0
        self.mirrored: defaultdict[int, deque[RankMessage]] = defaultdict(deque)  # by distance

    @property
    def symmetric(self) -> bool:
        """Return whether some ranks are not present."""
        return len(self.present) < len(self.ranks)

    def exchange(self, number: int, mine: RankMessage) -> Callable[[], list[RankMessage]]:
        """Send a message to all other ranks.

        Args:
            number: the collective's number in this group.
            mine: this rank's message.

        Returns:
            A function that waits for the others' messages and returns all messages, by rank.
        """
        if len(self.present) == 1:
            return lambda: [mine] * len(self.ranks)
        mine = mine._replace(settled=self.settled)
        self.job_store.post(self._key(number, self.rank), mine.pack())
        self.posted.append(number)

        def wait() -> list[RankMessage]:
            keys = [self._key(number, index) for index in self.present]
            text = (f"waits in {mine.call} of ranks {self._names(self.present)} ({mine.line})")
            messages = [RankMessage.unpack(entry)
                        for entry in self.job_store.take(keys, text, self.timeout)]
            self.settled = number + 1
            self._clear(min(message.settled for message in messages))
            by_rank = dict(zip(self.present, messages, strict=True))
            return [by_rank[index] for index in self.stands_for]
        return wait

    def _clear(self, settled: int) -> None:
        """Remove this rank's entries that all ranks have read."""
        while self.posted and self.posted[0] < settled:
            self.job_store.drop(self._key(self.posted.popleft(), self.rank))

    def send(self, target: int, number: int, message: RankMessage) -> None:
        """Send a message to one rank.

        Args:
            target: the receiver's index in the group.
            number: number of earlier messages from this rank to it.
        """
        if target in self.present:
            self.job_store.post(self._pair(self.rank, target, number), message.pack())
        else:
            self.mirrored[(target - self.rank) % len(self.ranks)].append(message)

    def receive(self, source: int, number: int, text: str) -> Callable[[], RankMessage]:
        """Return a function that waits for a message.

        Args:
            source: the sender's index in the group.
            number: number of earlier messages from it.
            text: description of the wait for error messages.
        """
        if source not in self.present:
            return lambda: self._mirror(source, text)

        def wait() -> RankMessage:
            key = self._pair(source, self.rank, number)
            (packed,) = self.job_store.take([key], text, self.timeout)
            self.job_store.drop(key)
            return RankMessage.unpack(packed)
        return wait

    def _mirror(self, source: int, text: str) -> RankMessage:
        ahead, distance = mirrored(source, self.rank, len(self.ranks))
        if self.mirrored[distance]:
            return self.mirrored[distance].popleft()
        raise Asymmetric(
            f"rank {self.ranks[self.rank]} {text}, which is not present, and has itself sent "
            f"nothing to rank {self.ranks[ahead]}: the ranks are not symmetric here; make rank "
            f"{self.ranks[source]} present as well, or run all ranks")

    def unmatched(self) -> str | None:
        """Return an error message about a send to a rank that is not present without a matching
        receive, or None."""
        for distance, waiting in self.mirrored.items():
            if waiting:
                target = self.ranks[(self.rank + distance) % len(self.ranks)]
                return (f"rank {self.ranks[self.rank]} sends to rank {target}, which is not "
                        f"present ({waiting[0].line}), and receives nothing from the rank as far "
                        f"before it: the ranks are not symmetric here; make rank {target} present "
                        "as well, or run all ranks")
        return None

    def _key(self, number: int, index: int) -> str:
        return f"{self.name}/{number}/{index}"

    def _pair(self, source: int, target: int, number: int) -> str:
        return f"{self.name}/{source}-{target}/{number}"

    def _names(self, indices: Sequence[int]) -> str:
        return ",".join(str(self.ranks[index]) for index in indices)
