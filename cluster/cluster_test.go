package cluster

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"
)

func TestParseNodeID(t *testing.T) {
	for _, ok := range []string{"n1", "a", "0", "db.eu-1_a", strings.Repeat("x", 63)} {
		if id, err := ParseNodeID(ok); err != nil || string(id) != ok {
			t.Errorf("%q: %v", ok, err)
		}
	}
	for _, bad := range []string{"", "N1", "-a", ".a", "a b", "a/b", "é", strings.Repeat("x", 64), "a\n"} {
		if _, err := ParseNodeID(bad); err == nil {
			t.Errorf("%q: accepted", bad)
		} else if !strings.Contains(err.Error(), fmt.Sprintf("%q", bad)) {
			t.Errorf("%q: the error does not show the value: %v", bad, err)
		}
	}
}

func TestEveryCodeIsDescribed(t *testing.T) {
	names := map[string]Code{}
	for c := range codes {
		if !strings.HasPrefix(c.Name(), "ERR_") || c.Title() == "" || c.Status() < 400 {
			t.Errorf("%d: name %q, title %q, status %d", c, c.Name(), c.Title(), c.Status())
		}
		if other, dup := names[c.Name()]; dup {
			t.Errorf("%d and %d share the name %s", c, other, c.Name())
		}
		names[c.Name()] = c
	}
}

func TestError(t *testing.T) {
	err := error(Errorf(CodeNoLeader, "no leader for %s: %w", 600*time.Millisecond, io.EOF))
	if !IsCode(fmt.Errorf("put: %w", err), CodeNoLeader) || IsCode(err, CodeBusy) || IsCode(io.EOF, CodeBusy) {
		t.Error("IsCode does not see through wrapping")
	}
	if !errors.Is(err, io.EOF) {
		t.Error("the cause is lost")
	}
	var e *Error
	if !errors.As(err, &e) || e.HTTPStatus() != 503 || !e.Retryable() {
		t.Errorf("%+v", e)
	}
	e.Status, e.NoRetry = 404, true
	if e.HTTPStatus() != 404 || e.Retryable() {
		t.Errorf("overrides are ignored: %+v", e)
	}
	if Errorf(CodeOutcomeUnknown, "x").Retryable() {
		t.Error("an unknown outcome must never invite a retry")
	}
}

func TestQuorum(t *testing.T) {
	for n, want := range map[int]int{1: 1, 2: 2, 3: 2, 4: 3, 5: 3} {
		if got := Quorum(n); got != want {
			t.Errorf("Quorum(%d) = %d, want %d", n, got, want)
		}
	}
	servers := []Server{{ID: "a", Suffrage: Voter}, {ID: "b", Suffrage: NonVoter}, {ID: "c", Suffrage: Voter}}
	if CountVoters(servers) != 2 {
		t.Error("non-voters count")
	}
	if s, ok := FindServer(servers, "b"); !ok || s.Suffrage != NonVoter {
		t.Error("FindServer")
	}
	if _, ok := FindServer(servers, "d"); ok {
		t.Error("FindServer finds what is not there")
	}
}
