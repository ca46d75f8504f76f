"""Attention keys and values of known prefixes, kept in pages on tiers, so that a prompt is prefilled once."""
