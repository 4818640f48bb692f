package client

import (
	"testing"
	"time"
)

func TestAtomicTime(t *testing.T) {
	t.Parallel()
	var m atomicTime
	now := time.Now()
	if d := m.since(now); d < 1000*time.Hour {
		t.Errorf("never was %v ago", d)
	}
	m.set(now)
	if d := m.since(now.Add(time.Second)); d != time.Second {
		t.Errorf("%v", d)
	}
}
