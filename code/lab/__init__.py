"""The `lab` command (cli.py), set-up (start.py), JupyterLab (jupyter.py, hub.py), and TensorBoard.

cli.py makes one parser from the packages' command modules, named there once. notebook/ has what
notebooks import from this package, and submit/ is `lab submit`. It may import every package but the
grader, whose commands it finds through an entry point, so that the students' image works without
it. Nothing imports `lab` except the grader and the notebooks. Begin with cli.py.
"""
