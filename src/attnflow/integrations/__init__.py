"""attnflow's methods in other tools. Each module is imported by its full name."""
