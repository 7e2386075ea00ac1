"""`lab build`: notebooks from solutions/*.py. docs/writing-labs.md is the contract."""

from lab.build.lab import Cell, Lab, Role
from lab.build.reading import read

__all__ = ["Cell", "Lab", "Role", "read"]
