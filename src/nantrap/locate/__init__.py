"""Where it began: the first guilty operation, in forward, backward, optimizer, state or data, down to the sample."""

from nantrap.locate.batch import batch_size, select, tensors_of
from nantrap.locate.kept import RootCall
from nantrap.locate.locate import locate
from nantrap.locate.location import Location, batch_findings, finding
from nantrap.locate.optimizers import layers_of, state_tensors, states_of, updated_elsewhere
from nantrap.locate.probes import clear_probes, probe, read_probes
from nantrap.locate.program import Program, ProgramState
from nantrap.locate.rng import RngState
from nantrap.locate.samples import find_samples
from nantrap.locate.step import FailedStep
from nantrap.locate.wrapping import is_compiled, unwrap

__all__ = [
    "FailedStep",
    "Location",
    "Program",
    "ProgramState",
    "RngState",
    "RootCall",
    "batch_findings",
    "batch_size",
    "clear_probes",
    "find_samples",
    "finding",
    "is_compiled",
    "layers_of",
    "locate",
    "probe",
    "read_probes",
    "select",
    "state_tensors",
    "states_of",
    "tensors_of",
    "unwrap",
    "updated_elsewhere",
]
