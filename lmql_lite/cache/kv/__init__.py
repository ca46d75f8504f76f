"""KV cache: attention keys and values of known prefixes, in pages on tiers, so that a prompt is prefilled once."""
