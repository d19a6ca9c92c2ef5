"""How messages move between two processes by way of Ray actors.

A host (`queue_host`) is an asyncio actor that holds keyed queues (`queues`) of encoded messages
(`codec`, `wire`). A channel is one host, or one a node; point to point uses one host a node, the
mailbox (`mailbox`). Clients (`client`) ask hosts, in the caller's thread or on one event loop
that the process keeps for it (`loop`). Messages belong to the host from the moment a put
returns: its producer may die.
"""
