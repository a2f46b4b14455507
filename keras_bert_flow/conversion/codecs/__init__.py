"""Weight formats, a file each: named tensors in files, read and written with NumPy alone.

A codec knows nothing of encoders: what a tensor is called in a format, `tables/` says.
"""
