"""Commands that gather predictions for those who score them."""

from pathlib import Path
from typing import Annotated

import typer

from keras_bert_flow.cli.application import app
from keras_bert_flow.outputs import check_output_file
from keras_bert_flow.terminal import show


@app.command("glue-zip")
def glue_zip(
    predictions: Annotated[
        list[Path],
        typer.Argument(
            help="Predictions of `kbf predict` on the test tables, named as in a submission: CoLA.jsonl or .tsv."
        ),
    ],
    output: Annotated[Path, typer.Option(help="The .zip file to write.")],
) -> None:
    """Collect predictions on GLUE's test tables into a .zip for its server, and report which are missing."""
    check_output_file(output)
    from keras_bert_flow.records.verification import verify
    from keras_bert_flow.tasks.formats.glue import write_glue_submission

    verify(*predictions)

    named = {f"{path.stem}.tsv": path for path in predictions}
    if len(named) < len(predictions):
        raise ValueError(
            f"Each table must be given once. Received: {', '.join(map(str, predictions))}. Leave out the others."
        )
    missing = write_glue_submission(output, named)
    show(output)
    if missing:
        show(f"Not whole: GLUE takes no submission without {', '.join(missing)}.")
