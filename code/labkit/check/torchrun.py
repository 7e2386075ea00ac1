"""Parse torchrun's command line, as far as it determines which ranks form a world."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

FLAGS = {"standalone", "module", "no_python", "run_path", "m", "virtual_local_rank"}
VALUED = {"nnodes", "nproc_per_node", "node_rank", "master_addr", "master_port", "rdzv_backend",
          "rdzv_endpoint", "rdzv_id", "rdzv_conf", "max_restarts", "monitor_interval",
          "start_method", "role", "log_dir", "redirects", "r", "tee", "t", "local_addr",
          "local_ranks_filter", "logs_specs", "event_log_handler", "numa_binding",
          "signals_to_handle", "duplicate_stdout_filters", "duplicate_stderr_filters",
          "shutdown_timeout"}
MOST_RANKS = 100_000
SHUTDOWN_TIMEOUT = "30"  # s, torchrun's default
ENVIRONMENT = "PET_"  # torchrun reads --nnodes from PET_NNODES, and so on


class BadCommand(Exception):
    """Raised for a command that torchrun would refuse, or that is ambiguous."""


@dataclass(frozen=True)
class Torchrun:
    """The options of one torchrun command, and the program with its arguments."""

    nnodes: int
    nproc_per_node: int
    node_rank: int
    rendezvous: tuple[str, str]  # address and port, with the rendezvous ID if it has one
    assigns_ranks: bool  # the rendezvous assigns node ranks; otherwise --node_rank does
    program: tuple[str, ...]
    backend: str = "static"  # of the rendezvous
    rdzv_id: str = ""  # of the rendezvous; "" with the backend "static"
    shutdown_timeout: int = int(SHUTDOWN_TIMEOUT)  # s from a signal to SIGKILL

    @property
    def port(self) -> str:
        """Return the port of the rendezvous; "0" is any free one."""
        return self.rendezvous[1].partition("/")[0]


def parse(arguments: Sequence[str], variables: Mapping[str, str] | None = None) -> Torchrun:
    """Parse torchrun's arguments.

    Args:
        arguments: what follows `torchrun`.
        variables: the environment, which can set options, too.

    Raises BadCommand.
    """
    given, program = _split(list(arguments))
    options = {name.removeprefix(ENVIRONMENT).lower(): value
               for name, value in (variables or {}).items() if name.startswith(ENVIRONMENT)} | given
    nnodes = options.get("nnodes", "1").split(":")[0]
    backend = options.get("rdzv_backend", "static")
    address, port = options.get("master_addr", "127.0.0.1"), options.get("master_port", "29500")
    if backend != "static" or options.get("rdzv_endpoint"):  # then --master_addr is not read
        address, colon, port = options.get("rdzv_endpoint", "").rpartition(":")
        if not colon:
            address, port = port, "29400"
    address = address[1:-1] if address.startswith("[") else address  # IPv6
    default_timeout = (variables or {}).get("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", SHUTDOWN_TIMEOUT)
    any_port = backend == "c10d" and nnodes == "1"  # 0: torchrun picks a free port
    rendezvous = address, str(_number("master_port", port, 0 if any_port else 1, most=65535))
    rdzv_id = "" if backend == "static" else options.get("rdzv_id", "none")
    if rdzv_id:
        rendezvous = rendezvous[0], f"{rendezvous[1]}/{rdzv_id}"
    if "standalone" in options:
        rendezvous = "localhost", "0"
    count = 1 if "standalone" in options else _number("nnodes", nnodes)
    each = _number("nproc_per_node", options.get("nproc_per_node", "1"))
    if count > 1 and not options.get("rdzv_id", "none"):
        raise BadCommand("torchrun --rdzv_id '': every node would generate its own ID; is a "
                         "variable empty or misspelled?")
    if count * each > MOST_RANKS:
        raise BadCommand(f"torchrun --nnodes {count} --nproc_per_node {each}: at most "
                         f"{MOST_RANKS} ranks")
    return Torchrun(
        nnodes=count, nproc_per_node=each,
        node_rank=_number("node_rank", options.get("node_rank", "0"), least=0),
        rendezvous=rendezvous, assigns_ranks=backend != "static", program=tuple(program),
        backend=backend, rdzv_id=rdzv_id, shutdown_timeout=_number(
            "shutdown_timeout", options.get("shutdown_timeout", default_timeout), least=0))


def _split(words: list[str]) -> tuple[dict[str, str], list[str]]:
    options: dict[str, str] = {}
    while words and words[0].startswith("-"):
        word = words.pop(0)
        name, equals, value = word.lstrip("-").partition("=")
        name = name.replace("-", "_")
        if name in FLAGS:
            options[name] = ""
            continue
        if name not in VALUED:
            raise BadCommand(f"torchrun has no option {word}")
        if not equals:
            if not words:
                raise BadCommand(f"torchrun {word} needs a value")
            value = words.pop(0)
        options[name] = value
    if not words:
        raise BadCommand("torchrun is given no program to run")
    return options, words


def _number(name: str, text: str, least: int = 1, most: int = MOST_RANKS) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 10 and least <= int(text) <= most):
        unset = not text or text.startswith(("-", "$"))
        hint = "; is a variable empty or misspelled?" if unset else ""
        raise BadCommand(f"torchrun --{name} {text[:50]!r}: a number of at least {least}, "
                         f"at most {most}{hint}")
    return int(text)
