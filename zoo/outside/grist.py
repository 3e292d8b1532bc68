"""The 22 PyTorch programs of GRIST, a public collection of numerical bugs, as they are.

Each program looks for an input on which its own loss is not finite. GRIST's search is replaced by a stand-in
(`site/sitecustomize.py`), which gives random pictures in the place of MNIST. `nantrap run` sees the program exit at the
bad loss, as the original does; for anomaly mode the program goes on to its backward pass. In six programs the search
does not come to a bad input in a short time: their input is multiplied by 10,000 in the first round (planted). The line
that is right was read from each program by a person.

Some programs import cloudpickle, networkx, pandas, rdflib, scikit-learn, six or tabulate; install them first.
"""

from __future__ import annotations

import functools
from pathlib import Path

from zoo.outside.scripts import Said, judged, run

LIMIT = 300.0
PROGRAMS = {
    4: ("test/nn/models/test_autoencoder_grist.py", "autoencoder.py:254"),
    5: ("tests/test_losses_grist.py", "rank_cross_entropy_loss.py:37"),
    12: ("main_grist.py", "classifier_grist.py:106"),
    13: ("test/utils/test_softmax_grist.py", "softmax.py:9"),
    22: ("My_pytorch1_grist.py", "My_pytorch1_grist.py:53"),
    23: ("ch5.3_softmax_grist.py", "ch5.3_softmax_grist.py:41"),
    26: ("0401_logistic_regression_grist.py", "0401_logistic_regression_grist.py:91"),
    27: ("0503_softmax_regression_cost_grist.py", "0503_softmax_regression_cost_grist.py:73"),
    32: ("0504_softmax_regression_grist.py", "0504_softmax_regression_grist.py:54"),
    33: ("logistic_classification_grist.py", "logistic_classification_grist.py:85"),
    34: ("softmax_classification_grist.py", "softmax_classification_grist.py:97"),
    37: ("lab-05-1-logistic_regression_grist.py", "lab-05-1-logistic_regression_grist.py:38"),
    38: ("lab-09-1-xor_grist.py", "lab-09-1-xor_grist.py:39"),
    46: ("torch20_softmax_grist.py", "torch20_softmax_grist.py:34"),
    47: ("torch21_Softmax_Reg1_grist.py", "torch21_Softmax_Reg1_grist.py:46"),
    51: ("rbm_grist.py", "rbm_grist.py:54"),
    53: ("h02_20191644_grist.py", "h02_20191644_grist.py:38"),
    54: ("h03_20191644_grist.py", "h03_20191644_grist.py:35"),
    56: ("01_Logistic_Regression_grist.py", "01_Logistic_Regression_grist.py:79"),
    57: ("03_softmax_cost_grist.py", "03_softmax_cost_grist.py:31"),
    62: ("denoising_RBM_grist.py", "denoising_RBM_grist.py:61"),
    63: ("main_grist.py", "main_grist.py:57"),
}
"""The program, and the line of its guilty statement."""
PLANTED = {4: "1e4", 5: "1e4", 12: "1e4", 22: "1e4", 51: "1e4", 62: "1e4"}
ABOUT = {
    "set": "GRIST",
    "repository": "github.com/Jacob-yen/GRIST",
    "about": f"The PyTorch programs, unmodified; {len(PLANTED)} of them with a planted input (`zoo/outside/grist.py`).",
}


def said_of(tool: str, number: int, clone: Path, folder: Path) -> tuple[Said, bool]:
    """What a tool said of one program, and whether the line that it named is the right one."""
    script = clone / "scripts" / "study_case" / f"ID_{number}" / PROGRAMS[number][0]
    surroundings = {
        "PYTHONPATH": str(clone),
        "GRIST_EXITS": "0" if tool == "anomaly_mode" else "1",
        "GRIST_PLANT": PLANTED.get(number, "0"),
    }
    said = run(tool, script, [], folder / f"ID_{number}", surroundings, LIMIT)
    return said, said.line == PROGRAMS[number][1]


measure = functools.partial(judged, ABOUT, PROGRAMS, said_of)
