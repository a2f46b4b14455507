"""Weight file formats, one per module: named tensors in files, read and written with NumPy alone.

A codec knows nothing of encoders: the tensor names of each format are in `tables/`.
"""
