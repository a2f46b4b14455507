"""Beam's worker process without its lines on standard error: what it logs reaches the runner, which shows errors."""

import logging
import sys

logging.getLogger().addHandler(logging.NullHandler())  # the first warning of an import would install one that prints

from apache_beam.runners.worker.sdk_worker_main import main  # noqa: E402

if __name__ == "__main__":
    main(sys.argv)
