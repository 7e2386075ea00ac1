"""The one exception whose text is meant for the user."""


class LabError(Exception):
    """Something the user can mend: names the flag or file, the value, and the nearest right value.

    The `lab` command prints it as `lab: error: TEXT` and exits with 1.
    """
