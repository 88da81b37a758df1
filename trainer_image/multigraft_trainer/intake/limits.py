"""Limits on what intake reads; beyond them a file, a row or a template is refused rather than tried."""

from __future__ import annotations

# A sample of the longest maxSeqLength (2**20 tokens) at six bytes a token, as JSON escapes cost, and room to be cut.
MAX_ROW_BYTES = 32 * 2**20
# json.loads stops at Python's recursion limit (1000), and templates serialise what it read; tool schemas need < 20.
MAX_JSON_DEPTH = 64
# Rows are accounted for one by one in memory; ten million tokenised rows of 100 tokens are 4 GB already.
MAX_ROWS = 10_000_000
# Text that a compressed file may unfold to, and the ratio beyond which that is a bomb: gzip's own limit is 1032,
# JSON lines of one repeated row reach 200.
MAX_UNPACKED_BYTES = 16 * 2**30
MAX_GZIP_RATIO = 500
GZIP_RATIO_FLOOR_BYTES = 64 * 2**20

# A conversation is rendered twice per answer to find where it begins and ends: time grows with turns times characters.
MAX_MESSAGES = 2048
MAX_RENDERED_CHARS = 2**31

# Published chat templates stay below 32 KiB; compiling grows faster than the source.
MAX_TEMPLATE_BYTES = 256 * 2**10
# One render takes below a millisecond. CPU seconds stop endless loops however busy the machine is; the wall clock is
# for what burns no CPU.
MAX_RENDER_CPU_SECONDS = 3
MAX_RENDER_WALL_SECONDS = 30.0
# The interpreter with jinja2 maps 0.1 GiB; a row of MAX_ROW_BYTES needs about ten times its size.
MAX_RENDER_MEMORY_BYTES = 2 * 2**30
MAX_RENDER_CHARS = 2 * MAX_ROW_BYTES

# Refusals go into a condition of the job and into logs.
MAX_MESSAGE_CHARS = 480
