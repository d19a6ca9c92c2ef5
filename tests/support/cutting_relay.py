"""`CuttingRelay`: a relay between a client and a server of the lane that cuts their connections.

`VanishingRelay` cuts all of them at once, as a node that vanishes.
"""

import contextlib
import random
import select
import socket
import struct
import threading


class CuttingRelay:
    """Listens on this machine, passes bytes on, and cuts each connection after a random number of them.

    Args:
        target: IP address and port of the server.
        most: Maximum number of bytes before a cut.
        seed: Makes the numbers.

    Attributes:
        address: Where it listens.
        cuts: Number of cuts so far.
    """

    def __init__(self, target, most, seed):
        self._target, self._most = target, most
        self._random = random.Random(seed)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = self._listener.getsockname()
        self.cuts = 0
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._most = 0
        for thread in self._threads:
            thread.join()

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                thread = threading.Thread(target=self._pass_on, args=(client,))
                self._threads.append(thread)
                thread.start()

    @property
    def _passes(self):
        return self._most > 0

    def _pass_on(self, client):
        left = self._random.randint(1, self._most)
        with client, contextlib.suppress(OSError), socket.create_connection(self._target) as server:
            ends = {client: server, server: client}
            for end in ends:
                # It ends at once, without the bytes on their way.
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            while self._passes:
                readable, _, _ = select.select(list(ends), [], [], 0.05)
                for end in readable:
                    data = end.recv(min(left, 2**16))
                    if not data:
                        return
                    ends[end].sendall(data)
                    left -= len(data)
                    if left == 0:
                        self.cuts += 1
                        return


class VanishingRelay(CuttingRelay):
    """A relay that can vanish: then it cuts all connections, and is silent on new ones.

    Args:
        target: IP address and port of the server.
    """

    def __init__(self, target):
        self._is_here = threading.Event()
        self._is_here.set()
        super().__init__(target, 2**60, 0)

    def vanish(self):
        self._is_here.clear()

    def come_back(self):
        self._is_here.set()

    @property
    def _passes(self):
        return self._most > 0 and self._is_here.is_set()

    def _pass_on(self, client):
        with client:
            while not self._is_here.wait(0.05):
                if not self._most:
                    return
            super()._pass_on(client)
