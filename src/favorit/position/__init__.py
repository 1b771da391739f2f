"""Position encodings: absolute ones of tokens, rotations and gates of queries and keys, and sums of them."""

from favorit.position import absolute, gates, rotary  # noqa: F401
from favorit.position.base import POSITIONS, Absolute, Position, Relative, acts_on_qk, build_position

__all__ = ["POSITIONS", "Absolute", "Position", "Relative", "acts_on_qk", "build_position"]
