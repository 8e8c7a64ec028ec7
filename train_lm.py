"""Train a language model with any attention: `python train_lm.py attention=fourier`; `--help` has examples."""

import hydra

from fourierformer.runs.launch import launch


@hydra.main(version_base="1.3", config_path="configs", config_name="train_lm")
def train(config):
    from fourierformer.runs.run import main

    main(config)


if __name__ == "__main__":
    launch(train)
