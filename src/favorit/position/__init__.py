"""Position encodings: vectors added to tokens, rotations and gates applied to queries and keys, and sums of these."""

from favorit.position import absolute, gates, rotary  # noqa: F401
from favorit.position.base import POSITIONS, Absolute, Position, QueryKeyPosition, acts_on_qk, build_position

__all__ = ["POSITIONS", "Absolute", "Position", "QueryKeyPosition", "acts_on_qk", "build_position"]
