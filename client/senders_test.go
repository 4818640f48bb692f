package client

import (
	"maps"
	"net/http"
	"slices"
	"testing"

	"northstar/api/apiv1"
)

// A write that takes long is not overtaken by so many writes of its sender that the cluster forgets its number. After
// its end the cluster forgets the results of all senders.
func TestSenders_SlowWrite(t *testing.T) {
	t.Parallel()
	var c Client
	began := func() (end func(error), sender string, number, lowest uint64) {
		q := &call{header: http.Header{}}
		end = c.number(q)
		sender, number, lowest, ok := apiv1.ParseNumberedKey(q.header.Get(apiv1.HeaderIdempotencyKey))
		if !ok {
			t.Fatal(q.header)
		}
		return end, sender, number, lowest
	}
	end, _, _, _ := began()
	for range 5000 {
		end, _, number, lowest := began()
		if number-lowest >= 1024 {
			t.Fatalf("number %d begins while %d is in use", number, lowest)
		}
		end(nil)
	}
	end(nil)
	forgotten := map[string]bool{}
	for range c.senders.all {
		end, sender, number, lowest := began()
		end(nil)
		forgotten[sender] = number == lowest
	}
	if len(forgotten) != len(c.senders.all) || slices.Contains(slices.Collect(maps.Values(forgotten)), false) {
		t.Errorf("of %d senders these have no number in use: %v", len(c.senders.all), forgotten)
	}
}

// Writes that never end take a bounded number of senders.
func TestSenders_Bounded(t *testing.T) {
	t.Parallel()
	var p senders
	for range 2 * maxSenders * apiv1.MaxNumbersAhead {
		p.begin()
	}
	if len(p.all) != maxSenders {
		t.Errorf("%d senders", len(p.all))
	}
}
