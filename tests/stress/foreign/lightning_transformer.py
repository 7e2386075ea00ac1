"""Lightning's Trainer runs its own demonstration, a Transformer on a text in ./data."""

import sys

from lightning.pytorch import Trainer
from lightning.pytorch.demos import LightningTransformer

trainer = Trainer(accelerator="gpu", devices=-1, strategy=sys.argv[1], precision="bf16-mixed",
                  max_steps=4, logger=False, enable_checkpointing=False, enable_progress_bar=False)
trainer.fit(LightningTransformer(vocab_size=100))
print(f"rank {trainer.global_rank} of {trainer.world_size}: {trainer.global_step} steps")
