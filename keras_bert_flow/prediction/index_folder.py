"""Check the index folders of `kbf search`."""

from pathlib import Path

from keras_bert_flow.outputs import check_place
from keras_bert_flow.records.verification import verify

INDEX = "index.json"
REMEDY = "Choose another folder, or remove it to have it made anew."


def check_index(folder: str | Path) -> None:
    """Check that a folder is an index and is not damaged, or that one can be made there.

    Raises:
        OSError: it does not exist, and cannot be made.
        ValueError: it is not an index, or is damaged.
    """
    folder = Path(folder)
    if not folder.exists():
        check_place(folder)
    elif not (folder / INDEX).is_file():
        raise no_index(folder)
    else:
        try:
            verify(folder)
        except (FileNotFoundError, ValueError) as error:
            raise no_index(folder, str(error).partition("Received: ")[2].partition(". ")[0]) from None


def no_index(folder: Path, fault: str = "") -> ValueError:
    """Return the error for a folder that is not an index, or is damaged."""
    return ValueError(
        f"An index must be a folder that `kbf search` made. Received: {folder}, which is not one or is damaged"
        f"{fault and f': {fault}'}. {REMEDY}"
    )
