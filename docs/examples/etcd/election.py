#!/usr/bin/env python3
"""Holds a lock by the etcd API, and writes while it does. It goes on when the cluster's leader fails.

Usage: election.py NAME WRITES. Needs python-etcd3 (Debian: python3-etcd3).
Environment: ETCDCTL_ENDPOINTS (host:port,... with IP addresses).
Exit codes: 0 done, 1 no answer in time, 3 the lock is lost.
"""
import os
import sys
import threading
import time

import etcd3
from etcd3.exceptions import ConnectionFailedError, ConnectionTimeoutError, Etcd3Exception

TTL = 10  # seconds


def connect():
    """Returns a client of all nodes. gRPC takes a list of IP addresses as one target, and leaves a node that is gone."""
    nodes = os.environ.get("ETCDCTL_ENDPOINTS") or "127.0.0.1:2379,127.0.0.1:2380,127.0.0.1:2381"
    host, _, port = nodes.rpartition(":")
    return etcd3.client(host="ipv4:" + host, port=int(port), timeout=5)


def again(call, *args, **kwargs):
    """Repeats a call until a node answers. The attempts before may have been executed, so it must be safe to repeat."""
    end = time.monotonic() + 30
    while time.monotonic() < end:
        try:
            return call(*args, **kwargs)
        except (ConnectionFailedError, ConnectionTimeoutError):
            time.sleep(0.1)
    sys.exit("no node answers")


class Lost(Exception):
    """The lock is another's, or may be."""


class Tenure:
    """A lock that this process holds."""

    def __init__(self, client, name):
        self.client, self.prefix = client, f"examples/{name}/"
        self.lock = client.lock(name, ttl=TTL)
        self.renewed = time.monotonic()
        while not again(self.lock.acquire, timeout=TTL):  # another holds it
            self.renewed = time.monotonic()
        self.token = again(client.get, self.lock.key)[1].create_revision  # the fencing token

    def check(self):
        """Renews after a third of the TTL, and refuses to act when that did not succeed in time."""
        sent = time.monotonic()
        if sent - self.renewed > TTL / 3:
            if again(self.lock.refresh)[0].TTL == 0:
                raise Lost("the lease has ended")
            self.renewed = sent
        # The token protects even a holder that was stopped after this line.
        if time.monotonic() - self.renewed > TTL * 0.9:
            raise Lost("too late to act")

    def write(self, i):
        """Writes under the token and returns the revision. A write that is repeated happens once: the key then has a
        revision after the token's."""
        t, key = self.client.transactions, f"{self.prefix}{i}"
        succeeded, answers = again(
            self.client.transaction,
            compare=[t.create(self.lock.key) == self.token, t.mod(key) < self.token],
            success=[t.put(key, str(i))],
            failure=[t.get(self.lock.key), t.get(key)],
        )
        if succeeded:
            return answers[0].response_put.header.revision
        held, written = answers
        if not held or held[0][1].create_revision != self.token:
            raise Lost("another holds the lock")
        return written[0][1].mod_revision

    def resign(self):
        again(self.lock.lease.revoke)  # deletes the lock


def follow(client, prefix, revision, count, seen):
    """Notes each change below a prefix, once and in order. A watch that has ended is begun again after its last event."""
    while len(seen) < count:
        try:
            events, cancel = client.watch_prefix(prefix, start_revision=revision)
            for event in events:
                seen.append((event.value.decode(), event.mod_revision))
                revision = event.mod_revision + 1
                if len(seen) == count:
                    cancel()
        except Etcd3Exception:
            time.sleep(0.1)


def main():
    name, writes = sys.argv[1], int(sys.argv[2])
    client = connect()
    try:
        tenure = Tenure(client, name)
        print(f"lock {name} token {tenure.token}", flush=True)
        seen = []
        watching = threading.Thread(
            target=follow, args=(client, tenure.prefix, tenure.token, writes, seen), daemon=True
        )
        watching.start()
        for i in range(1, writes + 1):
            tenure.check()
            print(f"write {i} revision {tenure.write(i)}", flush=True)
            time.sleep(0.05)
        watching.join(30)
        for value, revision in seen:
            print(f"seen {value} revision {revision}")
        tenure.resign()
    except Lost as e:
        print(e, file=sys.stderr)
        sys.exit(3)
    print("resigned", flush=True)
    os._exit(0)  # the library does not end the thread of its watches, and the interpreter may wait for it


main()
