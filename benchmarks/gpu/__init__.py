"""`make gpu`: run everything that needs CUDA on the GPUs of this machine.

Each module that defines `run(quick)` is one part and returns a Result (result.py). parts.py finds
the parts, runner.py runs each one in its own process, and page.py writes the results as Markdown.
"""
