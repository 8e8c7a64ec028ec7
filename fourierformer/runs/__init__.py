"""A run, and a sweep of them, from the command line to the summary. Who calls whom:

    launch            starts Hydra, ends the process with an exit code; Hydra's errors in one line
      run             the road of a run: config, directory, state, training; without torch where it is done
        spec          reads and checks the config, once
        state         nothing yet, resumes, done, or another run
        plan          dry_run=true
        train         builds, resumes, trains, measures
          parts       corpus, model, objective, device
          measure     the best checkpoint, summary.json

Beside them: directory has the files of a run, sweep the record of a sweep and the names of its jobs, trained loads and
exports models, console_io has standard streams and the options of scripts, cpu the settings of threads and memory.
"""
