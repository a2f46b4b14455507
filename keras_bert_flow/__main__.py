"""Run the command line with `python -m keras_bert_flow`."""

from keras_bert_flow.own_packages import leave_working_directory

leave_working_directory()  # before anything else is imported

from keras_bert_flow.cli import main  # noqa: E402

if __name__ == "__main__":
    main()
