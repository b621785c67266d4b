"""Measurements of time and memory, each held against a bar."""
