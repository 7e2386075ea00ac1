"""Inference as people write it: `python inference.py MODE`."""

import sys
import time

import torch
import torch.nn.functional as F
from torch import nn

VOCABULARY, WIDTH, HEADS, LAYERS, LONGEST = 4096, 256, 4, 2, 64


class Attention(nn.Module):
    """Causal attention, with a preallocated KV cache once `allocate` was called."""

    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.cache = None

    def allocate(self, batch):
        self.cache = torch.zeros(2, batch, HEADS, LONGEST, WIDTH // HEADS, device="cuda",
                                 dtype=self.out.weight.dtype)

    def forward(self, x, positions):
        b, s, _ = x.shape
        q, k, v = (part.view(b, s, HEADS, -1).transpose(1, 2)
                   for part in self.qkv(x).split(WIDTH, -1))
        if self.cache is None:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            self.cache[0][:, :, positions] = k
            self.cache[1][:, :, positions] = v
            mask = torch.arange(LONGEST, device="cuda")[None] <= positions[:, None]
            y = F.scaled_dot_product_attention(q, *self.cache, attn_mask=mask)
        return self.out(y.transpose(1, 2).reshape(b, s, WIDTH))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(WIDTH), Attention()
        self.mlp = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(),
                                 nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x, positions):
        x = x + self.attention(self.norm(x), positions)
        return x + self.mlp(x)


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.positions = nn.Embedding(LONGEST, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, ids, positions):
        x = self.tokens(ids) + self.positions(positions)
        for block in self.blocks:
            x = block(x, positions)
        return self.head(x)


def static(batch=2, prompt=8, new=10):
    """Decode greedily with a preallocated cache, timed by events and between synchronizations."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    model = Decoder().to("cuda", torch.bfloat16).eval()
    for block in model.blocks:
        block.attention.allocate(batch)
    ids = torch.zeros(batch, prompt, dtype=torch.int64, device="cuda")
    with torch.inference_mode():
        for _ in range(3):
            torch.cuda.synchronize()
            start = time.perf_counter()
            begin.record()
            token = model(ids, torch.arange(prompt, device="cuda"))[:, -1].argmax(-1, keepdim=True)
            for position in range(prompt, prompt + new - 1):
                at = torch.tensor([position], device="cuda")
                token = model(token, at)[:, -1].argmax(-1, keepdim=True)
            end.record()
            torch.cuda.synchronize()
            seconds = time.perf_counter() - start
    events = begin.elapsed_time(end) / 1e3
    print(f"{batch * new / seconds:.1f} tokens/s, {batch * new / events:.1f} by events")


@torch.no_grad()
def uncached(new=12):
    """Sample as nanoGPT does, without a cache, and print the words."""
    words = {number: f"word{number}" for number in range(VOCABULARY)}
    model = Decoder().cuda().eval()
    ids = torch.zeros(1, 3, dtype=torch.int64, device="cuda")
    for _ in range(new):
        logits = model(ids, torch.arange(ids.shape[1], device="cuda"))[:, -1] / 0.8
        best, _ = torch.topk(logits, 50)
        logits[logits < best[:, [-1]]] = -float("inf")
        token = torch.multinomial(F.softmax(logits, -1), 1)
        ids = torch.cat((ids, token), 1)
    print(len([words[token] for token in ids[0].tolist()]), "words")


@torch.no_grad()
def until_end(most=20):
    """Decode until the end-of-text token appears, which is read on the host."""
    model = Decoder().cuda().eval()
    ids, texts = torch.zeros(1, 4, dtype=torch.int64, device="cuda"), []
    while len(texts) < most:
        logits = model(ids, torch.arange(ids.shape[1], device="cuda"))
        token = logits[0, -1].argmax().item()
        if token == 2 or token in (5, 7):
            break
        texts.append(f"<{token}>")
        ids = torch.cat((ids, torch.tensor([[token]], device="cuda")), 1)
    print(len(texts), texts[0])


def transformers(**options):
    """Hugging Face's generate, which stops at its end-of-text token, and its tokenizer."""
    from tokenizers import Tokenizer, models
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    words = {f"word{number}": number for number in range(VOCABULARY)}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel(words, unk_token="word0")))
    config = LlamaConfig(hidden_size=WIDTH, intermediate_size=512, num_hidden_layers=LAYERS,
                         num_attention_heads=HEADS, num_key_value_heads=2, vocab_size=VOCABULARY)
    model = LlamaForCausalLM(config).to("cuda", torch.bfloat16).eval()
    ids = torch.zeros(2, 8, dtype=torch.int64, device="cuda")
    out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=10, top_k=20,
                         do_sample=True, top_p=0.9, eos_token_id=2, pad_token_id=2, **options)
    print(tuple(out.shape), tokenizer.decode(out[0]), tokenizer.batch_decode(out))


@torch.no_grad()
def classifier(batch=8):
    """Count how often a classifier is right, which its report must not claim to know."""
    model, right = nn.Sequential(nn.Linear(1024, 1024), nn.Linear(1024, 10)).cuda(), 0
    for _ in range(2):
        labels = torch.zeros(batch, dtype=torch.int64, device="cuda")
        chosen = model(torch.randn(batch, 1024, device="cuda")).argmax(-1)
        right += (chosen == labels).sum().item() + (chosen == 3).sum().item()
    print("right", right)


@torch.no_grad()
def mistake():
    """Call a model without an argument that it needs."""
    nn.Sequential(Decoder()).cuda()(torch.zeros(1, 4, dtype=torch.int64, device="cuda"))


@torch.inference_mode()
def encoder(batch=8, length=16):
    """Run forward passes that generate nothing."""
    model = Decoder().cuda().eval()
    for _ in range(4):
        model(torch.zeros(batch, length, dtype=torch.int64, device="cuda"),
              torch.arange(length, device="cuda"))
    torch.cuda.synchronize()


def training(evaluates=True):
    """A training loop that evaluates without gradients is no inference."""
    model = Decoder().cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ids, positions = torch.zeros(1, 8, dtype=torch.int64, device="cuda"), torch.arange(8).cuda()
    for _ in range(3):
        model(ids, positions).square().mean().backward()
        optimizer.step()
        with torch.no_grad():
            if evaluates:
                model(ids, positions)


def rollouts(most=12):
    """Generate texts in every training step, as reinforcement learning does."""
    from transformers import LlamaConfig, LlamaForCausalLM

    model = LlamaForCausalLM(LlamaConfig(
        hidden_size=WIDTH, intermediate_size=512, num_hidden_layers=LAYERS,
        num_attention_heads=HEADS, num_key_value_heads=2, vocab_size=VOCABULARY)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        ids = torch.zeros(2, 8, dtype=torch.int64, device="cuda")
        out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=most,
                             eos_token_id=2, pad_token_id=0)
        model(input_ids=out, labels=out).loss.backward()
        optimizer.step()
        print(out.shape[1])


def transformers_static():
    transformers(cache_implementation="static")


def steps():
    training(evaluates=False)


globals()[sys.argv[1]]()
