"""Contests, one per file. Each file declares CONTEST, a Contest with the file's name."""
