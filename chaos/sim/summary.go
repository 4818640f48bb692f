package sim

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"northstar/chaos/check"
	"northstar/chaos/report"
)

// Effective is how many faults had an effect.
func (s Summary) Effective() (n int) {
	for _, of := range s.Faults {
		n += of
	}
	return n
}

// Summary is the outcome of one run on one line of JSON, which chaos/run
// reads from the process that ran it.
type Summary struct {
	Scenario       string            `json:"scenario"`
	Seed           uint64            `json:"seed"`
	Nodes          int               `json:"nodes"`
	Digest         string            `json:"digest"`
	Injected       int               `json:"injected"`
	Faults         map[FaultKind]int `json:"faults"` // of these, those that had an effect
	Messages       int               `json:"messages"`
	Elections      int               `json:"elections"`
	Ops            int               `json:"ops"`
	Undecided      int               `json:"undecided"`
	ConvergedAfter time.Duration     `json:"converged_after_ns"`
	CPU            time.Duration     `json:"cpu_ns"`
	SLO            *check.SLOReport  `json:"slo,omitempty"`
	Violations     []string          `json:"violations,omitempty"`
	Report         string            `json:"report,omitempty"`
	Minimal        []int             `json:"minimal,omitempty"` // the places of the faults that it takes to fail
	Timeline       *report.Report    `json:"timeline,omitempty"`
}

// ParseIndexes reads numbers separated by commas.
func ParseIndexes(s string) (all []int, err error) {
	for part := range strings.SplitSeq(s, ",") {
		n, err := strconv.Atoi(part)
		if err != nil {
			return nil, fmt.Errorf("places of faults: %w", err)
		}
		all = append(all, n)
	}
	return all, nil
}
