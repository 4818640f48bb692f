#!/usr/bin/env python3
"""Holds a role and writes under its fencing token. It goes on when the cluster's leader fails.

Usage: leader.py ROLE WRITES. Needs only Python's standard library.
Environment: NORTHSTAR_ENDPOINTS (host:port,...), NORTHSTAR_TOKEN, NORTHSTAR_CA.
Exit codes: 0 done, 1 no answer in time, 3 the role is lost.
"""
import json
import os
import ssl
import sys
import time
import urllib.error
import urllib.request

TTL = 10.0  # seconds


class Refused(Exception):
    """The cluster's answer is an error that another try does not change."""

    def __init__(self, status, problem):
        self.code = problem.get("code")
        super().__init__(f"{problem.get('code', status)} {problem.get('name', '')}: {problem.get('detail', '')}")


class Client:
    def __init__(self):
        default = "127.0.0.1:7701,127.0.0.1:7703,127.0.0.1:7705"
        self.endpoints = (os.environ.get("NORTHSTAR_ENDPOINTS") or default).split(",")
        ca = os.environ.get("NORTHSTAR_CA")
        self.scheme = "https" if ca else "http"
        self.tls = ssl.create_default_context(cafile=ca) if ca else None
        self.token = os.environ.get("NORTHSTAR_TOKEN")

    def call(self, method, path, body=None, headers=None, timeout=30):
        """One request to any node that answers.

        A node that is gone, or that knows no leader yet, is followed by the next one. A write is safe to repeat: it
        carries an idempotency key.
        """
        headers, data = dict(headers or {}), body  # bytes are the value of a key
        if isinstance(body, dict):
            data = json.dumps(body).encode()
            headers["Content-Type"] = "application/json"
        if self.token:
            headers["Authorization"] = "Bearer " + self.token
        end = time.monotonic() + timeout
        while time.monotonic() < end:
            endpoint = self.endpoints[0]
            request = urllib.request.Request(f"{self.scheme}://{endpoint}{path}", data, headers, method=method)
            try:
                with urllib.request.urlopen(request, timeout=20, context=self.tls) as response:
                    text = response.read()
                    return json.loads(text) if text else {}
            except urllib.error.HTTPError as e:
                if e.code not in (429, 502, 503, 504):
                    raise Refused(e.code, json.loads(e.read() or "{}")) from e
            except OSError:
                pass  # refused, reset or timed out
            self.endpoints.append(self.endpoints.pop(0))
            time.sleep(0.1)
        sys.exit("no node answers")


class Tenure:
    """A role that this process holds."""

    def __init__(self, client, role):
        self.client, self.role = client, role
        wanted = {"name": f"python-{os.getpid()}", "ttl_ms": int(TTL * 1000)}
        self.session = client.call("POST", "/v1/sessions", wanted)["session_id"]
        self.token = self.campaign()
        self.renew()

    def campaign(self):
        """Waits for the role. The session must not end meanwhile."""
        body = {"session_id": self.session, "value": "python", "wait_ms": 3000}
        while True:
            try:
                return self.client.call("POST", f"/v1/roles/{self.role}/campaign", body)["token"]
            except Refused as e:
                if e.code != 4013:  # another session holds it
                    raise
            self.renew()

    def renew(self):
        """Renews the session, and notes when the renewal that was answered was sent."""
        sent = time.monotonic()
        self.client.call("POST", f"/v1/sessions/{self.session}/renew", timeout=TTL)
        self.renewed = sent

    def check(self):
        """Renews after a third of the TTL, and refuses to act when that did not succeed in time."""
        if time.monotonic() - self.renewed > TTL / 3:
            self.renew()
        # The holder's own deadline ends before the cluster gives the role away. The fencing token protects even a
        # holder that was stopped after this line.
        if time.monotonic() - self.renewed > TTL * 0.9:
            raise Refused(0, {"detail": "too late to act"})

    def write(self, i):
        headers = {"X-Northstar-Fence": f"{self.role}={self.token}", "Idempotency-Key": f"{self.session}-{i}"}
        return self.client.call("PUT", f"/v1/kv/examples/{self.role}/{i}", str(i).encode(), headers)["revision"]

    def resign(self):
        self.client.call("DELETE", f"/v1/roles/{self.role}?session_id={self.session}")
        self.client.call("DELETE", f"/v1/sessions/{self.session}")


def main():
    role, writes = sys.argv[1], int(sys.argv[2])
    client = Client()
    leader = client.call("GET", "/leader")
    print(f"leader {leader['leader_id']} at {leader['leader_address']}", flush=True)
    try:
        tenure = Tenure(client, role)
        print(f"role {role} token {tenure.token}", flush=True)
        for i in range(1, writes + 1):
            tenure.check()
            print(f"write {i} revision {tenure.write(i)}", flush=True)
            time.sleep(0.05)
        tenure.resign()
    except Refused as e:
        print(e, file=sys.stderr)
        sys.exit(3)
    print("resigned", flush=True)


main()
