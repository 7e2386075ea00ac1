"""Everything that a run reports."""
