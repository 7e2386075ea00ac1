"""Parts of the stand-in for flash_attn."""
