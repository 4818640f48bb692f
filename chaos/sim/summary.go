package sim

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"northstar/chaos/check"
	"northstar/chaos/report"
)

// Outcome is what a run counted.
type Outcome struct {
	Seed           uint64            `json:"seed"`
	Injected       int               `json:"injected"`           // faults
	Faults         map[FaultKind]int `json:"faults"`             // of these, those that had an effect
	Reached        map[string]int    `json:"reached"`            // steps of nodes, and faults at them
	Messages       int               `json:"messages"`           // lost, delayed or left unanswered beside that
	Elections      int               `json:"elections"`          // terms that had a leader
	ConvergedAfter time.Duration     `json:"converged_after_ns"` // from the healing until all agreed
	SLO            *check.SLOReport  `json:"slo,omitempty"`      // nil without probes
	Timeline       *report.Report    `json:"timeline,omitempty"` // nil when nothing was violated and none was asked for
}

// Effective is how many faults had an effect.
func (o Outcome) Effective() (n int) {
	for _, of := range o.Faults {
		n += of
	}
	return n
}

// Summary is the outcome of one run on one line of JSON, which chaos/run reads from the process that ran it.
type Summary struct {
	Outcome
	Scenario   string        `json:"scenario"`
	Nodes      int           `json:"nodes"`
	Digest     string        `json:"digest"`
	Ops        int           `json:"ops"`
	CPU        time.Duration `json:"cpu_ns"`
	Violations []string      `json:"violations,omitempty"`
	Report     string        `json:"report,omitempty"`
	Minimal    []int         `json:"minimal,omitempty"` // the places of the faults that it takes to fail
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
