package state

import (
	"slices"
	"sort"
)

// blockLen is the number of elements that a block of a queue has room for.
const blockLen = 256

// queue is a first-in first-out list whose copies are snapshots: a copy goes on
// showing what it held, whatever is pushed to or popped from the original.
// Only one line of descent may push: of two copies, the one that is pushed to
// must be the only one ever pushed to again. Elements stand at positions that
// never change; the zero value is empty and begins at position 0.
//
// Invariants: blocks[i].start grows with i; blocks[0] holds first unless the
// queue is empty; an element is written once, before the copy that shows it is
// handed to another goroutine.
type queue[T any] struct {
	blocks     []block[T]
	first, end uint64 // positions of the first element and after the last
}

type block[T any] struct {
	start uint64
	items *[blockLen]T
}

func (q *queue[T]) len() int { return int(q.end - q.first) }

// push appends v. With fresh it goes into a block of its own, so that the
// elements before it can be freed without it.
func (q *queue[T]) push(v T, fresh bool) {
	n := len(q.blocks)
	if n == 0 || fresh || q.end-q.blocks[n-1].start == blockLen {
		q.blocks = append(q.blocks, block[T]{start: q.end, items: new([blockLen]T)})
		n++
	}
	last := q.blocks[n-1]
	last.items[q.end-last.start] = v
	q.end++
}

// pop removes and returns the first element. The queue must not be empty.
func (q *queue[T]) pop() T {
	v := q.at(q.first)
	q.first++
	if q.first == q.end {
		q.blocks = nil
	} else if len(q.blocks) > 1 && q.blocks[1].start == q.first {
		// Other copies still use the old list of blocks, and a mere reslice would
		// keep the freed block reachable.
		q.blocks = slices.Clone(q.blocks[1:])
	}
	return v
}

// at gives the element at a position from first up to, not including, end.
func (q *queue[T]) at(pos uint64) T {
	i := sort.Search(len(q.blocks), func(i int) bool { return q.blocks[i].start > pos }) - 1
	b := q.blocks[i]
	return b.items[pos-b.start]
}

// search returns the position of the first element for which after is true, end if
// there is none. All elements behind such a one must be such, too.
func (q *queue[T]) search(after func(T) bool) uint64 {
	return q.first + uint64(sort.Search(q.len(), func(i int) bool { return after(q.at(q.first + uint64(i))) }))
}

// all yields the elements in order.
func (q *queue[T]) all(yield func(T) bool) {
	for pos := q.first; pos < q.end; pos++ {
		if !yield(q.at(pos)) {
			return
		}
	}
}
