"""Tiers that store bytes under keys: memory, disk, Redis, and several of them as one."""
