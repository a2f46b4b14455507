"""The notebooks of examples/ run from a kernel of this interpreter, and are kept without what they printed."""

import os
import shutil
import sys
from pathlib import Path

import nbformat
import pytest
from jupyter_client import KernelManager
from jupyter_client.kernelspec import KernelSpec, KernelSpecManager
from nbclient import NotebookClient

from tests.patience import PATIENCE_SECONDS

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))


class ThisInterpreter(KernelSpecManager):
    """One kernel, of this process's Python, whatever is registered on this machine."""

    def get_kernel_spec(self, kernel_name: str) -> KernelSpec:
        return KernelSpec(argv=[sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"])


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.name)
def test_notebook_is_kept_without_outputs(notebook: Path):
    content = nbformat.read(notebook, as_version=4)
    nbformat.validate(content)
    cells = [cell for cell in content.cells if cell.cell_type == "code"]
    assert cells and not any(cell.outputs or cell.execution_count for cell in cells)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["torch", "jax", "tensorflow"])
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.name)
def test_notebook_runs(notebook: Path, backend: str, tmp_path: Path):
    shutil.copy(notebook, tmp_path)
    content = nbformat.read(tmp_path / notebook.name, as_version=4)
    home = tmp_path / "home"
    environment = os.environ | {"PYTHONPATH": str(ROOT), "KERAS_BACKEND": backend}
    environment |= {"IPYTHONDIR": str(home), "JUPYTER_RUNTIME_DIR": str(home), "JUPYTER_CONFIG_DIR": str(home)}
    connection = tmp_path / "connection.json"
    manager = KernelManager(kernel_spec_manager=ThisInterpreter(), connection_file=str(connection))
    client = NotebookClient(
        content, km=manager, timeout=PATIENCE_SECONDS, resources={"metadata": {"path": str(tmp_path)}}
    )
    client.execute(env=environment)
    last = [cell for cell in content.cells if cell.cell_type == "code"][-1]
    (answer,) = [output.data["text/plain"] for output in last.outputs if output.output_type == "execute_result"]
    assert "'label': 'film'" in answer and "'label': 'food'" in answer
