"""Answers that end a program, or look like it, in a check with partial credit."""

from __future__ import annotations

from tests.attacks.attack import attack

EXITS = r'''
def halve(x):
    raise SystemExit(0)'''

DIES = r'''
import os
def halve(x):
    os._exit(0)'''

INTERRUPTS = r'''
def halve(x):
    class Ends(KeyboardInterrupt, GeneratorExit):
        pass
    raise Ends("2 of 2 points")'''

ATTACKS = [
    attack("u1", "part-exits", "A part that raises SystemExit", parted=EXITS),
    attack("u2", "part-dies", "A sandbox that ends in every part", parted=DIES, score=None,
           may_end=True, reason="part 'odd numbers'"),
    attack("u3", "part-interrupts", "A part that raises KeyboardInterrupt", parted=INTERRUPTS),
]
