"""Train a vision transformer with any attention: `python train_vit.py attention=fourier`; `--help` has examples."""

from fourierformer.runs.launch import launch

if __name__ == "__main__":
    launch("train_vit")
