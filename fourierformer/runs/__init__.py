"""A run, and a sweep of them, from the command line to the summary. Who calls whom:

    launch            starts Hydra, ends the process with an exit code
      start           a job: done already? (without torch)
        run           one run: config, lock, status
          plan        dry_run=true; cost: what a step takes
          train       builds, resumes, trains, measures
            parts     corpus, model, objective, device
            measure   the best checkpoint, summary.json

Beside them: spec and same_data check config and data, directory has the files of a run, sweep and jobs the record of a
sweep and its names, hydra_errors and stdio errors in one line, cpu threads. Trained runs: load, export; options are
arguments that scripts share.
"""
