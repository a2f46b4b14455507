"""Search over settings: which values are drawn, and the study that remembers them. How a trial is run lives in flows.

Without Keras and without Prefect.
"""
