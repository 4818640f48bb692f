package explore

import (
	"fmt"
	"strings"
)

// Model is one exploration: where the cluster starts, what may go wrong, and how finely time is counted.
type Model struct {
	Name string
	Doc  string // what it is about
	// Depth is how many steps the tests go from the first state, NightlyDepth how many make nightly goes. 0: as far as
	// there are states.
	Depth, NightlyDepth int

	MaxTerm   uint8 // no node starts an election beyond it
	Crashes   uint8
	Cuts      uint8 // how often one link is cut
	Writes    uint8 // proposals, besides each leader's first entry
	Requests  uint8 // elections that an operator requests
	Transfers uint8
	Wipes     uint8 // how often a node that is down loses its disk
	Resends   bool  // leaders repeat entries that followers have

	// TicksPerTimeout is how many steps of time an election timeout has. 0: time is no part of the model, and all that
	// has happened may be long ago.
	TicksPerTimeout uint8
	Lease           bool // leaders have leases
	Leaderless      bool // the first leader has stepped down, and the others have not heard it for long

	Priorities [nodes]int
	Idle       id // a node that never starts an election, although its claims say that it could; 0: none
	// FairEvery: of so many states one is continued without further faults, until a leader serves. 0: none.
	FairEvery int

	maxTerm uint8
}

var equal = [nodes]int{100, 100, 100}

// Models returns all explorations.
func Models() []Model {
	return []Model{
		{
			Name: "votes", Doc: "one election with two crashes, completely", MaxTerm: 2, Crashes: 2, Priorities: equal,
		},
		{
			Name: "terms", Doc: "two elections in a row, completely", MaxTerm: 3, Priorities: equal,
		},
		{
			Name: "writes", Doc: "a write that one election with a crash meets", Depth: 12, NightlyDepth: 40, MaxTerm: 2,
			Crashes: 1, Writes: 1, Resends: true, Priorities: equal,
		},
		{
			Name: "entries", Doc: "elections and writes with two crashes", Depth: 8, NightlyDepth: 14, MaxTerm: 4,
			Crashes: 2, Writes: 1, Priorities: equal,
		},
		{
			Name: "leases", Doc: "leases around elections, after a leader has failed", Depth: 11, NightlyDepth: 16,
			MaxTerm: 3, TicksPerTimeout: 1, Lease: true, Leaderless: true, Priorities: equal,
		},
		{
			Name: "lease-restarts", Doc: "leases with a crash", Depth: 11, NightlyDepth: 17, MaxTerm: 2, Crashes: 1,
			TicksPerTimeout: 1, Lease: true, Priorities: equal,
		},
		{
			Name: "lease-elections", Doc: "leases with a transfer and an operator's election", Depth: 11,
			NightlyDepth: 16, MaxTerm: 2, Requests: 1, Transfers: 1, TicksPerTimeout: 1, Lease: true, Priorities: equal,
		},
		{
			Name: "readmission", Doc: "a node loses its disk and is re-admitted, with one election, completely",
			MaxTerm: 2, Crashes: 1, Wipes: 1, Priorities: equal,
		},
		{
			Name: "readmissions", Doc: "a node loses its disk and is re-admitted, with two elections",
			Depth: 10, NightlyDepth: 18, MaxTerm: 3, Crashes: 1, Wipes: 1, Priorities: equal,
		},
		{
			Name: "progress", Doc: "a leader is found after crashes and a cut", Depth: 7, NightlyDepth: 11, MaxTerm: 4,
			Crashes: 2, Cuts: 1, TicksPerTimeout: 1, Priorities: equal, FairEvery: 3,
		},
		{
			Name: "preferred", Doc: "a leader is found although the node with the highest priority starts no election",
			Depth: 8, NightlyDepth: 12, MaxTerm: 3, Crashes: 1, Cuts: 1, TicksPerTimeout: 1,
			Priorities: [nodes]int{200, 100, 100}, Idle: 1, FairEvery: 3,
		},
		{
			Name: "silence", Doc: "voters ignore a leader that they have not heard for half of a timeout", Depth: 8,
			NightlyDepth: 11, MaxTerm: 3, Crashes: 1, Cuts: 1, TicksPerTimeout: 2, Priorities: equal, FairEvery: 3,
		},
	}
}

// Find returns the model of that name.
func Find(name string) (Model, error) {
	var names []string
	for _, m := range Models() {
		if m.Name == name {
			return m, nil
		}
		names = append(names, m.Name)
	}
	return Model{}, fmt.Errorf("%q is none of %s", name, strings.Join(names, ", "))
}
