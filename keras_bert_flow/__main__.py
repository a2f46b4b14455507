"""Run the command line with `python -m keras_bert_flow`."""

from keras_bert_flow.cli import main

if __name__ == "__main__":
    main()
