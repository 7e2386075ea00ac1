"""Plan a training run on a cluster of unlike GPUs: `lab plan`.

profiles.py has what the embedding, one layer, and the head cost on each GPU model; virtual.py
measures it on virtual GPUs, and tables.py reads it from a file. placement.py puts the stages of a
pipeline on nodes, stages.py computes the time and memory of each stage for every number of layers,
partition.py splits the layers, published.py does so as other planners do, and timing.py simulates
the step. search.py is the branch and bound over everything else; bounds.py cuts placements,
variants.py tries other schedules, and unequal.py other numbers of micro-batches per replica.
report.py and cli.py print the plans, with the trainer's flags that run them. models.py has models
by name.

It imports the rest of the layout estimator, which never imports it. Begin with stages.py, then
search.py.
"""
