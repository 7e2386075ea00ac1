"""Price the records of virtual GPUs in a process that holds no secret, and that is thrown away.

The grader's process holds expected values and hidden cases, so it never looks into a record that a
sandbox sent. It sends the record to `python -m labkit.check.pricing`, which has imported torch and
forks a child for each request. The child can open no file and no socket, has limits on memory and
processor time, and returns the figures as JSON, which `priced` validates. If a record ends the
child, the check of that record fails, and nothing else does.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import math
import os
import resource
import select
import signal
import struct
import subprocess
import sys
import time
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any, BinaryIO, NoReturn

from labkit.check.on_gpus import BadRecords, priced_here, unpack
from labkit.check.sides import SimulatedCluster
from virtualgpu.replay.bounds import PRECISION, Priced

if TYPE_CHECKING:
    from collections.abc import Sequence

LIMITS = {resource.RLIMIT_NOFILE: 0,  # no files and no sockets
          resource.RLIMIT_CORE: 0, resource.RLIMIT_DATA: 2 << 30,
          resource.RLIMIT_CPU: 60}  # seconds
DEADLINE = 300.0  # seconds until a request ends, however busy the machine is
MOST_ANSWER = 4_000_000  # bytes of figures
MOST_NUMBER = 1e30
MOST_NAMES = 20_000  # streams or operations of one rank
LENGTH, READY = struct.Struct(">Q"), b"ready"
KEPT = ("PATH", "PYTHONPATH", "LANG", "LC_ALL")  # variables; others may be secrets
IMPORTED = ("virtualgpu.core.kernels", "virtualgpu.replay.pricing", "virtualgpu.replay.reading",
            "virtualgpu.launch.cluster")
FSDP, NEEDS_FSDP = "torch.distributed.fsdp", 77  # a module, and a child's exit code


class PricingFailed(Exception):
    """Raised when the process does not start, for which no record is to blame."""


class PricingProcess:
    """The caller's side. Starts the process with the first request, and again after a failure."""

    def __init__(self) -> None:
        self.process: subprocess.Popen[bytes] | None = None
        self.owner = 0

    def price(self, records: Sequence[Any], cluster: SimulatedCluster) -> list[Priced]:
        """Return each rank's figures.

        Args:
            records: packed records, as a sandbox sent them.
            cluster: the virtual GPUs.

        Raises BadRecords if the records are refused, or if pricing them ends the process, and
        PricingFailed if it does not start.
        """
        request = json.dumps({"records": records, "cluster": asdict(cluster)}).encode()
        try:
            answer = self._ask(request)
        except BaseException:  # an alarm, too: nobody knows how much of the answer is unread
            self.close()
            raise
        if "refused" in answer:
            raise BadRecords(str(answer["refused"])[:2000])
        return priced(answer.get("priced"), cluster.ranks())

    def _ask(self, request: bytes) -> dict[str, Any]:
        if self.process is None or self.owner != os.getpid() or self.process.poll() is not None:
            self._start()
        try:
            _send(self.process.stdin, request)
            content = _receive(self.process.stdout, MOST_ANSWER)
            answer = json.loads(content)
        except (OSError, EOFError, ValueError, RecursionError) as error:
            self.close()
            raise BadRecords("the process that prices this record ended") from error
        if not isinstance(answer, dict):
            raise BadRecords("pricing this record gave no figures")
        return answer

    def _start(self) -> None:
        kept = {name: os.environ[name] for name in KEPT if name in os.environ}
        self.owner = os.getpid()
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-s", "-m", "labkit.check.pricing"], stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd="/",
            env=kept | {"OMP_NUM_THREADS": "1"})
        try:
            if _receive(self.process.stdout, len(READY)) == READY:
                return
        except (OSError, EOFError, ValueError):
            pass
        self.close()
        raise PricingFailed("the process that prices records does not start")

    def close(self) -> None:
        """End the process."""
        process, self.process = self.process, None
        if process is not None and self.owner == os.getpid():
            process.kill()
            process.wait()
            for stream in (process.stdin, process.stdout):
                with contextlib.suppress(OSError):  # what could not be sent
                    stream.close()


def priced(found: Any, ranks: Sequence[int]) -> list[Priced]:
    """Return the figures of these ranks that another process sent.

    Raises BadRecords for anything else.
    """
    if not isinstance(found, list) or len(found) != len(ranks):
        raise BadRecords("pricing these records gave no figures")
    result = [_figures(one) for one in found]
    if [one.rank for one in result] != list(ranks):
        raise BadRecords("pricing these records gave the figures of other ranks")
    return result


