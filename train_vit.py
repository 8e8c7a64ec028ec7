"""Train a vision transformer with any attention: `python train_vit.py attention=fourier`; `--help` has examples."""

from fourierformer.training.signals import note_signals

if __name__ == "__main__":
    note_signals()  # before the imports, which an exception would leave half done
    from fourierformer.runs.launch import launch

    launch("train_vit")
