"""Provide the `lab` command, setup, JupyterLab, and TensorBoard.

cli.py builds one parser from the packages' command modules, which it lists once. start.py sets the
lab up, jupyter.py and hub.py run JupyterLab, and submit/ and mytrainer/ are `lab submit` and
`lab mytrainer`. The package may import every other one except the grader, whose commands it finds
through an entry point, so that the students' image works without it. Only the grader and a few
notebooks import `lab`; the cluster's sbatch runs larger.py. Begin with cli.py.
"""
