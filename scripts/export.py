"""Write a trained model, or those of a study, as a folder that others can load, or upload it to the Hugging Face hub.

python scripts/export.py runs/builtin/... --to exported/my_model
python scripts/export.py runs/builtin/... --to hub:my-name/my-model
python scripts/export.py runs/evidence_lm --to exported/evidence_lm    a folder for each completed run, and SHA256SUMS

Load it with fourierformer.from_pretrained("exported/my_model"), a language model also with transformers, an image
classifier also with timm (docs/library.md).
"""

from fourierformer.printing import echo
from fourierformer.runs.console_io import Parser, add_run_options, chosen_weights, exit_on_user_error


def main() -> None:
    parser = Parser(__doc__)
    add_run_options(parser, device=False)
    parser.add_argument("--to", required=True, metavar="FOLDER|hub:OWNER/NAME", help="a new folder, or a repository")
    arguments = parser.parse_args()
    with exit_on_user_error():
        from fourierformer.runs.trained import export_run

        echo(export_run(arguments.run, arguments.to, **chosen_weights(arguments)))


if __name__ == "__main__":
    main()