def _figures(one: Any) -> Priced:
    names = {field.name: field.type for field in fields(Priced)}
    if not isinstance(one, dict) or one.keys() != names.keys():
        raise BadRecords("pricing this record gave other figures than expected")
    for name, kind in names.items():
        value, whole = one[name], "int" in kind
        if kind.startswith("dict"):
            valid = isinstance(value, dict) and len(value) <= MOST_NAMES and all(
                _is_figure(figure, whole) for figure in value.values())
        else:
            valid = _is_figure(value, whole)
        if not valid:
            raise BadRecords(f"pricing this record gave no valid {name}")
    if not all(count.isdecimal() and len(count) < 10 for count in one["communicated_by_ranks"]):
        raise BadRecords("pricing this record gave groups of no number of ranks")
    if not one["downloaded"].keys() <= {"pinned", "pageable"}:
        raise BadRecords("pricing this record gave copies to unknown memory")
    if not one["flops_by_dtype"].keys() <= PRECISION.keys():
        raise BadRecords("pricing this record gave FLOPs in unknown dtypes")
    return Priced(**one)


def _is_figure(value: Any, whole: bool) -> bool:
    kinds = (int,) if whole else (int, float)
    return type(value) in kinds and 0 <= value < MOST_NUMBER and math.isfinite(value)


def _send(stream: BinaryIO, content: bytes) -> None:
    stream.write(LENGTH.pack(len(content)) + content)
    stream.flush()


def _receive(stream: BinaryIO, most: float) -> bytes:
    """Return the next message. Raises EOFError at the end, and ValueError if it is too long."""
    head = stream.read(LENGTH.size)
    if len(head) < LENGTH.size:
        raise EOFError
    (size,) = LENGTH.unpack(head)
    if size > most:
        raise ValueError(f"a message of {size:,} bytes")
    content = stream.read(size)
    if len(content) < size:
        raise EOFError
    return content


def main() -> None:
    """Answer requests from standard input until its end."""
    _import(*IMPORTED)
    questions, answers = sys.stdin.buffer, sys.stdout.buffer
    _send(answers, READY)
    while True:
        try:
            request = _receive(questions, math.inf)
        except EOFError:
            return
        _send(answers, _in_a_child(request))


def _import(*names: str) -> None:
    """Import what children need, because they can open no file."""
    for name in names:
        importlib.import_module(name)
    gc.disable()  # a collection would touch all imported objects, and a child would copy them
    gc.freeze()


def _in_a_child(request: bytes) -> bytes:
    """Return the answer of a child to a request, or the reason why there is none."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.close(reading)
        _answer(request, writing)
    os.close(writing)
    content, deadline = bytearray(), time.monotonic() + DEADLINE
    while len(content) <= MOST_ANSWER and select.select(
            [reading], [], [], max(deadline - time.monotonic(), 0))[0]:
        part = os.read(reading, 65536)
        if not part:
            break
        content += part
    os.close(reading)
    with contextlib.suppress(ProcessLookupError):
        os.kill(child, signal.SIGKILL)  # it has answered, or is too late
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code == NEEDS_FSDP and FSDP not in sys.modules:  # its import takes a second
        _import(FSDP)
        return _in_a_child(request)
    late = time.monotonic() >= deadline or code == -signal.SIGXCPU
    if content.endswith(b"\n") and len(content) <= MOST_ANSWER:
        return bytes(content)
    why = "takes too long" if late else "takes too much memory or ends the process"
    return json.dumps({"refused": f"pricing this record {why}"}).encode()


def _answer(request: bytes, writing: int) -> NoReturn:
    """Price a request's records, write the answer, and end this process."""
    try:
        os.close(0)
        os.close(1)
        for kind, most in LIMITS.items():
            _, hard = resource.getrlimit(kind)
            least = most if hard == resource.RLIM_INFINITY else min(most, hard)
            # The soft limit on time has a signal of its own, which tells why the child ended.
            resource.setrlimit(kind, (least, hard if kind == resource.RLIMIT_CPU else least))
        asked = json.loads(request)
        cluster = SimulatedCluster(**asked["cluster"])
        if FSDP not in sys.modules and _has_fsdp(asked["records"]):
            os._exit(NEEDS_FSDP)
        try:
            found = priced_here(asked["records"], cluster)
            answer: dict[str, Any] = {"priced": list(map(asdict, found))}
        except BadRecords as error:
            answer = {"refused": str(error)[:2000]}
        view = memoryview(json.dumps(answer).encode() + b"\n")
        while view:
            view = view[os.write(writing, view):]
        os._exit(0)
    finally:
        os._exit(1)


def _has_fsdp(records: Sequence[str]) -> bool:
    """Return whether a record may name an operation that FSDP defines."""
    with contextlib.suppress(BadRecords):  # which are refused later
        return any('"fsdp.' in unpack(one) for one in records)
    return False


if __name__ == "__main__":
    main()
