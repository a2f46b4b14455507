"""The server that Prefect is set to use, wherever that is set; where nothing is, Prefect is not even imported."""

import os
import subprocess
import sys

import pytest

from tests.flows.conftest import ROOT
from tests.patience import PATIENCE_SECONDS

ADDRESS = "http://127.0.0.1:4999/api"
PROFILES = f'active = "mine"\n[profiles.mine]\nPREFECT_API_URL = "{ADDRESS}"\n'
OURS = "import sys; from flows.server import find_chosen_server as f; print(*f(), 'prefect' in sys.modules)"
THEIRS = "from prefect.settings import get_current_settings as f; print(f().api.url, f().home)"


def ask(code, place, **variables):
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    environment |= {"PYTHONPATH": str(ROOT), "HOME": str(place / "user")} | variables
    command = [sys.executable, "-c", code]
    return subprocess.run(
        command, cwd=place, env=environment, check=True, capture_output=True, text=True, timeout=PATIENCE_SECONDS
    ).stdout.split()


@pytest.mark.parametrize(
    ("file", "content", "variables"),
    [
        ("pyproject.toml", f'[tool.prefect.api]\nurl = "{ADDRESS}"\n', {}),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (
                ("prefect.toml", f'[api]\nurl = "{ADDRESS}"\n', {}),
                (".env", f"PREFECT_API_URL={ADDRESS}\n", {}),
                ("user/.prefect/profiles.toml", PROFILES, {}),
                ("home/profiles.toml", PROFILES, {"PREFECT_HOME": "home"}),
                ("other", "", {"PREFECT_API_URL": ADDRESS}),
            )
        ),
    ],
)
@pytest.mark.slow
def test_server_is_found_wherever_it_is_set(tmp_path, file, content, variables):
    (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / file).write_text(content)
    found = ask(OURS, tmp_path, **variables)
    assert found[0] == ADDRESS and found == [*ask(THEIRS, tmp_path, **variables), "True"]


@pytest.mark.slow
@pytest.mark.parametrize("variables", [{}, pytest.param({"PREFECT_HOME": "home"}, marks=pytest.mark.slow)])
@pytest.mark.first_form
def test_prefect_is_not_imported_where_nothing_is_set(tmp_path, variables):
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "mine"\ndependencies = ["prefect"]\n')
    found = ask(OURS, tmp_path, **variables)
    assert found[0] == "None" and found == [*ask(THEIRS, tmp_path, **variables), "False"]
