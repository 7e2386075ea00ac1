"""A Megatron-style GPT trainer, written to be read: one idea per file.

pretrain_gpt.py starts main.py, which parses the flags (arguments/), and training.py runs the loop:
initialize.py builds the grid and the context, model.py and tensor_parallel.py the model,
pipeline.py and p2p.py run a schedule, data_parallel.py and optimizer.py finish the step, and
checkpoint.py saves. device.py is the only file that knows whether the device is a CPU, a GPU, or a
virtual GPU.

It may import pipeline_schedules, virtualgpu, and torch. docs/trainer.md walks through one step in
the order in which it runs; begin there, or with training.py.
"""
