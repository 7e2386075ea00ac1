"""Isolation for student code: no access to the machine, the course, or other submissions.

choice.py     choose() returns the back end that works on this machine, or refuses
selftest.py   self_test() tries to break out of it, with the attempts in breakout.py
interface.py  Backend, Limits, and Unavailable; running.py: a sandbox that was started
bubblewrap.py, podman.py   the two back ends
mounts.py, masks.py, inside.py, proc.py, devices.py   what a process inside sees
seccomp.py, cgroups.py, slots.py, watchdog.py         what it may do and use
advice.py     how to fix a sandbox that does not start; cli.py: `lab install-sandbox`

May import grader.course. Begin with interface.py. Nothing is imported here, because every `lab`
command loads this package for cli.py.
"""
