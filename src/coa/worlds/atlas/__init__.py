"""atlas: invented cities, people and firms, their pages, and questions of one to three hops about them."""

from coa.worlds.atlas.entities import Sizes
from coa.worlds.atlas.world import Atlas

__all__ = ["Atlas", "Sizes"]
