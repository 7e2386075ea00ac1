"""The rules that netavark leaves in the firewall are gone after the tests."""

import subprocess
import sys

import pytest

from labcore.workspace import CHECKOUT
from tests.needs import needs

pytestmark = [pytest.mark.image, needs("root")]

# What netavark 1.4 leaves behind when the last network is removed.
LEFT = """\
*filter
:NETAVARK_FORWARD - [0:0]
-A FORWARD -m comment --comment "netavark firewall plugin rules" -j NETAVARK_FORWARD
COMMIT
*nat
:NETAVARK-HOSTPORT-DNAT - [0:0]
:NETAVARK-HOSTPORT-MASQ - [0:0]
:NETAVARK-HOSTPORT-SETMARK - [0:0]
-A PREROUTING -m addrtype --dst-type LOCAL -j NETAVARK-HOSTPORT-DNAT
-A POSTROUTING -j NETAVARK-HOSTPORT-MASQ
-A NETAVARK-HOSTPORT-MASQ -m comment --comment "netavark portfw masq mark" -m mark \
--mark 0x2000/0x2000 -j MASQUERADE
-A NETAVARK-HOSTPORT-SETMARK -j MARK --set-xmark 0x2000/0x2000
COMMIT
"""
NETWORK = "*nat\n:NETAVARK-0123456789ABC - [0:0]\nCOMMIT\n"  # one that is still there
# Runs in a network namespace of its own.
PROGRAM = """
import subprocess, sys
from tests.image import firewall

def add(rules):
    subprocess.run(["iptables-restore", "--noflush"], input=rules, text=True, check=True)

before, meanwhile = sys.argv[1:]
add(before)
with firewall.unchanged():
    add(meanwhile)
print(len(firewall.rules()))
"""


def run(before: str, meanwhile: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["unshare", "--net", sys.executable, "-c", PROGRAM, before, meanwhile],
                          cwd=CHECKOUT, text=True, capture_output=True, timeout=120)


@pytest.mark.parametrize(("before", "left"), [("", 0), (LEFT, 9)])
def test_rules_of_networks_that_are_gone_stay_only_where_they_were_before(podman, before, left):
    done = run(before, "" if before else LEFT)
    assert (done.stdout, done.returncode) == (f"{left}\n", 0), done.stderr


def test_a_network_that_was_not_removed_is_found(podman):
    done = run("", LEFT + NETWORK)
    assert done.returncode == 1 and "AssertionError" in done.stderr
