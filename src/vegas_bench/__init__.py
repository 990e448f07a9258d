"""The workbench: workloads, measurements, results, reports, tuning. It imports `vegas_spec`, never the other way."""
