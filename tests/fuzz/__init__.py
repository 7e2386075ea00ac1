"""Fuzzing of every reader of untrusted bytes."""
