"""Queues between processes of one host, in shared memory."""
