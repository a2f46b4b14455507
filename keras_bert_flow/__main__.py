"""Entry point of the command line: `kbf`, or `python -m keras_bert_flow`.

Signal handlers are installed before anything heavy is imported.
"""

from keras_bert_flow.own_packages import leave_working_directory

leave_working_directory()  # before anything else is imported

import atexit  # noqa: E402
import sys  # noqa: E402

from keras_bert_flow.console import interrupts  # noqa: E402
from keras_bert_flow.console.interrupts import handle_signals, ignore_signals  # noqa: E402
from keras_bert_flow.console.terminal import is_output_lost, open_streams, show_exception  # noqa: E402


def main() -> None:
    """Run the command line, with signals handled until the interpreter has shut down."""
    handle_signals()
    atexit.register(ignore_signals)  # registered first, so it runs last
    open_streams()
    if sys.argv[1:] == ["--version"]:  # before the commands are imported, which takes seconds
        from keras_bert_flow.installed import describe_versions

        sys.stdout.write(f"{describe_versions()}\n")
        sys.exit(_tell_lost(None))
    sys.excepthook = show_exception
    from keras_bert_flow.cli import main as run

    try:
        run()
    except SystemExit as end:
        sys.exit(_tell_lost(end.code))
    sys.exit(_tell_lost(None))


def _tell_lost(status: str | int | None) -> str | int | None:
    """Return the status of the command, of a user's error if what it printed is lost, and say so."""
    if status or not is_output_lost():
        return status
    sys.stderr.write("kbf: Standard output must be open. Received: none, so what was printed is lost. Add >/dev/null\n")
    return interrupts.USER_ERROR


if __name__ == "__main__":
    main()
