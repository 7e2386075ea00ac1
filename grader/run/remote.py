"""The student's side of a check, seen from the trusted side: labkit.check.sides.Side over a
channel.

The sandbox may send anything. It becomes plain values, exceptions, and bounded text here, or the
sandbox is ended.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from grader import cleaning
from grader.run.channel import BrokenChannel, ChannelError
from grader.run.measure import EstimateFailed
from grader.run.proxies import name_of
from labcore.errors import LabError
from labkit.check import on_gpus, on_ranks, wire
from labkit.check.cases import of_rank
from labkit.check.kernel import KernelSide
from labkit.check.pricing import PricingFailed, PricingProcess
from labkit.check.sides import (
    DEFAULT_TRIAL,
    LATE,
    LONGEST_NAME,
    MOST_NAMES,
    RAISED,
    GpusRun,
    Raised,
    RanksRun,
    SimulatedCluster,
    Trial,
)
from labkit.guest import protocol

MOST_TEXT = 2_000  # characters of an exception's text, or of a reason why a value cannot cross
MOST_TITLE = 100
PRICING = PricingProcess()  # one for all submissions that this process grades
MOST_REASON = 300  # characters of the reason why a response is refused


class SandboxLost(BaseException):
    """Raised when the sandbox has ended, so that the check cannot be decided. It is not an
    Exception, because a check must not mistake it for the student's answer."""


