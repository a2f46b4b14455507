"""Entry point of the command line: `kbf`, or `python -m keras_bert_flow`.

Signal handlers are installed before anything heavy is imported.
"""

import os
import sys


def leave_working_directory() -> None:
    """Remove the working directory that `python -m` put on the search path, unless the project is there.

    A user's `flows/` or `random.py` in it would shadow ours or the standard library's.
    """
    try:
        here = os.getcwd()
    except FileNotFoundError:  # it was removed, which the commands refuse
        return
    root = os.path.dirname(os.path.dirname(__file__))
    if not sys.flags.safe_path and sys.path[:1] == [here] and not os.path.samefile(here, root):
        del sys.path[0]


leave_working_directory()  # before anything else is imported

import atexit  # noqa: E402

from keras_bert_flow.console import interrupts  # noqa: E402
from keras_bert_flow.console.interrupts import handle_signals, ignore_signals  # noqa: E402
from keras_bert_flow.console.terminal import open_streams, show_exception  # noqa: E402


def main() -> None:
    """Run the command line, with signals handled until the interpreter has shut down."""
    handle_signals()
    atexit.register(ignore_signals)  # registered first, so it runs last
    lost_output = open_streams()
    status: str | int | None = None
    if sys.argv[1:] == ["--version"]:  # before the commands are imported, which takes seconds
        from keras_bert_flow.installed import describe_versions

        sys.stdout.write(f"{describe_versions()}\n")
    else:
        sys.excepthook = show_exception
        from keras_bert_flow.cli import main as run

        try:
            run()
        except SystemExit as end:
            status = end.code
    if not status and lost_output is not None and lost_output.is_lost:
        status = interrupts.USER_ERROR
        lost = "kbf: Standard output must be open. Received: none, so what was printed is lost. Add >/dev/null\n"
        sys.stderr.write(lost)
    sys.exit(status)


if __name__ == "__main__":
    main()
