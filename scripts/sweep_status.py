"""How far a sweep is, from its run directories: python scripts/sweep_status.py [RUNS...] [--json]"""

import argparse
import json
import sys

from fourierformer.runs.launch import exit_on_user_error


def main() -> None:
    parser = argparse.ArgumentParser(description="One line a run: running, stalled, failed or done, and what is left.")
    parser.add_argument("runs", nargs="*", default=["runs"], help="run directories or folders of them (default: runs)")
    parser.add_argument("--json", action="store_true", help="for programs")
    arguments = parser.parse_args()
    with exit_on_user_error():
        show(arguments.runs, arguments.json)


def show(roots: list[str], for_programs: bool) -> None:
    from fourierformer.results import collect
    from fourierformer.results.layout import duration_text
    from fourierformer.results.standing import as_json, standings, summary_line

    found = standings(run for run in collect(roots) if run.state != "set aside")
    if for_programs:
        json.dump(as_json(found), sys.stdout, indent=2)
        print()
        return
    for standing in found:
        left = f"{duration_text(standing.seconds_left)} left" if standing.seconds_left is not None else ""
        columns = (f"{standing.state:11}", f"{standing.progress:>17}", f"{left:15}", standing.run, standing.remark)
        print("  ".join(columns).rstrip())
    print(summary_line(found) or f"no runs under {', '.join(roots)}")


if __name__ == "__main__":
    main()
