"""Pre-training objectives: one module each, without Keras.

A module defines how instances are made and their properties: the meaning of labels, their expected shares, the number
of documents needed. `registry` lists the modules. Models are in `models/`.
"""