class Remote:
    """labkit.check.sides.Side over a channel.

    Attributes:
        ask: sends a request with the time that is left for it.
        measure: grader.run.measure.figures with a back-end.
        unmeasured: why a job could not be estimated.
    """

    def __init__(self, ask: Callable[..., dict[str, Any]], seed: str,
                 measure: Callable[[Sequence[str]], dict[str, Any]]) -> None:
        self.ask, self.seed, self.measure = ask, seed, measure
        self.lost: ChannelError | None = None
        self.unmeasured = ""  # why a job's figures are not known

    def _request(self, do: str, **fields: Any) -> dict[str, Any]:
        if self.lost:
            raise SandboxLost from self.lost
        try:
            return self.ask(do, **fields)
        except protocol.BadFrame as error:
            raise wire.CannotCross(f"the check's arguments are too large: {error}") from error
        except ChannelError as error:
            self.lost = error
            raise SandboxLost from error

    def _broken(self, why: str = "") -> SandboxLost:
        words = "its response does not have the expected form"
        self.lost = BrokenChannel(cleaning.line(f"{words}: {why}", MOST_REASON) if why else words)
        return SandboxLost()

    def value(self, thing: Any) -> Any | Raised:
        name = name_of(thing)
        if name is None:
            return wire.copy(thing)
        return self._received(self._request("value", name=name))

    def call(self, function: Any, arguments: Sequence[Any], keywords: Mapping[str, Any]
             ) -> Any | Raised:
        name = name_of(function)
        if name is None:  # the check's own function
            return KernelSide().call(function, arguments, keywords)
        return self._received(self._request("call", name=name, **_encoded(arguments, keywords)))

    def ranks(self, function: Any, ranks: int, arguments: Sequence[Any],
              keywords: Mapping[str, Any], seconds: float) -> RanksRun:
        name = name_of(function)
        if name is None:
            return KernelSide().ranks(function, ranks, arguments, keywords, seconds)
        _encoded(*of_rank((arguments, keywords), 0))  # refuses the student's names
        broker = on_ranks.CaseBroker(ranks, arguments, keywords)
        response = self._request("ranks", exchange=broker.exchange, name=name, ranks=ranks,
                                 limit=seconds)
        outcome = response.get("outcome")
        if outcome is None:
            outcome = self._received(response)
        return self._read(outcome, lambda one: on_ranks.read(one, broker), f"{ranks} ranks",
                          seconds)

    def gpus(self, function: Any, cluster: SimulatedCluster, arguments: Sequence[Any],
             keywords: Mapping[str, Any], seconds: float) -> GpusRun:
        name = name_of(function)
        if name is None:
            return KernelSide().gpus(function, cluster, arguments, keywords, seconds)
        outcome = self._received(self._request("gpus", name=name, **asdict(cluster),
                                               **_encoded(arguments, keywords), limit=seconds))
        return self._read(outcome, lambda one: on_gpus.read(one, cluster, PRICING.price),
                          "virtual GPUs", seconds)

    def _read(self, outcome: Any, read: Callable[[Any], Any], where: str, seconds: float) -> Any:
        """Return the outcome of a driver that ran on several processes.

        Args:
            outcome: what the sandbox sent.
            read: parses it.
            where: where it ran, for messages.
            seconds: its time limit.

        Raises SandboxLost where the sandbox sent something else, or where the driver was too slow.
        """
        if isinstance(outcome, Raised):
            outcome = {"state": RAISED, "text": str(outcome)}
        try:
            done = read(outcome)
        except (on_ranks.Forged, on_gpus.BadRecords) as error:
            raise self._broken(str(error)) from error
        except PricingFailed as error:
            self.unmeasured = str(error)
            raise SandboxLost from error
        if done.state == LATE:  # no verdict: another machine might have been fast enough
            self.unmeasured = f"out of time on {where} ({seconds:g} s)"
            raise SandboxLost
        return replace(done, text=cleaning.words(done.text, on_ranks.MOST_TEXT))

    def title(self, function: Any) -> str:
        name = name_of(function)
        if name is None:
            return KernelSide().title(function)
        title = self._request("title", name=name).get("title")
        if not isinstance(title, str):
            raise self._broken()
        return cleaning.line(title, MOST_TITLE)

    def script(self, path: str, trial: Trial = DEFAULT_TRIAL) -> dict[str, Any]:
        response = self._request("script", path=path, **asdict(trial))
        if isinstance(response.get("record"), dict):
            return response["record"]
        if isinstance(response.get("error"), str):
            raise LabError(cleaning.words(response["error"], MOST_TEXT))
        raise self._broken()

    def mask(self, names: Sequence[str]) -> None:
        """Do nothing: the sandbox was started without what the lab masks."""

    def figures(self, words: Sequence[str]) -> dict[str, Any]:
        try:
            return self.measure(words)
        except EstimateFailed as error:
            self.unmeasured = str(error)
            raise SandboxLost from error

    def kind(self, name: str) -> str:
        """Return what kind of value the student's name holds, one of protocol.KINDS."""
        kind = self._request("kind", name=name).get("kind")
        if kind not in protocol.KINDS:
            raise self._broken()
        return kind

    def _received(self, response: dict[str, Any]) -> Any | Raised:
        if isinstance(response.get("value"), str):
            try:
                return wire.loads(response["value"].encode("utf-8", "surrogatepass"))
            except wire.CannotCross as error:
                raise wire.CannotCross(cleaning.words(str(error), MOST_TEXT)) from None
        if isinstance(response.get("cannot"), str):
            raise wire.CannotCross(cleaning.words(response["cannot"], MOST_TEXT))
        error = as_raised(response.get("raised"))
        if error is None:
            raise self._broken()
        return error


def _encoded(arguments: Sequence[Any], keywords: Mapping[str, Any]) -> dict[str, str]:
    """Return the arguments of a student's function as fields of a request.

    Raises labkit.check.wire.CannotCross for a student's name, or a value that is not plain.
    """
    for given in (*arguments, *keywords.values()):
        if name_of(given):
            raise wire.CannotCross(f"{name_of(given)} is the student's: it cannot be an argument, "
                                   "only what is called")
    return {"arguments": wire.dumps(tuple(arguments)).decode(),
            "keywords": wire.dumps(dict(keywords)).decode()}


def as_raised(sent: Any) -> Raised | None:
    """Return an exception sent by a guest; None for anything else."""
    if not isinstance(sent, dict) or not isinstance(sent.get("text"), str):
        return None
    names = sent.get("names")
    if not (isinstance(names, list) and names and len(names) <= MOST_NAMES
            and all(isinstance(name, str) and len(name) <= LONGEST_NAME and name.isidentifier()
                    for name in names)):
        return None
    trace = sent.get("trace")
    return Raised(tuple(names), cleaning.words(sent["text"], MOST_TEXT),
                  cleaning.words(trace, MOST_TEXT) if isinstance(trace, str) else "")
