package explore

import (
	"context"
	"fmt"
	"io"
	"slices"
	"time"
)

// Limit bounds a search. Zero means none.
type Limit struct {
	Depth  int // steps from the first state
	States int
}

// Result is what a search has found.
type Result struct {
	Model    string
	States   int // different states
	Steps    int // that were tried
	Depth    int // up to which every state was visited
	Complete bool
	Overfull int // states that were not continued, because a log or the bag was full
	Fair     int // states that were continued without further faults
	Took     time.Duration
	// Violated is the property that a state breaks, "" if there is none. Trace has the steps to it, and no fewer lead to
	// such a state.
	Violated string
	Trace    []string

	happened [lastVerb + 1]int // how often each kind of step was tried
}

// String returns the result as a line.
func (r Result) String() string {
	what := "every state up to its depth"
	if r.Complete {
		what = "every state"
	}
	if r.Violated != "" {
		what = "violated: " + r.Violated
	}
	return fmt.Sprintf("%s: %s; %d states, %d steps, depth %d, %d continued to a leader, %d not continued, %.1f s",
		r.Model, what, r.States, r.Steps, r.Depth, r.Fair, r.Overfull, r.Took.Seconds())
}

// Print writes the result, with the steps to a violation.
func (r Result) Print(out io.Writer) {
	_, _ = fmt.Fprintln(out, r)
	for i, line := range r.Trace {
		_, _ = fmt.Fprintf(out, "%4d. %s\n", i, line)
	}
}

// origin is how a state was first reached.
type origin struct {
	from   int32
	action action
}

// search is a breadth-first search.
type search struct {
	m       Model
	limit   Limit
	result  Result
	seen    map[key]struct{}
	origins []origin
}

// found is a state with its place in origins.
type found struct {
	state state
	index int32
}

// Run visits every state that the model can reach within the limit, those with fewer steps first. It ends at the first
// one that breaks a property. The error is that of ctx.
func Run(ctx context.Context, m Model, limit Limit) (Result, error) {
	began := time.Now()
	r := search{m: m, limit: limit, seen: map[key]struct{}{}, result: Result{Model: m.Name}}
	first := r.m.start()
	r.seen[first.key(m.symmetric())] = struct{}{}
	r.origins = []origin{{-1, action{}}}
	level := []found{{first, 0}}
	for len(level) > 0 && r.result.Violated == "" && (limit.Depth == 0 || r.result.Depth < limit.Depth) {
		next, err := r.expand(ctx, level)
		if err != nil {
			return r.result, err
		}
		level = next
		r.result.Depth++
		if limit.States > 0 && len(r.origins) >= limit.States {
			break
		}
	}
	r.result.Complete = len(level) == 0
	r.result.States, r.result.Took = len(r.origins), time.Since(began)
	return r.result, nil
}

// symmetric reports whether the nodes may be renamed: no decision of the product depends on names then.
func (m *Model) symmetric() bool {
	return m.Priorities[0] == m.Priorities[1] && m.Priorities[1] == m.Priorities[2]
}

// expand returns the new states one step after those of a level.
func (r *search) expand(ctx context.Context, level []found) (next []found, err error) {
	for i := range level {
		if i%1024 == 0 && ctx.Err() != nil {
			return nil, ctx.Err()
		}
		at := &level[i]
		r.m.next(&at.state, func(a action, s *state) {
			if r.result.Violated != "" {
				return
			}
			r.result.Steps++
			r.result.happened[a.verb]++
			if s.ghost.overfull {
				r.result.Overfull++
				return
			}
			k := s.key(r.m.symmetric())
			if _, known := r.seen[k]; known && s.ghost.broken == intact {
				return
			}
			r.seen[k] = struct{}{}
			index := int32(len(r.origins))
			r.origins = append(r.origins, origin{at.index, a})
			if r.m.FairEvery > 0 && k.a%uint64(r.m.FairEvery) == 0 && s.ghost.broken == intact {
				r.result.Fair++
				s.ghost.broken = r.m.continues(*s)
			}
			if s.ghost.broken != intact {
				r.result.Violated = properties[s.ghost.broken]
				r.result.Trace = r.trace(index)
				return
			}
			next = append(next, found{*s, index})
		})
		if r.result.Violated != "" {
			return nil, nil
		}
	}
	return next, nil
}

// path returns the steps by which a state was first reached.
func (r *search) path(index int32) (path []action) {
	for ; r.origins[index].from >= 0; index = r.origins[index].from {
		path = append(path, r.origins[index].action)
	}
	slices.Reverse(path)
	return path
}

// replay returns the states on a path, the first one included.
func (m *Model) replay(path []action) []state {
	all := []state{m.start()}
	for i, a := range path {
		m.next(&all[i], func(b action, s *state) {
			if a == b {
				all = append(all, *s)
			}
		})
	}
	return all
}

// trace returns the steps to a state, each with the nodes that it changes.
func (r *search) trace(index int32) []string {
	path := r.path(index)
	states := r.m.replay(path)
	lines := []string{"the first state" + states[0].describe(nil)}
	for i, a := range path {
		lines = append(lines, states[i].describeAction(a)+states[i+1].describe(&states[i]))
	}
	return lines
}
