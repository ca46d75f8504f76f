"""Data sets: rows, metrics and reports, and an adapter that lets our models answer lists of requests."""
