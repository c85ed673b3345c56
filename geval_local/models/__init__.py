"""Models on this machine: which there are, how they are loaded and checked, and their read-out head."""
