package state

import (
	"runtime"
	"slices"
	"testing"
	"weak"

	"pgregory.net/rapid"
)

// A queue behaves like a list, and its copies do not change.
func TestQueue(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var q queue[int]
		var model []int
		type copied struct {
			q     queue[int]
			model []int
		}
		var copies []copied
		for i := range rapid.IntRange(1, 60).Draw(t, "steps") {
			switch rapid.IntRange(0, 3).Draw(t, "what") {
			case 0, 1:
				for range rapid.IntRange(1, 2*blockLen).Draw(t, "pushes") {
					q.push(i, rapid.IntRange(0, 99).Draw(t, "fresh") == 0)
					model = append(model, i)
				}
			case 2:
				for range rapid.IntRange(0, len(model)).Draw(t, "pops") {
					if got := q.pop(); got != model[0] {
						t.Fatalf("popped %d, want %d", got, model[0])
					}
					model = model[1:]
				}
			case 3:
				copies = append(copies, copied{q, slices.Clone(model)})
			}
		}
		copies = append(copies, copied{q, model})
		for i, c := range copies {
			if got := slices.Collect(c.q.all); !slices.Equal(got, c.model) || c.q.len() != len(c.model) {
				t.Fatalf("copy %d holds %v, want %v", i, got, c.model)
			}
		}
	})
}

// Blocks that no copy uses are freed.
func TestQueueFreesBlocks(t *testing.T) {
	t.Parallel()
	var q queue[int]
	for i := range 3 * blockLen {
		q.push(i, false)
	}
	first := weak.Make(q.blocks[0].items)
	for range blockLen {
		q.pop()
	}
	runtime.GC()
	if first.Value() != nil {
		t.Error("the first block is still held")
	}
	if got := q.at(blockLen); got != blockLen {
		t.Errorf("first element is %d", got)
	}
}
