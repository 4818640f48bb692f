package api

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"testing"
	"time"

	"northstar/api/apiv1"
	"northstar/api/token"
)

// TestRejectedBodyIsDrained: a client that sends all of its body before it reads,
// and wants the connection closed, gets the refusal and not a broken pipe.
func TestRejectedBodyIsDrained(t *testing.T) {
	t.Parallel()
	file, tokens := tokenFile()
	n := startServer(t, newFakeCluster("n1", true), func(d *Deps) {
		d.Tokens = func() ([]byte, error) { return file, nil }
	})
	bearer := "Authorization: Bearer " + tokens[token.Client] + "\r\n"
	for name, tc := range map[string]struct {
		path, headers string
		status        int
	}{
		"too large":      {"/v1/kv/k", bearer, 413},
		"no token":       {"/v1/kv/k", "", 401},
		"no such path":   {"/nowhere", "", 404},
		"wrong encoding": {"/v1/kv/k", bearer + "Content-Encoding: gzip\r\n", 415},
	} {
		t.Run(name, func(t *testing.T) {
			c, err := net.Dial("tcp", n.addr)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			const size = 12 << 20 // more than the sockets' buffers hold
			head := fmt.Sprintf(
				"PUT %s HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n%sContent-Length: %d\r\n\r\n", tc.path,
				tc.headers, size)
			if _, err := io.WriteString(c, head); err != nil {
				t.Fatal(err)
			}
			if _, err := c.Write(bytes.Repeat([]byte("x"), size)); err != nil {
				t.Fatalf("sending the body: %v", err)
			}
			resp, err := http.ReadResponse(bufio.NewReader(c), nil)
			if err != nil {
				t.Fatal(err)
			}
			body, err := io.ReadAll(resp.Body)
			var p apiv1.Problem
			if err != nil || json.Unmarshal(body, &p) != nil || resp.StatusCode != tc.status || p.Status != tc.status ||
				!resp.Close {
				t.Errorf("%s, close %v: %s (%v)", resp.Status, resp.Close, body, err)
			}
		})
	}
}

// A rejection is sent immediately, however slowly the body arrives. The server stops reading a body that never
// ends.
func TestRejection_BeforeBodyIsRead(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n := startServer(t, newFakeCluster("n1", true))
		c, err := dialMemory(t.Context(), n.addr)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if _, err := fmt.Fprintf(c, "PUT /v1/kv/k HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: %d\r\n\r\nabc",
			4<<20); err != nil {
			t.Fatal(err)
		}
		r := bufio.NewReader(c)
		resp, err := http.ReadResponse(r, nil)
		if err != nil || resp.StatusCode != 413 {
			t.Fatalf("%v %v", resp, err)
		}
		if _, err := io.Copy(io.Discard, resp.Body); err != nil {
			t.Fatal(err)
		}
		if err := c.SetReadDeadline(time.Now().Add(30 * time.Second)); err != nil {
			t.Fatal(err)
		}
		if _, err := r.ReadByte(); err == nil || isTimeout(err) {
			t.Errorf("the connection stays: %v", err)
		}
	})
}

func isTimeout(err error) bool {
	ne, ok := err.(net.Error)
	return ok && ne.Timeout()
}
