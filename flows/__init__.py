"""Prefect flows of keras-bert-flow: names, retries, caching and progress of the stages; no arithmetic."""
