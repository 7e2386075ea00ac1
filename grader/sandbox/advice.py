"""Advice for people on what to install or change where no sandbox is available."""

from __future__ import annotations

from pathlib import Path

PROFILE = "docker/seccomp-sandbox.json"
# What bwrap prints when the kernel refuses a system call.
CLOSED = ("namespace", "Operation not permitted", "uid map", "Failed to make / slave")


def _setting(name: str) -> str:
    try:
        return Path("/proc/sys", name.replace(".", "/")).read_text().strip()
    except OSError:
        return ""


def in_container() -> bool:
    return any(Path(path).exists() for path in ("/.dockerenv", "/run/.containerenv"))


def for_start(name: str, noise: str) -> str:
    """Return advice for a back end that does not start.

    Args:
        name: the back end.
        noise: its error output.
    """
    lines = []
    if name == "bubblewrap":
        if _setting("kernel.apparmor_restrict_unprivileged_userns") == "1":
            lines.append(
                "Ubuntu restricts user namespaces with AppArmor. Either grade as root, or allow "
                "them for bwrap (docs/grading-safely.md has the profile), or for all: "
                "sudo sysctl kernel.apparmor_restrict_unprivileged_userns=0")
        if _setting("kernel.unprivileged_userns_clone") == "0":
            lines.append("Debian's kernel is configured to forbid user namespaces: sudo sysctl "
                         "kernel.unprivileged_userns_clone=1")
        if _setting("user.max_user_namespaces") == "0":
            lines.append("This machine allows no user namespaces: sudo sysctl "
                         "user.max_user_namespaces=10000")
        if in_container() and any(words in noise for words in CLOSED):
            lines.append("Docker blocks namespaces inside containers. Start the container with "
                         "the profile that comes with the course: docker run --security-opt "
                         f"seccomp={PROFILE} ... (and, where the host has AppArmor, "
                         "--security-opt apparmor=unconfined)")
        if "Permission denied" in noise or "execvp" in noise:
            lines.append("An ordinary user must be able to read the Python environment: make it "
                         "below a folder that others may enter, or grade as root on the machine "
                         "itself.")
    return "\n".join(lines) or f"See docs/grading-safely.md on {name}."


def for_leaks(name: str) -> str:
    """Return advice for a back end that starts but leaks."""
    other = ("podman: apt install podman" if name == "bubblewrap" else
             "bubblewrap: apt install bubblewrap")
    return (f"Is {name} the distribution's own program, and its newest? The other back-end is "
            f"{other}; LAB_SANDBOX chooses one. See docs/grading-safely.md.")
