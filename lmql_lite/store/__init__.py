"""Bytes on tiers: memory, disk, Redis, and several of them as one. Knows keys and bytes, not what they mean."""
