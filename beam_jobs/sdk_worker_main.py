"""Beam's worker process without output on standard error: its log goes to the runner, which shows errors."""

import logging
import sys

logging.getLogger().addHandler(logging.NullHandler())  # else the first import warning would install one that prints

from apache_beam.runners.worker.sdk_worker_main import main  # noqa: E402

if __name__ == "__main__":
    main(sys.argv)
