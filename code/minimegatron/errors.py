"""Errors whose text is meant for the user."""

from __future__ import annotations


class UserError(Exception):
    """An error that the user can fix; programs print `error: TEXT` to stderr and exit with 1."""


class SharedError(UserError):
    """An error that every rank raises at the same point; only rank 0 prints it."""
