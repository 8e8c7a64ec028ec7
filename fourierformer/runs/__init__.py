"""Runs and sweeps, from the command line to the summary. The call tree:

    launch            starts Hydra, ends the process with an exit code; hydra_errors has its errors in one line
      run             the steps of a run: config, directory, state, training; without torch if it is done
        spec          reads and checks the config, once
        state         new, resumes, done, or another run
        plan          dry_run=true
        train         builds, resumes, trains, measures
          parts       corpus, model, objective, device
          measure     the best checkpoint, summary.json

Beside them: directory has the files of a run, sweep the record of a sweep, job_names the names of its jobs, trained
loads and exports models, console_io has standard streams and the options of scripts, cpu the settings of threads and
memory.
"""
