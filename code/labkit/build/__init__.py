"""`lab build`: notebooks from solutions/*.py. docs/writing-labs.md is the contract."""

from labkit.build.lab import Cell, Lab, Role
from labkit.build.reading import read

__all__ = ["Cell", "Lab", "Role", "read"]
