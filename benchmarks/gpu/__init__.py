"""Everything that needs CUDA, on whatever GPUs this machine has: `make gpu`.

Each module here that defines `run(quick)` is one part: parts.py finds them, runner.py runs each in
a process of its own, and page.py writes the results as Markdown. result.py is what a part returns.
"""
