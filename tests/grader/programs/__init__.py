"""Programs of the tests that start as forks: `tests/warm.py` names them."""
