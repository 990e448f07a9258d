"""Reports that people look at: result files as one self-contained HTML page, and its plots as files."""
