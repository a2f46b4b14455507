"""Draft a first configuration for the user's own text and table, from samples of them and a time budget.

Each guess is explained next to its setting. Nothing here trains, and nothing is overwritten.
"""
