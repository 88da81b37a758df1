"""What a run shows when it is over: a table, two pictures and one HTML page, all made from a `RunResult` alone."""
