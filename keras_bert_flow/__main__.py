"""Entry point of the command line: `kbf`, or `python -m keras_bert_flow`.

Signal handlers are installed before anything heavy is imported.
"""

from keras_bert_flow.own_packages import leave_working_directory

leave_working_directory()  # before anything else is imported

import atexit  # noqa: E402
import sys  # noqa: E402

from keras_bert_flow.interrupts import handle_signals, ignore_signals  # noqa: E402


def main() -> None:
    """Run the command line, with signals handled until the interpreter has shut down."""
    handle_signals()
    atexit.register(ignore_signals)  # registered first, so it runs last
    if sys.argv[1:] == ["--version"]:  # before the commands are imported, which takes seconds
        from keras_bert_flow.versions import describe_versions

        sys.stdout.write(f"{describe_versions()}\n")
        return
    from keras_bert_flow.terminal import show_exception

    sys.excepthook = show_exception
    from keras_bert_flow.cli import main as run

    run()


if __name__ == "__main__":
    main()
