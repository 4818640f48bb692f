package main

import (
	"encoding/csv"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"sync"
)

// roundsFile has the rounds of failures, as a CSV file keeps them between calls.
type roundsFile struct {
	measuring sync.Mutex // held by the one that measures, and guards the rest

	order []string            // keys of rounds, as first seen
	lines map[string][]string // by failure, number of nodes and system
}

const roundsHeader = "failure,nodes,system,round,gap_ms,errors"

// readRounds reads the rounds of earlier calls; none if there is no such file, or path is empty.
func readRounds(path string) (*roundsFile, error) {
	r := &roundsFile{lines: map[string][]string{}}
	if path == "" {
		return r, nil
	}
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return r, nil
	}
	if err != nil {
		return nil, err
	}
	header, rest, _ := strings.Cut(string(text), "\n")
	if header != roundsHeader {
		return nil, fmt.Errorf("%s: the first line must be %q (got %q)", path, roundsHeader, header)
	}
	records, err := csv.NewReader(strings.NewReader(rest)).ReadAll()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	for i, rec := range records {
		if len(rec) != 6 {
			return nil, fmt.Errorf("%s: round %d must have 6 fields (got %d)", path, i+1, len(rec))
		}
		r.append(fmt.Sprintf("%s,%s,%q", rec[0], rec[1], rec[2]), rec[4], rec[5])
	}
	return r, nil
}

// append adds one round.
func (r *roundsFile) append(key, gap, failed string) {
	if len(r.lines[key]) == 0 {
		r.order = append(r.order, key)
	}
	r.lines[key] = append(r.lines[key], fmt.Sprintf("%s,%d,%s,%s", key, len(r.lines[key])+1, gap, failed))
}

func roundsKey(kind fault, s *subject) string {
	return fmt.Sprintf("%s,%d,%q", kind.name, len(s.cluster.Nodes), s.name)
}

// count returns how many rounds there are of the clients of one cluster: the least of them.
func (r *roundsFile) count(kind fault, group []*subject) int {
	least := len(r.lines[roundsKey(kind, group[0])])
	for _, s := range group[1:] {
		least = min(least, len(r.lines[roundsKey(kind, s)]))
	}
	return least
}

// add adds the rounds that were measured on one cluster.
func (r *roundsFile) add(kind fault, group []*subject) {
	for _, s := range group {
		for i, gap := range s.gaps {
			r.append(roundsKey(kind, s), fmt.Sprint(ms(gap)), fmt.Sprint(s.failed[i]))
		}
	}
}

// write replaces the file. An empty path names none.
func (r *roundsFile) write(path string) error {
	if path == "" {
		return nil
	}
	var text strings.Builder
	text.WriteString(roundsHeader + "\n")
	for _, key := range r.order {
		for _, line := range r.lines[key] {
			text.WriteString(line + "\n")
		}
	}
	next := path + ".next"
	if err := os.WriteFile(next, []byte(text.String()), 0o644); err != nil {
		return err
	}
	return os.Rename(next, path)
}
