"""Human ratings and other people's files."""
