"""minGPT's trainer learns to repeat the previous token; its model and trainer are Karpathy's."""

import torch
from mingpt.model import GPT
from mingpt.trainer import Trainer
from mingpt.utils import set_seed


class Repeats(torch.utils.data.Dataset):
    """Sequences of one digit."""

    def __len__(self):
        return 640

    def __getitem__(self, index):
        x = torch.full((12,), index % 10)
        return x[:-1], x[1:]


set_seed(3407)
config = GPT.get_default_config()
config.model_type, config.vocab_size, config.block_size = "gpt-nano", 10, 11
training = Trainer.get_default_config()
training.max_iters, training.num_workers, training.batch_size = 20, 0, 8
trainer = Trainer(training, GPT(config), Repeats())


def report(self):
    print(f"{self.device} iter {self.iter_num}: loss {self.loss.item():.4f}, "
          f"{1e3 * self.iter_dt:.3f} ms")


trainer.set_callback("on_batch_end", report)
trainer.run()
