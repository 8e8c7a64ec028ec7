"""The command of the harness, which finds no model outside of its own package, with our model and tasks."""

import sys

from lm_eval.__main__ import cli_evaluate

from fourierformer.integrations.lm_eval import TASKS
from fourierformer.runs.console_io import exit_on_user_error

if __name__ == "__main__":
    with exit_on_user_error():
        if sys.argv[1:2] == ["run"]:
            sys.argv += ["--include_path", str(TASKS)]
        cli_evaluate()
