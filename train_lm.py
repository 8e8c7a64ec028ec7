"""Train a language model with any attention: `python train_lm.py attention=fourier`; `--help` has examples."""

from fourierformer.runs.launch import launch

if __name__ == "__main__":
    launch("train_lm")
