package raftnode

import (
	"bytes"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
)

// An error is logged once in logRepeatInterval. A call to a peer that fails is logged once it has failed for a while.
func TestLibraryLogger(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		l := newLibraryLogger(hclog.New(&hclog.LoggerOptions{Output: &out, Level: hclog.Warn}))
		logged := func(msg string) bool {
			out.Reset()
			l.Error(msg, "peer", "n2")
			return strings.Contains(out.String(), msg)
		}
		if !logged("failed to take snapshot") || logged("failed to take snapshot") {
			t.Error("an error is logged once")
		}
		time.Sleep(logRepeatInterval)
		if !logged("failed to take snapshot") {
			t.Error("it is not logged again")
		}
		retried := retriedMessages[0]
		for i := range 20 {
			if got, want := logged(retried), i == 10; got != want {
				t.Errorf("after %d failures: logged %v", i, got)
			}
			time.Sleep(logRetryAfter / 10)
		}
		time.Sleep(logRepeatInterval)
		if logged(retried) {
			t.Error("a single failure is logged")
		}
	})
}
