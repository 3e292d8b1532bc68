"""The incidents of a run by cause and place: what a reader of many incidents wants to see first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from nantrap.incident import BY_SLUG, Incident
from nantrap.incident.wording import place_text
from nantrap.record import Event
from nantrap.report import wording as words
from nantrap.report.incident_rows import Verdict, verdict_of


@dataclass(frozen=True, slots=True)
class Group:
    """Incidents with one cause at one place."""

    number: int
    code: str
    title: str
    verdict: Verdict
    place: str
    steps: tuple[int, ...]
    did: str
    fix: str
    verified: bool
    folder: str
    folder_step: int | None

    @property
    def span(self) -> str:
        """`590 to 19,942`."""
        first, last = self.steps[0], self.steps[-1]
        return f"{first:,}" if first == last else f"{first:,} to {last:,}"


def groups_of(events: Sequence[Event], incidents: Mapping[str, Incident]) -> tuple[Group, ...]:
    """Incidents by cause, phase and module, the most frequent first.

    The journal knows all of them, the folders only those with a bundle; the folder with trials is shown for its group.
    """
    groups: dict[tuple[str | None, ...], list[Event]] = {}
    for event in events:
        if event.phase is not None or event.cause is not None or event.action != "apply":
            groups.setdefault((event.cause, event.phase, event.module), []).append(event)
    folders: dict[tuple[str | None, ...], tuple[str, Incident]] = {}
    for name, incident in sorted(incidents.items()):
        slug = incident.causes[0].slug if incident.causes else None
        key = (slug, incident.phase, incident.module)
        kept = folders.get(key)
        if kept is None or (not kept[1].trials and incident.trials):
            folders[key] = (name, incident)
        groups.setdefault(key, [Event(incident.step, -1, incident.action.value, slug, incident.phase, incident.module)])
    ordered = sorted(groups.items(), key=lambda item: (-len(item[1]), item[1][0].step))
    return tuple(_group(number, key, found, folders.get(key)) for number, (key, found) in enumerate(ordered, start=1))


def _group(
    number: int, key: tuple[str | None, ...], found: Sequence[Event], folder: tuple[str, Incident] | None
) -> Group:
    """One group of incidents, with what the incident in `folder` knows about its cause and fix."""
    slug, phase, module = key
    incident = folder[1] if folder is not None else None
    cause = incident.causes[0] if incident is not None and incident.causes else None
    entry = BY_SLUG.get(slug or "unknown") or BY_SLUG["unknown"]
    source = incident.source if incident is not None else None
    places = [place_text(source.file.rpartition("/")[2], source.line)] if source is not None else []
    if module:
        places.append(f"in {module}")
    if not places and phase:
        places.append(phase)
    done = {
        action: sum(1 for event in found if event.action == action) for action in ("skip", "rollback", "stop", "apply")
    }
    did = ", ".join(f"{number_:,} {words.VERBS[action]}" for action, number_ in done.items() if number_)
    title = entry.title if cause is None or cause.slug != "unknown" else cause.summary or entry.title
    if cause is None and slug is None:
        title = "not applied, not diagnosed" if incident is None else words.what(incident)
    return Group(
        number=number,
        code=cause.code if cause is not None else entry.code,
        title=title,
        verdict=verdict_of(cause),
        place=" ".join(places),
        steps=tuple(event.step for event in found),
        did=did,
        fix=cause.fix.text if cause is not None and cause.fix is not None else "",
        verified=bool(cause and cause.fix and cause.fix.verified),
        folder=folder[0] if folder is not None else "",
        folder_step=incident.step if incident is not None else None,
    )
