"""The one exception whose text is meant for the user."""


class UserError(Exception):
    """Something the user can mend; programs print `error: TEXT` on stderr and exit with 1."""
