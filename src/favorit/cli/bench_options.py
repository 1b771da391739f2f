"""Help texts that several benchmarks share."""

REPEATS_HELP = "Timed rounds, interleaved. Undecided ratios are measured in up to 3 times as many (at least 6)."
