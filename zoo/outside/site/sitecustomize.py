"""Loaded before each program of an outside set: data that would be downloaded, and packages of the set's authors.

The marks of TrainCheck do nothing. The programs of GRIST import `scripts.utils.torch_utils`: GRIST's own version moves
the inputs along a gradient until the loss is not finite, writes a file and exits. The stand-in here moves them in the
same direction and lets the program go on, so that the value reaches the backward pass and the update, where the program
has them. GRIST_EXITS=1 makes it look at the loss and exit, as the original does. With GRIST_PLANT=F the input is
multiplied by F in the first round: for programs whose search does not find a bad input in a short time.
"""

from __future__ import annotations

import importlib.abc
import importlib.util
import os
import random
import sys
from types import ModuleType

LARGEST_MOVE, MOST_ROUNDS, BAD_ROUNDS = float(os.environ.get("GRIST_MOVE", "1")), 4000, 4
PICTURES = int(os.environ.get("ZOO_PICTURES", "256"))
PLANTED = float(os.environ.get("GRIST_PLANT", "0"))


def torch_utils():
    """The module `scripts.utils.torch_utils`."""
    import torch

    module = ModuleType("scripts.utils.torch_utils")
    exits = os.environ.get("GRIST_EXITS") == "1"

    class Search:
        def __init__(self, *names, **options):
            self.rounds = self.bad = 0
            self.low = self.high = None

        def build(self, batch_size, min_val=None, max_val=None):
            pass

        def loss_checker(self, loss_val, log_msg=None):
            if exits and bool((torch.isnan(loss_val) | torch.isinf(loss_val)).any()):
                sys.exit(0)

        def check_time(self):
            pass

        def update_batch_data(self, monitor_var, input_data, clip=True):
            loss = monitor_var["loss"]
            self.loss_checker(loss)
            self.rounds += 1
            if not exits:
                # through numpy: what the driver looks at is not what the program looks at
                values = torch.Tensor.numpy(torch._C.TensorBase.detach(loss))
                self.bad += not bool((abs(values) < float("inf")).all())
                if self.bad > BAD_ROUNDS:
                    sys.exit(0)
            if self.rounds > MOST_ROUNDS:
                sys.exit(9)
            with torch.no_grad():
                if PLANTED and self.rounds == 1:
                    return input_data.detach() * PLANTED, None
                moved = input_data.detach() - LARGEST_MOVE * monitor_var["obj_grad"].sign()
            return moved, None

        def switch_new_data(self, new_data_dict, old_data_dict, scores_rank):
            return old_data_dict["x"], old_data_dict.get("y")

    module.GradientSearcher = module.TorchScheduler = Search
    return module


def images(*arguments, train=True, transform=None, **options):
    """Random pictures in the place of MNIST, as many as programs take of them."""
    import torch
    from torch.utils.data import TensorDataset

    generator = torch.Generator().manual_seed(0)
    pictures = torch.rand(PICTURES, 1, 28, 28, generator=generator)
    for function in transform or ():
        pictures = torch.stack([function(picture) for picture in pictures])
    return TensorDataset(pictures, torch.randint(10, (PICTURES,), generator=generator))


def table(*arguments, **options):
    """The same as scikit-learn's table."""
    import numpy

    rng = numpy.random.default_rng(0)

    class Bunch:
        data = rng.integers(0, 255, (512, 784)).astype("float32")
        target = rng.integers(0, 10, 512)

    return Bunch


def scatter_add(source, index, dim=0, out=None, dim_size=None, fill_value=0):
    """What `torch_scatter` does, for one dimension."""
    import torch

    size = int(index.max()) + 1 if dim_size is None else dim_size
    return torch.zeros(size, *source.shape[1:]).index_add(0, index, source)


class Anything(ModuleType):
    """A module of which any name can be imported and called, to no effect."""

    __path__ = ()

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *arguments, **options: None


def datasets(name):
    module = ModuleType(name)
    module.MNIST = module.FashionMNIST = images
    return module


def transforms(name):
    """Pictures need no transforms but those that a program wrote itself."""
    module = Anything(name)
    module.Compose = lambda parts: [part for part in parts if callable(part)]
    module.Lambda = lambda function: function
    return module


def vision(name):
    module = ModuleType(name)
    module.__path__ = []
    module.datasets, module.transforms, module.utils = datasets(f"{name}.datasets"), transforms(name), Anything(name)
    return module


def scatter(name):
    module = Anything(name)
    module.scatter_add = scatter_add
    return module


def resources(name):
    """The version of an installed package, as `pkg_resources` gave it."""
    import importlib.metadata

    from packaging.version import parse

    module = Anything(name)
    module.get_distribution, module.parse_version = importlib.metadata.distribution, parse
    return module


def scorer(name):
    """Where scikit-learn kept it once."""
    from sklearn.metrics import _scorer, check_scoring, make_scorer

    module = ModuleType(name)
    module.check_scoring, module.make_scorer, module._BaseScorer = check_scoring, make_scorer, _scorer._BaseScorer
    return module


def publish_loss(module):
    """Program 5 takes a square root, whose value is finite everywhere. The published bug is the logarithm in the loss
    that it copied, which stands in the file beside it: that one is used."""
    import torch

    published = module.RankCrossEntropyLoss

    class Loss(published):
        def forward(self, y_pred, y_true):
            own = published.forward(self, y_pred, y_true)
            return own, torch.softmax(y_pred.view(-1, self.num_neg + 1), dim=-1)

    module.RankCrossEntropyLossFGSM = Loss


def marks(name):
    """The marks that TrainCheck's authors put into a workload."""
    module = Anything(name)
    module.meta_vars = {}
    return module


MADE = {
    "traincheck": marks,
    "traincheck.instrumentor": marks,
    "sklearn.metrics.scorer": scorer,
    "scripts.utils.torch_utils": lambda name: torch_utils(),
    "torchvision": vision,
    "torchvision.datasets": datasets,
    "torchvision.transforms": transforms,
    "torchvision.utils": Anything,
    "torch_scatter": scatter,
    "torch_sparse": Anything,
    "torch_cluster": Anything,
    "torch_spline_conv": Anything,
    "pkg_resources": resources,
    "plyfile": Anything,
}
"""Modules that are made here: the search, the data, and packages that no longer exist for this torch."""


CHANGED = {
    "sklearn.datasets": lambda module: setattr(module, "fetch_openml", table),
    # removed from scikit-learn since
    "sklearn.utils": lambda module: setattr(module, "safe_indexing", lambda data, indices: data[indices]),
    "scripts.study_case.ID_5.matchzoo.losses": publish_loss,
}
"""Modules of which a name is set after they were loaded."""


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Serves the modules that are made here, and changes those that are named above."""

    looking = False

    def find_spec(self, name, path=None, target=None):
        if name in MADE:
            return importlib.util.spec_from_loader(name, self, is_package=name == "torchvision")
        if self.looking or name not in CHANGED:
            return None
        self.looking = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self.looking = False
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def exec_module(module):
            execute(module)
            CHANGED[name](module)

        spec.loader.exec_module = exec_module
        return spec

    def create_module(self, spec):
        return MADE[spec.name](spec.name)

    def exec_module(self, module):
        pass


if "ZOO_OUTSIDE" in os.environ:
    random.seed(0)
    sys.meta_path.insert(0, Finder())
