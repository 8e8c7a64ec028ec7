"""estimator_correlations.csv -> its chart: python -m studies.estimators.analyse"""

from pathlib import Path

from fourierformer.files import read_csv
from studies.estimators.charts import RATIO_SAMPLES, ratio_chart, ratio_panels

HERE = Path(__file__).resolve().parent
TITLE = f"Exact MISE of normal densities, each kernel at its best radius, N = {RATIO_SAMPLES:,}"

if __name__ == "__main__":
    rows = read_csv(HERE / "estimator_correlations.csv").rows
    ratio_chart(ratio_panels(rows), "estimator_correlations", TITLE).save(HERE)
