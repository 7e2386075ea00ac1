"""The filter for system calls, for bubblewrap, for podman, and the profile for Docker."""

from __future__ import annotations

import fcntl
import json
import struct

import pytest

import seccomp_profile  # tools/ is on the path
from grader.sandbox import advice, seccomp
from labcore.errors import LabError
from labcore.workspace import CHECKOUT
from warmranks import filters

ALLOWED, REFUSED, MISSING = filters.ALLOW, filters.ERRNO | 1, filters.ERRNO | 38


def verdict(machine: str, number: int, *arguments: int, audit: int | None = None) -> int:
    """Interpret the filter's program: return the kernel's verdict on a call."""
    audit = seccomp.MACHINES[machine][0] if audit is None else audit
    data = struct.pack("=iIQ6Q", number, audit, 0, *(*arguments, 0, 0, 0, 0, 0, 0)[:6])
    lines = list(struct.iter_unpack("=HBBI", seccomp.program(machine)))
    at, held = 0, 0
    while True:
        code, yes, no, value = lines[at]
        at += 1
        if code == filters.LOAD:
            held = struct.unpack_from("=I", data, value)[0]
        elif code == filters.RETURN:
            return value
        else:
            true = {filters.EQUAL: held == value, filters.AT_LEAST: held >= value,
                    filters.ANY_BIT: bool(held & value)}[code]
            at += yes if true else no


MACHINES = pytest.mark.parametrize(("machine", "column"), [
    (name, column) for name, (_, column) in seccomp.MACHINES.items()])


@MACHINES
def test_refuses_what_it_names_and_nothing_else(machine, column):
    special = [numbers[column] for numbers in (seccomp.CLONE3, seccomp.CLONE, seccomp.IOCTL,
                                               seccomp.SOCKET, seccomp.FCNTL, seccomp.MADVISE)]
    verdicts = {number: verdict(machine, number) for number in range(600) if number not in special}
    for calls, error in ((seccomp.DENIED, REFUSED), (seccomp.UNSUPPORTED, MISSING)):
        named = {numbers[column] for numbers in calls.values()} - {None}
        assert {number for number, found in verdicts.items() if found == error} == named
    assert set(verdicts.values()) == {ALLOWED, REFUSED, MISSING}


@MACHINES
def test_looks_at_the_arguments(machine, column):
    def of(numbers, *arguments):
        return verdict(machine, numbers[column], *arguments)

    assert of(seccomp.CLONE3) == MISSING
    assert of(seccomp.CLONE, 0x003D0F00) == ALLOWED  # a thread
    for flag in (0x10000000, 0x20000000, 0x40000000, 0x00020000, 0x02000000):
        assert of(seccomp.CLONE, 17 | flag) == REFUSED
    assert of(seccomp.IOCTL, 0, 0x5413) == ALLOWED  # the size of a window
    assert [of(seccomp.IOCTL, 0, request) for request in seccomp.TERMINAL_INPUT] == [REFUSED] * 2
    for call, before, values in ((seccomp.SOCKET, (), seccomp.FAMILIES),
                                 (seccomp.FCNTL, (3,), seccomp.DESCRIPTOR_COMMANDS),
                                 (seccomp.MADVISE, (0, 4096), seccomp.ADVICE)):
        allowed = {value for value in range(1100) if of(call, *before, value) == ALLOWED}
        assert allowed == set(values)


def test_locks_leases_and_hints_on_files_are_refused():
    """Each is an attribute of an inode, and two sandboxes that see one file see the same inode."""
    commands = {getattr(fcntl, name) for name in (
        "F_GETLK", "F_SETLK", "F_SETLKW", "F_OFD_GETLK", "F_OFD_SETLK", "F_OFD_SETLKW",
        "F_SETLEASE", "F_GETLEASE", "F_NOTIFY") if hasattr(fcntl, name)}
    assert len(commands) >= 6
    assert not (commands | {36, 37, 38} | set(range(1035, 1041))) & set(seccomp.DESCRIPTOR_COMMANDS)


def test_another_machines_calls_are_refused():
    """32-bit programs number their calls differently."""
    assert verdict("x86_64", 1, audit=0x40000003) == REFUSED
    assert verdict("x86_64", 0x40000000 + 1) == MISSING


def test_a_machine_without_numbers():
    with pytest.raises(LabError, match=r"no system call numbers for s390x.*podman"):
        seccomp.program("s390x")


def test_podmans_profile_loses_what_ours_refuses():
    default = {"defaultAction": "SCMP_ACT_ERRNO", "syscalls": [
        {"names": ["read", "keyctl", "mount", "clone", "socket", "flock", "fcntl", "madvise"],
         "action": "SCMP_ACT_ALLOW"},
        {"names": ["socket"], "action": "SCMP_ACT_ALLOW", "args": []}]}
    rules = seccomp.oci(default)["syscalls"]
    names = [name for rule in rules for name in rule["names"] if not rule.get("args")
             and rule["action"] == "SCMP_ACT_ALLOW"]
    assert names == ["read"]
    locks = [rule["args"][0]["value"] for rule in rules if rule["names"] == ["fcntl"]]
    assert locks == list(seccomp.DESCRIPTOR_COMMANDS)


def test_dockers_profile_is_the_default_and_one_rule():
    shipped = json.loads((CHECKOUT / advice.PROFILE).read_text())
    *default, ours = shipped["syscalls"]
    assert sorted(ours["names"]) == sorted(seccomp_profile.NEEDED)
    assert seccomp_profile.profile(shipped | {"syscalls": default}) == shipped
    assert shipped["defaultAction"] == "SCMP_ACT_ERRNO"
    plain = {name for rule in default for name in rule["names"] if rule["action"].endswith("ALLOW")
             and not rule.get("includes") and not rule.get("excludes") and not rule.get("args")}
    assert {"read", "execve"} <= plain and not plain & {*seccomp_profile.NEEDED, "bpf"}


def test_dockers_profile_is_made_of_a_default_only():
    with pytest.raises(ValueError, match="refuses what it does not name"):
        seccomp_profile.profile({"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [{}]})
