"""Optuna chooses training settings for Cytoscope: each trial is a run of `cytoscope train --json`.

    python examples/optuna_search.py --data my-stacks/ --out trials/ --steps 2000 --trials 30

The settings of a trial are passed with --set KEY=VALUE. The validation scores that --json-progress reports during a run go to
Optuna, which stops trials that fall behind; the score of a trial is the best of its run. A trial that fails, for example because
its loss diverges, has no score, and the search goes on. The package of each completed trial stays in the folder --out. The last
line of the output is the result as JSON.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

import optuna


def settings_of(trial):
    """Returns the settings of a trial, by their keys in a settings file."""
    return {
        "schedule.rate": trial.suggest_float("schedule.rate", 1e-4, 1e-2, log=True),
        "schedule.warm_up": trial.suggest_float("schedule.warm_up", 0.0, 0.2),
        "ema": trial.suggest_categorical("ema", [0.9, 0.99]),
        "augment.elastic.probability": trial.suggest_float("augment.elastic.probability", 0.0, 0.5),
    }


def train(options, trial):
    """Runs a trial and returns its best validation score."""
    out = pathlib.Path(options.out) / f"trial_{trial.number}"
    command = [options.program, "train", "--task", options.task, "--data", options.data, "--out", str(out)]
    command += ["--steps", str(options.steps), "--without-int8", "--restart", "--json", "--json-progress"]
    command += ["--config", options.config] if options.config else []
    command += [f"--set={key}={value}" for key, value in settings_of(trial).items()]
    # The report goes to a file: a full pipe would stop the program while its events are read.
    with tempfile.TemporaryFile("w+", encoding="utf-8") as report:
        process = subprocess.Popen(command, stdout=report, stderr=subprocess.PIPE, text=True, encoding="utf-8")
        lines = []
        for line in process.stderr:
            lines = [*lines[-20:], line]
            try:
                event = json.loads(line)
            except json.JSONDecodeError:
                continue
            # Step 0 is the start model, whose score all trials share.
            if event.get("event") != "validated" or event["step"] == 0:
                continue
            trial.report(event["score"], event["step"])
            if trial.should_prune():
                # The run saves a checkpoint and ends; its folder trial_N.training can be resumed or deleted.
                process.terminate()
                # What it still writes is read, so that it does not wait for a full pipe.
                process.communicate()
                raise optuna.TrialPruned
        if process.wait() != 0:
            raise RuntimeError("".join(lines))
        report.seek(0)
        points = json.load(report)["history"]["validations"]
        scores = [point["score"] for point in points if point["step"] > 0]
    if not scores:
        raise RuntimeError("there is no validation set: at least two pairs are needed")
    return max(scores)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", required=True, help="folder or table of the training pairs")
    parser.add_argument("--out", required=True, help="folder for the packages of the trials")
    parser.add_argument("--task", default="segmentation", choices=["segmentation", "labelfree"])
    parser.add_argument("--config", help="settings that all trials share")
    parser.add_argument("--steps", type=int, default=2000, help="steps of a trial")
    parser.add_argument("--trials", type=int, default=20, help="number of trials")
    parser.add_argument("--program", default="cytoscope", help="path of the program")
    options = parser.parse_args()
    pathlib.Path(options.out).mkdir(parents=True, exist_ok=True)
    study = optuna.create_study(
        direction="maximize",
        sampler=optuna.samplers.TPESampler(seed=0),
        pruner=optuna.pruners.MedianPruner(n_startup_trials=5),
    )
    study.optimize(lambda trial: train(options, trial), n_trials=options.trials, catch=(RuntimeError,))
    if not any(trial.state == optuna.trial.TrialState.COMPLETE for trial in study.trials):
        sys.exit("no trial was completed; the errors are above")
    best = {"trial": study.best_trial.number, "score": study.best_value, "settings": study.best_params}
    print(json.dumps({"trials": len(study.trials), "best": best}))


if __name__ == "__main__":
    sys.exit(main())
