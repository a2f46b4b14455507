"""Model directories in Hugging Face's layout, read and written without `transformers`.

The encoder's tensor names and `config.json` fields are defined here; those of a head are in `models/`, with the head.
"""
