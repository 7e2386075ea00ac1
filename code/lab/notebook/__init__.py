"""Provide functions that notebooks import, apart from checks, estimates, and logs.

jobs.py submits Slurm jobs and waits for them, plots.py draws losses and pipelines, links.py and
roofline.py measure the cluster's links and a GPU's roofline, saved.py lists what autograd saves for
the backward pass, curves.py and async_pipeline.py train small models in the notebook itself, and
served.py links to pages of the Jupyter server. torchgpipe_cpu.py and deepspeed_cpu.py let those
libraries run without GPUs. docs/writing-labs.md lists the functions that a lab may use.
"""
