"""Pre-training objectives: a file each, with all that must be known of one without Keras.

A file says how instances are made and what there is to know of them: what their labels mean, which shares of them are
expected, how many documents it takes. `registry` names the files. Models are in `models/`.
"""
