"""Questions asked of scored records: bias, calibration, juries, ablations."""
