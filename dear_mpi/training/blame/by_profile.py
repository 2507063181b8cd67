"""What layers usually take, from the profile of another run of the same model, with as many examples on a rank."""

from collections.abc import Mapping
from typing import Any

from dear_mpi.reporting.units import plural
from dear_mpi.training.blame.causes import Usual, layer_of
from dear_mpi.training.log.spans import COMPUTE, Run
from dear_mpi.training.profiles.profile import Profile


def usual_of(profile: Profile) -> Usual:
    """Seconds of the layers of a profile, in both passes."""
    found = Usual()
    for use in profile.uses:
        for passed, seconds in (("forward", use.forward_s), ("backward", use.backward_s)):
            found[passed, use.name] = found.get((passed, use.name), 0.0) + seconds
    return found


def check_fits(profile: Profile, run: Run, facts: Mapping[str, Any]) -> None:
    """ValueError if a profile is of another model than a run, or of more or fewer examples on a rank, as far as the
    facts of the run's timeline say; or of other layers."""
    model, batch = facts.get("model", profile.model), facts.get("batch", profile.batch)
    alike = batch is None or profile.batch is None or batch * profile.ranks == profile.batch * run.size
    if model != profile.model or not alike:
        known = f", batch {facts['batch']}" if "batch" in facts else ""
        raise ValueError(f"is a {profile}, and the run is of {model}, {plural(run.size, 'rank')}{known}")
    ran, measured = layers_in(run), {use.name for use in profile.uses}
    if lacking := ran ^ measured:
        whose = "the run has" if min(lacking) in ran else "the profile has"
        raise ValueError(f"is a {profile}, of other layers than the run: only {whose} {min(lacking)!r}")


def layers_in(run: Run) -> set[str]:
    spans = (span for rank in run.ranks for span in rank.spans if span.lane == COMPUTE)
    return {of[1] for span in spans if (of := layer_of(span.name))}
