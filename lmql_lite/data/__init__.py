"""Data sets: their rows, metrics and reports, and our models as models that answer lists of requests."""
