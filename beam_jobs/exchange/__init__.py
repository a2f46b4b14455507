"""Exchange of data between the steps of a job: through the engine's own shuffle, or through files next to the output.

`exchange.py` is the interface; `files.py` and `engine.py` implement it and give the same bytes; `choice.py` chooses one
of them. No step of a job knows which.
"""
