package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"strings"

	"northstar/chaos/explore"
)

// runExplore searches the states of a small cluster for one that breaks a property.
func runExplore(ctx context.Context, args []string, out io.Writer) error {
	fs := flag.NewFlagSet("explore", flag.ContinueOnError)
	names := fs.String("models", "", "models, separated by commas; empty: all; any other name prints them")
	depth := fs.Int("depth", 0, "steps from the first state (0: as many as the tests go)")
	nightly := fs.Bool("nightly", false, "go as many steps as make nightly, where that is more")
	states := fs.Int("states", 0, "end with the step that reaches so many states (0: no limit)")
	if err := fs.Parse(args); err != nil {
		return err
	}
	models, err := chooseModels(*names)
	if err != nil {
		return err
	}
	violated := 0
	for _, m := range models {
		limit := explore.Limit{Depth: m.Depth, States: *states}
		switch {
		case *depth > 0:
			limit.Depth = *depth
		case *nightly && m.Depth > 0:
			limit.Depth = m.NightlyDepth
		}
		r, err := explore.Run(ctx, m, limit)
		if err != nil {
			return fmt.Errorf("%s: %w", m.Name, err)
		}
		r.Print(out)
		if r.Violated != "" {
			violated++
		}
	}
	if violated > 0 {
		return errors.New("a property does not hold")
	}
	return nil
}

func chooseModels(names string) ([]explore.Model, error) {
	if names == "" {
		return explore.Models(), nil
	}
	var chosen []explore.Model
	for name := range strings.SplitSeq(names, ",") {
		m, err := explore.Find(name)
		if err != nil {
			return nil, fmt.Errorf("-models: %w", err)
		}
		chosen = append(chosen, m)
	}
	return chosen, nil
}
