"""Runs docs/notebook.ipynb from the top, and saves the outputs of its cells.

Run it as: python docs/execute.py [OUTPUT]
Without OUTPUT, the notebook itself is updated. It needs the extras hf and view, nbclient and
ipykernel.
"""

import sys
import tempfile
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

NOTEBOOK = Path(__file__).with_name("notebook.ipynb")
WIDGET = "application/vnd.jupyter.widget-view+json"


def executed(notebook: Any) -> Any:
    """Run a notebook in a new kernel, in an empty folder.

    Args:
        notebook: The notebook, as nbformat reads it.

    Returns:
        The notebook with the outputs of its cells, without widgets: they do not work without the
        kernel, and each output also has a form that needs none.
    """
    with tempfile.TemporaryDirectory() as folder:
        client = NotebookClient(
            notebook,
            kernel_name="python3",
            timeout=300,
            record_timing=False,
            store_widget_state=False,
            # A kernel may send what a cell prints in several pieces.
            coalesce_streams=True,
            resources={"metadata": {"path": folder}},
        )
        client.execute()
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            output.get("data", {}).pop(WIDGET, None)
    # The version of Python would change the file for no reason.
    notebook.metadata = {"kernelspec": {"name": "python3", "display_name": "Python 3"}}
    return notebook


def main() -> None:
    """Run the notebook and write it."""
    output = Path(sys.argv[1]) if len(sys.argv) > 1 else NOTEBOOK
    notebook = executed(nbformat.read(NOTEBOOK, as_version=4))
    nbformat.write(notebook, output)
    print(output)


if __name__ == "__main__":
    main()
