"""Maps configs/, scripts/ and the committed numbers into the installed package, as fourierformer/share: the repository
has one copy of each, where people look for it. Everything else about the package is in pyproject.toml."""

from setuptools import find_packages, setup

SHARE = {f"fourierformer.share.{name}": name for name in ("configs", "scripts", "results")}

setup(
    packages=[*find_packages(include=["fourierformer*"]), *SHARE],
    package_dir=SHARE,
    package_data={
        "fourierformer": ["py.typed", "report/templates/*", "kernels/sinc/native/*", "integrations/lm_eval/*.yaml"],
        "fourierformer.share.configs": ["**/*.yaml"],
        "fourierformer.share.results": ["paper.csv", "measured/*.csv"],
    },
)
