"""A Megatron-style GPT trainer, written to be read: one idea per file, one room per subject.

pretrain_gpt.py starts main.py, which parses the flags (arguments/), and training.py runs the loop.
initialize.py builds the context: configuration, process grid, and device. The rooms are model/,
parallel/ (grid, DDP, pipeline), optim/, data/, checkpoint/, logging/, and device/, which alone
knows a CPU from a GPU from a virtual GPU. formulas.py computes parameters, FLOPs, and bytes.

It may import pipeline_schedules, virtualgpu, and torch. docs/trainer.md walks through one step in
the order in which it runs; begin there, or with training.py.
"""
