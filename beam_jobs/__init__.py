"""Apache Beam pipelines of keras-bert-flow.

`build_vocabulary` counts words and learns WordPiece pieces; `build_records` makes masked instances.
"""

import logging

# Importing Beam warns, through the root logger, about a missing Google library that nothing here uses.
logging.getLogger().addFilter(lambda record: not str(record.msg).startswith("apitools not found"))
