"""Assemble filters of system calls for the kernel (seccomp), in the classic BPF of Linux."""

from __future__ import annotations

import platform
import struct

EPERM, ENOSYS = 1, 38
LOAD, EQUAL, AT_LEAST, ANY_BIT, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
# Offsets in struct seccomp_data.
NUMBER, MACHINE, ARGUMENT_0, ARGUMENT_1, ARGUMENT_2 = 0, 4, 16, 24, 32
ALLOW, ERRNO = 0x7FFF0000, 0x00050000
INSTRUCTION = struct.Struct("=HBBI")
X32 = 0x40000000  # the bit of x86_64's other ABI, whose calls have the same meaning
# Name: audit number, column of a table of system calls (x86_64, and aarch64 and riscv64).
MACHINES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1), "riscv64": (0xC00000F3, 1)}
Instruction = tuple[int, int, int, int]


def prologue(machine: str | None = None) -> list[Instruction]:
    """Return the lines that refuse other machines' calls, and load the call's number.

    Args:
        machine: one of MACHINES; this machine by default.
    """
    machine = machine or platform.machine()
    lines = [(LOAD, 0, 0, MACHINE), (EQUAL, 1, 0, MACHINES[machine][0]), refuse(EPERM),
             (LOAD, 0, 0, NUMBER)]
    return [*lines, (AT_LEAST, 0, 1, X32), refuse(ENOSYS)] if machine == "x86_64" else lines


def only(number: int, argument: int, values: tuple[int, ...]) -> list[Instruction]:
    """Return the lines that end a call: allowed with one of these values, refused with any other.

    Args:
        number: the system call's number.
        argument: offset of the compared argument.
        values: the allowed values.
    """
    count = len(values)
    return [(EQUAL, 0, count + 3, number), (LOAD, 0, 0, argument),
            *((EQUAL, count - index, 0, value) for index, value in enumerate(values)),
            refuse(EPERM), allow()]


def never(number: int, argument: int, values: tuple[int, ...]) -> list[Instruction]:
    """Return the lines that end a call: refused with one of these values, allowed with any other.

    Args: those of `only`.
    """
    *compared, refused, allowed = only(number, argument, values)
    return [*compared, allowed, refused]


def refuse(error: int) -> Instruction:
    """Return the line that ends a call with an error; 0 lets it succeed without effect."""
    return RETURN, 0, 0, ERRNO | error


def allow() -> Instruction:
    return RETURN, 0, 0, ALLOW


def assembled(lines: list[Instruction]) -> bytes:
    """Return a filter as struct sock_filter[]."""
    return b"".join(INSTRUCTION.pack(*line) for line in lines)
