"""The `lab` command and what the notebooks import: cluster, data, workspace."""
