"""The commands of a part of the plan: python -m studies.regression.commands 0 | A | B | C | D"""

import argparse
from itertools import product

import pandas as pd

from studies.regression.analyse import load

SINC = "attention=fourier attention.radius=1 attention.eps=0"
MECHANISMS = {
    "softmax": "attention=softmax",
    "softmax, unit norm": "attention=softmax model.normalise=true",
    "gaussian": "attention=gaussian",
    "full covariance": "attention=gaussian_full",
    "sinc^4": SINC,
    "sinc^2": f"{SINC} attention.power=2",
    "sinc, signed": f"{SINC} attention.power=1 attention.allow_negative=true attention.eps=1e-3",
    "sinc^4 per coordinate": "attention=fourier_vector attention.radius=1 attention.eps=0",
}
MAIN = ("gaussian", "sinc^4", "full covariance", "softmax, unit norm")
ARMS = ("identity", "learned")
LONGER = "trainer.steps=1600"
VARIATIONS = {
    "data.covariance": "axes,rotated",
    "data.dimension": "2,8",
    "data.context": "16,256",
    "data.smooth_in": "features",
}


def commands(part: str) -> list[str]:
    if part == "0":
        return [
            command("0", name, arm, "optim.lr=1e-2,2e-2,5e-2 seed=0 data.rho=0.9")
            for name, arm in product(MECHANISMS, ARMS)
        ]
    rates = chosen_rates(load())
    main = [(name, arm, f"optim.lr={rates[name, arm]:g} 'seed=range(1,4)'") for name, arm in product(MAIN, ARMS)]
    if part == "A":
        every = [(name, arm, f"optim.lr={rates[name, arm]:g}") for name, arm in product(MECHANISMS, ARMS)]
        return [
            command("a", name, arm, f"{rate} data.rho=0,0.5,0.9,0.99 'seed=range(1,4)'") for name, arm, rate in every
        ]
    if part == "B":
        return [command("b", *one, f"{key}={values}") for one in main for key, values in VARIATIONS.items()]
    if part == "C":
        return [command("c", *one, "model.layers=3") for one in main]
    return [
        command("d", name, "learned", f"optim.lr={rates[name, 'learned']:g} 'seed=range(1,4)' data.rho=0.99", LONGER)
        for name in (*MAIN, "sinc^2")
    ]


def command(part: str, name: str, arm: str, *overrides: str) -> str:
    start = f"python train_lm.py -m experiment=regression experiment_name=regression_{part} model.projections={arm}"
    return " ".join([start, MECHANISMS[name], *overrides])


def chosen_rates(rows: pd.DataFrame) -> pd.Series:
    """By name and arm: the rate with the smallest error on valid."""
    tried = rows[rows["experiment"] == "regression_0"]
    return tried.sort_values("valid").groupby(["name", "arm"])["lr"].first()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=["0", "A", "B", "C", "D"])
    print("\n".join(commands(parser.parse_args().part)))
