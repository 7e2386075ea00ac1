"""From text to training samples: tokenizer, indexed dataset, index maps, GPT samples."""
