"""Wrong keys are slowed, so that a key can't be found by trying.

Who may try is counted by address. After ``BURST`` wrong keys an address has ``A_MINUTE`` tries a minute, and all
addresses together have ``ALL_A_SECOND`` a second. Beyond that a key is refused without being compared. A delay would
not help: a guesser need not wait for the answer. Keys that were right from an address before are compared in any case,
so that others behind the same address are not harmed; a right key that is new there may wait for the next try.
"""

from __future__ import annotations

import ipaddress
import time
from collections import OrderedDict
from collections.abc import Callable
from functools import lru_cache

from trnrt.serve.hosting.clients import Allowance

BURST, A_MINUTE = 5, 5
ALL_BURST, ALL_A_SECOND = 200, 10
MOST_ADDRESSES = 4096
MOST_PROVEN = 16_384
_PREFIX = 64
"""An owner of one IPv6 address has the others of its network, too."""


class Guesses:
    """The wrong keys of late, and the right ones, by address; both tables are bounded. Call it on the event loop."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._all = Allowance(ALL_A_SECOND, ALL_BURST, clock)
        self._addresses: OrderedDict[str, Allowance] = OrderedDict()
        self._proven: OrderedDict[tuple[str, bytes], None] = OrderedDict()

    def wait_s(self, address: str, key: bytes) -> float:
        """Seconds until a key from this address is compared; 0 if it is now. ``key``: any hash of it."""
        network = network_of(address)
        if (network, key) in self._proven:
            return 0.0
        known = self._addresses.get(network)
        return max(self._all.wait_s(), 0.0 if known is None else known.wait_s())

    def note_right(self, address: str, key: bytes) -> None:
        """The key is right: from this address it is compared in any case from now on."""
        pair = network_of(address), key
        if pair in self._proven:
            self._proven.move_to_end(pair)
            return
        self._proven[pair] = None
        if len(self._proven) > MOST_PROVEN:
            self._proven.popitem(last=False)

    def note_wrong(self, address: str, key: bytes) -> bool:
        """The key is wrong: it costs a try. True if it was the address's last one for now."""
        network = network_of(address)
        self._proven.pop((network, key), None)
        known = self._addresses.get(network)
        if known is None:
            known = self._addresses[network] = Allowance(A_MINUTE / 60, BURST, self._clock)
            if len(self._addresses) > MOST_ADDRESSES:
                self._addresses.popitem(last=False)
        self._addresses.move_to_end(network)
        known.take()
        self._all.take()
        return known.wait_s() > 0


@lru_cache(maxsize=MOST_ADDRESSES)
def network_of(address: str) -> str:
    """The network that counts as one sender: an IPv4 address, or an IPv6 address's /64; other texts as they are."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(found, ipaddress.IPv4Address):
        return str(found)
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(ipaddress.ip_network((found, _PREFIX), strict=False))
