"""What several commands do with their arguments: find the profile that a trajectory needs."""

from __future__ import annotations

from collections.abc import Callable

from coa.errors import ProfileError
from coa.trajectory import Profile, Trajectory, load_profile
from coa.trajectory.profile import with_added


def profile_finder(chosen: str | None) -> Callable[[Trajectory], Profile]:
    """The profile chosen on the command line for all, or the one that each trajectory names."""
    if chosen is not None:
        profile = load_profile(chosen)
        return lambda trajectory: with_added(profile, trajectory.meta)

    def find(trajectory: Trajectory) -> Profile:
        try:
            return with_added(load_profile(trajectory.profile), trajectory.meta)
        except ProfileError as error:
            raise ProfileError(
                f"the trajectory of task {trajectory.task.id!r} was made with the profile {trajectory.profile!r}, "
                "which is not a shipped one",
                hint="add --profile FILE.toml",
            ) from error

    return find
