"""Where it began: the first guilty operation, in forward, backward, optimizer, state or data, down to the sample."""

from nantrap.locate.batch import batch_size, select, tensors_of
from nantrap.locate.failure import Failure, RunFacts
from nantrap.locate.locate import locate
from nantrap.locate.location import Location, batch_findings, finding
from nantrap.locate.probes import clear_probes, probe, read_probes
from nantrap.locate.replay.program import Program, ProgramState
from nantrap.locate.replay.rng import RngState
from nantrap.locate.replay.root_call import RootCall
from nantrap.locate.replay.samples import find_samples
from nantrap.locate.wrapping import is_compiled, layers_of, state_tensors, states_of, unwrap, updated_elsewhere

__all__ = [
    "Failure",
    "Location",
    "Program",
    "ProgramState",
    "RngState",
    "RootCall",
    "RunFacts",
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
