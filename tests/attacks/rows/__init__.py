"""The attacks. A number is a row of docs/attacks.md's first table; what goes beyond it has a
letter."""

from __future__ import annotations

from tests.attacks.attack import Attack


def all_attacks() -> list[Attack]:
    from tests.attacks.rows import (
        borrowed,
        browser,
        channel,
        endless,
        ends,
        folder,
        neighbors,
        notebook,
        other_jobs,
        partial,
        ranked,
        reading,
        scripts,
        slow,
        store,
        system,
        values,
        verdict,
        written,
    )

    modules = (reading, verdict, store, endless, notebook, folder, browser, channel, values, system,
               scripts, partial, ranked, slow, written, borrowed, neighbors, other_jobs, ends)
    return [one for module in modules for one in module.ATTACKS]
