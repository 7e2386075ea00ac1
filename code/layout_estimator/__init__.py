"""What a layout costs, in time, memory, and dollars, without starting a rank.

`pretrain_gpt.py --estimate` (main.py) and `lab estimate` (cli.py) print it; costs.py and layers.py
show it in notebooks. One process stands for all ranks (solo.py): the trainer runs every distinct
stage once on a virtual GPU (stage_cost.py), the schedule puts the stages together on a clock
(estimate.py, memory.py), and planner.py turns that into iterations, days, and prices.py's dollars.

It may import the trainer, pipeline_schedules, virtualgpu, and labcore; the trainer never imports
it. Begin with planner.py, then estimate.py. Importing planner.py imports torch, so programs that
only parse flags do not.
"""
