"""From a bad step to its incident: where it began, and why. Runs only after a failure, and never raises.

`diagnose` is the order of a diagnosis:

    describe   incident_of    the incident as it was seen
    explore    locate         where it began, on this rank
               explain_case   the rules are asked, and their trials run
    agree      together       what only all ranks can run again; then they exchange what they found
    complete   settle_alone   what one rank can say without the others

The parts take a `Diagnosed` and return another one. What must wait for the action (skip, roll back, stop) is added
when the step has ended: `Diagnosed.finish`.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from torch.multiprocessing.reductions import StorageWeakRef

from nantrap import finite
from nantrap.guard.bundling import material_of
from nantrap.guard.diagnosis.describe import (
    MAY_DIFFER,
    Observation,
    at_position_of,
    began_elsewhere,
    budget_of,
    failure_of,
    incident_of,
    inputs_of,
    like_known,
    not_compared,
    of_statement,
    signature_of,
    with_explanation,
    with_location,
    with_run_facts,
    with_unusual_batch,
)
from nantrap.guard.diagnosis.together import exchange_incidents, explore_graph, explore_together
from nantrap.guard.judge import Verdict
from nantrap.guard.session import Session
from nantrap.guard.window import Diagnosed, Micro
from nantrap.incident import Incident
from nantrap.incident.wording import failed_in_words
from nantrap.locate import Failure, Location, locate
from nantrap.locate.budget import Budget
from nantrap.locate.location import location_of
from nantrap.locate.replay.samples import find_samples
from nantrap.locate.variables.provenance import (
    Link,
    Remade,
    bad_variable,
    given_bad,
    made_again,
    made_in_loop,
    trace_back,
)

_NOT_RUN_AGAIN = "not run again: the model communicates with other ranks while it runs, and these take no part here"
_NOT_SEEN = "whether the loss reads it was not seen"
_KEPT_APART = "the ranks average gradients and exchange nothing else here, so it may have begun on another rank"


class Explored(NamedTuple):
    """What this rank found out by itself.

    Attributes:
        diagnosed: the incident so far.
        needs_all: the step can only be run again, or more can only be tried, by all ranks together.
        ran: something was run again.
    """

    diagnosed: Diagnosed
    needs_all: bool = False
    ran: bool = False


def diagnose(session: Session, observation: Observation) -> Diagnosed:
    """The incident of a failed step. Locates it once; the state is as before afterwards."""
    if session.armed.running:
        session.armed.stop()  # a micro-batch is judged in the middle of a step
    seen = as_seen(session, observation)
    session.recorder.begin_incident(seen.incident)
    session.sampler.watch_closely(session.progress.step)
    if observation.spike and observation.phase == "data":
        seen = seen.with_incident(with_unusual_batch(seen.incident))
    here = session.ranks.rank in observation.verdict.bad_ranks
    clock = session.policy.diagnosis.clock
    began = clock()
    seen_from_there = observation.micro.seen_from_there()
    with seen_from_there, session.protected.ledger.uncounted(), session.protected.apart_from_others():
        found = explore(session, observation, seen) if here and not observation.spike else Explored(seen)
        if observation.agreed and session.ranks.talking:
            diagnosed = settle_with_ranks(session, observation, found)
        else:
            diagnosed = settle_alone(session, observation, found, here=here)
    if found.ran and any(not parameter.is_cpu for parameter in session.protected.members.parameters):
        gc.collect()  # tensors in cycles (graphs, exceptions) would keep memory that the next step needs
    session.earlier.took += clock() - began
    session.recorder.end_diagnosis()
    return diagnosed


def as_seen(session: Session, observation: Observation) -> Diagnosed:
    """The incident as it was observed, at the position of its micro-batch."""
    seen = Diagnosed(at_position_of(observation.micro, incident_of(session, observation)))
    if observation.number is None:
        return seen
    return seen.noting("it began in micro-batch {} of {}".format(*observation.number))


def settle_with_ranks(session: Session, observation: Observation, found: Explored) -> Diagnosed:
    """All ranks run again what one could not, then they exchange what they found. Each rank calls it."""
    joined = explore_together(session, observation, found.diagnosed, wanted=found.needs_all)
    if joined.together:
        session.earlier.remember(signature_of(incident_of(session, observation)), joined.diagnosed.incident)
    return exchange_incidents(joined, observation.verdict, session.ranks, writes=session.writes_bundles)


def settle_alone(session: Session, observation: Observation, found: Explored, *, here: bool) -> Diagnosed:
    """What this rank can say without the others."""
    diagnosed, ranks = found.diagnosed, session.ranks
    if found.needs_all:
        diagnosed = explore_graph(session, observation, diagnosed, _NOT_RUN_AGAIN)
    incident = diagnosed.incident
    if not here:
        elsewhere = began_elsewhere(observation.verdict.origin_rank)
        diagnosed = diagnosed.with_incident(replace(incident, notes=(elsewhere,)))
    elif observation.agreed and ranks.kept_apart and incident.op is None and incident.same_as is None:
        notes = (*incident.notes, _KEPT_APART)
        diagnosed = diagnosed.with_incident(replace(incident, origin_rank=None, notes=notes))
    return diagnosed.noting(MAY_DIFFER) if observation.update and ranks.kept_apart else diagnosed


# ---- what this rank finds out by itself


def explore(session: Session, observation: Observation, seen: Diagnosed) -> Explored:
    """Locate and explain, as far as the policy asks for it and the run allows it."""
    known = without_a_replay(session, observation, seen)
    if known is not None:
        return Explored(known)
    earlier, alone, budget = session.earlier, session.alone, budget_of(session)
    if words := earlier.too_long(session.policy.diagnosis):
        return Explored(seen.noting(words))
    signature = signature_of(seen.incident)
    earlier.counts[signature] += 1
    repeated = earlier.counts[signature] > session.policy.diagnosis.repeats and not observation.verdict.contested
    if not alone.possible:
        if repeated and (before := earlier.incidents.get(signature)):
            return Explored(seen.with_incident(not_compared(seen.incident, before[0])))
        return Explored(seen, needs_all=True)
    alone.met_collective = False
    diagnosed, wants_others = seen, False
    try:
        failure = failure_of(session, observation)
        before = earlier.incidents.get(signature, []) if repeated else []
        if twin := find_twin(session, failure, seen.incident, before, budget):
            seen = replace(seen, same_value=is_given_again(session, twin.location))
            return Explored(seen.with_incident(like_twin(session, observation, seen.incident, twin, budget)), ran=True)
        failure, location = locate(failure, budget=budget)
        diagnosed = replace(diagnosed, same_value=is_given_again(session, location))
        if observation.micros:
            began = among_micros(session, Began(observation, failure, location, diagnosed), budget)
            observation, failure, location, diagnosed = began
        diagnosed = placed(session, observation, location, diagnosed)
        location = with_variable(session, failure, location)
        diagnosed, wants_others = explained(session, failure, location, diagnosed, budget)
        diagnosed = with_provenance(session, failure, location, diagnosed, budget)
        diagnosed = with_material(session, observation, failure, location, diagnosed)
    except Exception as error:  # a diagnosis is worth less than the run
        return Explored(_failed(diagnosed, error), ran=True)
    if alone.met_collective:  # the loss gathers something from all ranks
        return Explored(replace(diagnosed, incident=seen.incident, material=None, notes=()), needs_all=True, ran=True)
    earlier.remember(signature, diagnosed.incident)
    repeatable = failure.repeatable and given_bad(location) is None  # what was bad before is not made again
    if words := session.armed.consider(diagnosed.incident, budget, repeatable=repeatable):
        notes = (*diagnosed.incident.notes, words)
        diagnosed = diagnosed.with_incident(replace(diagnosed.incident, notes=notes))
    if session.setup.neighbours is not None:
        session.setup.neighbours.remember_incident(observation.micro, diagnosed.incident)
    causes = diagnosed.incident.causes
    proven = bool(causes) and causes[0].proven
    needs_all = wants_others and not proven and observation.agreed and session.ranks.talking
    return Explored(diagnosed, needs_all, ran=True)


def _failed(diagnosed: Diagnosed, error: Exception) -> Diagnosed:
    """What was found until the diagnosis itself failed."""
    notes = (*diagnosed.incident.notes, failed_in_words("the diagnosis", error))
    return diagnosed.with_incident(replace(diagnosed.incident, notes=notes))


def without_a_replay(session: Session, observation: Observation, seen: Diagnosed) -> Diagnosed | None:
    """The incident where nothing is to be run again: known already, or not wanted. `None` where it is."""
    policy, earlier = session.policy, session.earlier
    if earlier.poisoned_at is not None and finite.any_nonfinite(
        [p.detach() for p in session.protected.members.parameters]
    ):
        words = f"the weights have been non-finite since step {earlier.poisoned_at:,}, which was applied unchanged"
        return seen.with_incident(replace(seen.incident, same_as=earlier.poisoned_at, notes=(words,)))
    if policy.on_incident == "observe" and not observation.harmless and earlier.poisoned_at is None:
        earlier.poisoned_at = session.progress.step
    if policy.diagnose == "off":
        return seen
    neighbours = session.setup.neighbours
    if neighbours is not None and (known := neighbours.known_incident(observation.micro)) is not None:
        words = f"the same loss failed in the incident of step {known.step:,}, which has the diagnosis"
        return seen.with_incident(like_known(seen.incident, known, words))
    return None


class Began(NamedTuple):
    """A failure with its place, and the micro-batch in which it began."""

    observation: Observation
    failure: Failure
    location: Location
    diagnosed: Diagnosed


def among_micros(session: Session, began: Began, budget: Budget) -> Began:
    """Of several micro-batches whose gradients were added up, the one in which it began, by running each again."""
    observation, location = began.observation, began.location
    micros = observation.micros
    located: Micro | None = observation.micro
    read = location.external
    if read is not None and read.kind == "buffer" and read.name in began.failure.bad_buffers:
        session.protected.ledger.restore_buffers()  # finite when the step began: another micro-batch wrote it
        located = None
    for micro in [*([] if located is None else [located]), *(m for m in micros if m is not located)]:
        if micro is not located:
            own = replace(observation, micro=micro, values=micro.values or [])
            failure, location = locate(failure_of(session, own), budget=budget.part(1 / len(micros)))
            if location.op is None:
                continue
            began = Began(own, failure, location, began.diagnosed)
        if location.op is not None:
            number = next(i for i, m in enumerate(micros) if m is micro) + 1
            diagnosed = began.diagnosed.noting(f"it began in micro-batch {number} of {len(micros)}")
            incident = replace(at_position_of(micro, diagnosed.incident), inputs=tuple(inputs_of(micro)))
            return began._replace(diagnosed=diagnosed.with_incident(incident))
    return began


class Twin(NamedTuple):
    """An earlier incident, and the present failure that looks like it."""

    incident: Incident
    failure: Failure
    location: Location


def find_twin(
    session: Session, failure: Failure, incident: Incident, known: Sequence[Incident], budget: Budget
) -> Twin | None:
    """The earlier incident that this one looks like, if there is one.

    The step is run once more to see where it began: phase, module, operation and rank must be the same, and what
    is measured there must point to the same cause. Nothing is tried, which is what a diagnosis takes time for.
    """
    if not known:
        return None
    failure, location = locate(failure, budget=budget, samples=False)
    place = (location.phase, location.module, location.op, location.node, incident.rank)
    here = [k for k in known if (k.phase, k.module, k.op, k.node, k.rank) == place]
    if not here or session.policy.diagnose != "full":
        return Twin(here[0], failure, location) if here else None
    from nantrap.causes import Case, explain_case  # the rules are many: imported by the first failure

    case = Case(failure, location, with_location(incident, location))
    slugs = {cause.slug for cause in explain_case(case).causes} or {""}
    twins = (k for k in here if (k.cause.slug if k.cause is not None else "") in slugs)
    return next((Twin(twin, failure, location) for twin in twins), None)


def is_given_again(session: Session, location: Location) -> bool:
    """Whether a step was given the very value that spoiled the step before it: one fault of the program, not two.

    A batch is new in each step, and one that is not is not told from others: what counts is a tensor beside it.
    """
    external, found, now = location.external, given_bad(location), None
    if found is not None and finite.is_ordinary(found[0]) and (external is None or external.kind != "batch"):
        memory = StorageWeakRef(found[0].untyped_storage())  # its number is not used again while the reference lives
        now = (memory, int(found[0].storage_offset()), found[0].numel())
    before, session.earlier.given = session.earlier.given, now
    return now is not None and now == before and not session.ranks.together


def like_twin(session: Session, observation: Observation, seen: Incident, twin: Twin, budget: Budget) -> Incident:
    """An incident like an earlier one. Its samples are searched where the list of bad samples can name them."""
    before = twin.incident
    words = f"looks like the incident of step {before.step:,} (same place, same evidence): no trials were run"
    incident = like_known(seen, before, words)
    if before.dataset_indices:
        found = find_samples(twin.failure, budget=budget.part(1 / 3))
        incident = replace(incident, samples=found.guilty, dataset_indices=found.dataset_indices)
    return with_run_facts(session, incident, observation)


def placed(session: Session, observation: Observation, location: Location, diagnosed: Diagnosed) -> Diagnosed:
    """The incident with the place where it began."""
    incident = with_run_facts(session, with_location(diagnosed.incident, location), observation)
    avoidable = bool(location.samples.rest_is_finite)
    return replace(diagnosed, incident=incident, worth_a_bundle=True, avoidable=avoidable)


def explained(
    session: Session, failure: Failure, location: Location, diagnosed: Diagnosed, budget: Budget
) -> tuple[Diagnosed, bool]:
    """The incident with its causes, and whether other ranks could try more."""
    if session.policy.diagnose != "full":
        return diagnosed, False
    from nantrap.causes import Case, explain_case, repeated_magnitudes  # many rules: imported by the first failure

    case = Case(failure, location, diagnosed.incident)
    explanation = explain_case(case, budget=budget)
    incident = with_explanation(diagnosed.incident, explanation)
    if (repeated := repeated_magnitudes(case, budget=budget.part(1 / 4))) is not None:
        incident = replace(incident, magnitudes=(repeated, *incident.magnitudes))
    incident = replace(incident, notes=(*case.notes, *incident.notes))
    return diagnosed.with_incident(incident), explanation.wants_others


def with_variable(session: Session, failure: Failure, location: Location) -> Location:
    """The place with a bad value that the program held, where the loss cannot be computed again: what a model gave
    without gradients since the last step, or a variable."""
    shown = location.replay is not None and location.replay.failed
    if shown or failure.repeatable or failure.crew is not None:
        return location
    neighbours = session.setup.neighbours
    if neighbours is not None and (found := neighbours.bad_call())[0]:
        return replace(location, beside=(found[0], f"{found[1]}; {_NOT_SEEN}"))
    links = bad_variable() if given_bad(location) is None else []
    return replace(location, beside=(links[0].value.path, f"{links[0].words}; {_NOT_SEEN}")) if links else location


def with_provenance(
    session: Session, failure: Failure, location: Location, diagnosed: Diagnosed, budget: Budget
) -> Diagnosed:
    """The incident of a step that was given a bad value, with the way on which the value came into it.

    Where one statement of the program made it, the rules are asked about that statement, run again alone.
    """
    if failure.crew is not None:
        return diagnosed
    given = given_bad(location)
    first = diagnosed.incident.causes[0] if diagnosed.incident.causes else None
    unknown = first is None or first.slug == "unknown" or bool(location.beside)
    if given is not None:
        links = trace_back(*given)
    else:
        links = bad_variable() if unknown and not _is_of_call(session, location) else []
    if len(links) == 1 and not links[0].is_assigned:
        links = []
    full = session.policy.diagnose == "full"
    made = None if given is None else made_in_loop(failure, given[0])
    made = made or made_in_loop(failure, failure.loss, operations=False)  # the loss may have been computed again
    if made is None and links and full:
        made = made_again(links[0], failure)
    provenance = made.way[1:] if made is not None and made.way else tuple(link.words for link in links)
    incident = replace(diagnosed.incident, provenance=provenance)
    if links and made is None:
        incident = _by_its_first_name(incident, links[0], links[-1])
    if made is None or not full:
        return diagnosed.with_incident(incident)
    return diagnosed.with_incident(_of_remade(made, incident, budget))


def _is_of_call(session: Session, location: Location) -> bool:
    neighbours = session.setup.neighbours
    return bool(location.beside) and neighbours is not None and bool(neighbours.bad_call()[0])


def with_statement(session: Session, failure: Failure, diagnosed: Diagnosed, link: Link, budget: Budget) -> Diagnosed:
    """The incident of a bad value that one statement made: the rules are asked about it, run again alone."""
    made = made_again(link, failure) if session.policy.diagnose == "full" else None
    return diagnosed if made is None else diagnosed.with_incident(_of_remade(made, diagnosed.incident, budget))


def _of_remade(made: Remade, incident: Incident, budget: Budget) -> Incident:
    """The incident with what the rules say of the part that made the value."""
    from nantrap.causes import Case, explain_case

    place = location_of(made.replay, fallback="forward")
    if made.entered is not None:
        place = replace(place, constant=(made.way[0], made.entered), entered=made.way)
    explanation = explain_case(Case(made.failure, place, incident), budget=budget.part(1 / 2))
    if explanation.causes and explanation.causes[0].slug != "unknown":
        causes = tuple(of_statement(cause, number=len(incident.trials)) for cause in explanation.causes)
        trials = tuple(replace(trial, number=trial.number + len(incident.trials)) for trial in explanation.trials)
        entered = made.entered is not None
        incident = replace(
            incident,
            phase="data" if entered else "forward", module="data" if entered else "loss",
            op=place.op, node=None, source=place.source,
            causes=(*causes, *(cause for cause in incident.causes if cause.slug != "unknown")),
            trials=(*incident.trials, *trials),
            controls=incident.controls or explanation.controls,
            notes=(*incident.notes, *([made.note] if made.note else [])),
        )  # fmt: skip
    return incident


def _by_its_first_name(incident: Incident, first: Link, last: Link) -> Incident:
    """The incident of a bad tensor of the step; its cause names the value that was bad first, if a function gave it."""
    cause, came = incident.causes[0] if incident.causes else None, first.by or first.from_loop
    if cause is None or cause.slug != "bad_input_data" or not came:
        return incident
    if first.variable == last.variable and first.variable in cause.summary:
        return incident
    fix = cause.fix
    if fix is not None and not fix.verified:
        fix = replace(fix, text=f"fix {first.variable} where it is assigned: {first.place}{came}", others=())
    words = f"{cause.summary}, first in {first.value.path}"
    return replace(incident, causes=(replace(cause, summary=words, fix=fix), *incident.causes[1:]))


def with_material(
    session: Session, observation: Observation, failure: Failure, location: Location, diagnosed: Diagnosed
) -> Diagnosed:
    """The incident with what a bundle needs to run the step again, where the policy keeps that."""
    policy = session.policy
    if session.setup.run_dir is None or policy.bundle.kind != "full":
        return diagnosed
    micro, batch = observation.micro, None
    if micro.forward is not None:
        batch = failure.batch if failure.repeatable else None
    elif micro.root_call is not None and micro.root_call.origin is not None:
        batch = micro.root_call.origin.whole()
    material, note = material_of(
        failure,
        location,
        data=policy.bundle.data,
        batch=batch,
        limit_bytes=policy.bundle.max_bytes,
    )
    return replace(diagnosed, material=material).noting(*([note] if note else []))


# ---- steps that ended otherwise


def diagnose_exception(session: Session, micro: Micro, error: Exception) -> Diagnosed | None:
    """The incident of a step that an exception ended; `None` if nothing non-finite led to the exception."""
    observation = Observation(micro, [], 0.0, (), {}, session.ranks.own_fault, raised=True)
    diagnosed = Diagnosed(incident_of(session, observation))
    failure = failure_of(session, observation)
    try:
        budget = budget_of(session)
        failure, location = locate(failure, budget=budget)
    except Exception:  # a failing diagnosis must not hide the exception itself
        return None
    if location.op is None and location.phase not in ("data", "state"):
        return None
    session.recorder.begin_incident(diagnosed.incident)
    try:
        diagnosed = placed(session, observation, location, diagnosed)
        diagnosed, _ = explained(session, failure, location, diagnosed, budget)
        diagnosed = with_material(session, observation, failure, location, diagnosed)
    except Exception as trouble:
        diagnosed = diagnosed.noting(failed_in_words("the diagnosis", trouble))
    text = f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"
    incident = diagnosed.incident
    others = tuple(note for note in incident.notes if text not in note)  # the replay ended with it, too
    return diagnosed.with_incident(replace(incident, notes=(f"the step ended with {text}", *others)))


def finite_at_scale_one(session: Session, micro: Micro) -> bool:
    """Whether a micro-batch whose scaled gradients overflowed has finite ones without the scale."""
    failure = failure_of(session, Observation(micro, micro.values or [], math.nan, (), {}, Verdict()))
    if not failure.repeatable or failure.forward is None:
        return True
    try:
        with failure.rewound():
            failure.backward(failure.forward(failure.batch))
            return not finite.any_nonfinite([p.grad for p in failure.parameters.values()])
    except Exception:  # a function that cannot be run again proves nothing
        return True
