"""Model directories: Hugging Face's layout, read and written without `transformers`.

Tensor names and `config.json` fields of the encoder are here; those of a head are with the head in `models/`.
"""
