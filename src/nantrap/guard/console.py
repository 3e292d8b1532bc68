"""What the guard says: one line a skip, the diagnostic once, a summary at the end. Words go to standard error."""

from __future__ import annotations

from nantrap.guard.ladder import Tally
from nantrap.incident import Action, Incident
from nantrap.report import one_line, render_incident, write_line


class Console:
    """Prints, unless it is quiet. Of several ranks the first one speaks, and the one where an incident began."""

    def __init__(self, *, quiet: bool, rank: int = 0) -> None:
        self.quiet = quiet
        self._rank = rank

    def say(self, text: str) -> None:
        """One line of the guard's own."""
        if not self.quiet and self._rank == 0:
            write_line(f"nantrap: {text}")

    def incident(self, incident: Incident, reason: str) -> None:
        """The line of an incident and, unless it was seen before, its diagnostic."""
        if self.quiet or self._rank not in (0, incident.rank):
            return
        write_line(f"nantrap: {one_line(incident, reason)}")
        if incident.same_as is None and (incident.op or incident.causes):
            write_line(render_incident(incident, color=None))


def summary_text(tally: Tally, *, run_dir: str | None = None) -> str:
    """The end of a run in a few lines: what was applied, what was skipped and why."""
    share = 100.0 * tally.applied / tally.attempted if tally.attempted else 100.0
    lines = [f"{tally.attempted:,} steps, {tally.applied:,} applied ({share:.1f} %)"]
    skipped = tally.attempted - tally.applied - tally.scaler_probes
    if tally.incidents:
        counts = ((tally.incidents, "incident"), (skipped, "skipped step"), (tally.rollbacks, "rollback"))
        lines.append(", ".join(f"{count:,} {noun}{'' if count == 1 else 's'}" for count, noun in counts))
        for slug, count in tally.causes.most_common():
            lines.append(f"  {count:,} × {slug}")
    if tally.dropped_micro_batches:
        lines.append(f"{tally.dropped_micro_batches:,} micro-batches dropped")
    if tally.scaler_probes:
        lines.append(f"{tally.scaler_probes:,} steps skipped by the GradScaler while it searched its scale (normal)")
    if tally.spikes:
        lines.append(f"{tally.spikes:,} spikes of loss or gradient norm")
    if run_dir is not None:
        lines.append(f"journal: {run_dir}")
    return "\n".join(lines)


def stop_message(incident: Incident, reason: str) -> str:
    """The text of `NonFiniteError`: what happened, where, what was done, what to do."""
    done = {
        Action.STOP: "The step was not applied; parameters, optimizer state and buffers are as before it.",
    }.get(incident.action, "")
    cause = incident.causes[0] if incident.causes else None
    help_line = f"\nhelp: {cause.fix.text}" if cause and cause.fix else ""
    return f"{one_line(incident, reason)}\n{done}{help_line}"
