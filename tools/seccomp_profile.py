"""Docker's default profile for system calls, and what bubblewrap and our cluster need besides.

python tools/seccomp_profile.py DEFAULT.json > docker/seccomp-sandbox.json

DEFAULT.json is profiles/seccomp/default.json of Docker's sources (github.com/moby/moby, Apache-2.0;
Debian has it in golang-github-docker-docker-dev). For `docker run --security-opt seccomp=...`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

# The default allows these to root with CAP_SYS_ADMIN only. In a user namespace, which is what an
# ordinary user gets by them, they reach nothing but what that namespace made itself.
NEEDED = {
    "clone": "new namespaces",
    "mount": "the sandbox's view of the file system",
    "pivot_root": "no way back to the container's root",
    "setns": "into the namespaces of the cluster's nodes, which the cluster made",
    "sethostname": "the sandbox's own name",
    "umount2": "no way back to the container's root",
    "unshare": "a second user namespace, without rights over the first",
}


def profile(default: dict) -> dict:
    """The default and one rule more. Raises ValueError for what is no such profile."""
    if default.get("defaultAction") != "SCMP_ACT_ERRNO" or not default.get("syscalls"):
        raise ValueError("not a profile that refuses what it does not name")
    rule = {"names": sorted(NEEDED), "action": "SCMP_ACT_ALLOW",
            "comment": "for bubblewrap, in which students' code is graded, and the cluster's nodes"}
    return default | {"syscalls": [*default["syscalls"], rule]}


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    json.dump(profile(json.loads(Path(sys.argv[1]).read_text())), sys.stdout, indent="\t")
    print()
