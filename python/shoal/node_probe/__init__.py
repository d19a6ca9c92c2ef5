"""Asks each node of a job what it is: its environment, its interpreters, its hardware."""
