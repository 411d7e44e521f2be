"""From the IR to files: render, format, stamp, then write or compare."""
