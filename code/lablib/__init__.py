"""Provide what the labs' notebooks import, apart from checks, estimates, and logs.

One module per topic: jobs.py submits Slurm jobs and waits for them, plots.py draws losses and
pipelines, links.py and roofline.py measure the cluster's links and a GPU's roofline, saved.py lists
what autograd saves for the backward pass, eight_bits.py trains small models in the notebook itself,
and versions.py has those that train without a pipeline flush. half.py draws gradients and losses in
16 bits, memory_movie.py draws a step's memory with sliders, blocks.py builds transformers that
count their own FLOPs, published.py has figures of large training runs, and personal.py draws what
differs between students. torchgpipe_cpu.py, deepspeed_cpu.py, and transformer_engine.py let
libraries run without GPUs. The package may import every package but `lab` and the grader.
Notebooks, their jobs' programs, and lab/tensorboard import it. Begin with jobs.py.
"""
