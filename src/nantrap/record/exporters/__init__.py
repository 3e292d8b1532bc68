"""Values and incidents to other tools while a run is training: TensorBoard, Weights & Biases, MLflow, Trackio.

    exporters = open_exporters(["tensorboard"], run_dir="runs/exp1", facts={...})
    exporters.append(line)               # the journal's line of a step, or of an evaluation
    exporters.incident(incident, text=text)
    exporters.close()

All work is done in a thread; an exporter that fails is switched off with one warning, and training continues.
"""

from nantrap.record.exporters.exporter import NAMES, Exporter, Exporters, check_exporters, open_exporters

__all__ = ["NAMES", "Exporter", "Exporters", "check_exporters", "open_exporters"]
