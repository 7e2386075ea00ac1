"""Atomic saves and verified loads."""
