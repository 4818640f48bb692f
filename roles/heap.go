package roles

import (
	"container/heap"
	"time"
)

// slot is an item's place in a dueHeap.
type slot struct {
	key   time.Duration // time at which it is due
	index int           // -1: not in the heap
}

func (s *slot) place() *slot { return s }

// dueHeap orders items by key.
type dueHeap[T interface{ place() *slot }] []T

func (h dueHeap[T]) Len() int           { return len(h) }
func (h dueHeap[T]) Less(i, j int) bool { return h[i].place().key < h[j].place().key }
func (h dueHeap[T]) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].place().index, h[j].place().index = i, j
}

// Push is for container/heap.
func (h *dueHeap[T]) Push(x any) {
	item := x.(T)
	item.place().index = len(*h)
	*h = append(*h, item)
}

// Pop is for container/heap.
func (h *dueHeap[T]) Pop() any {
	old := *h
	item := old[len(old)-1]
	clear(old[len(old)-1:])
	*h = old[:len(old)-1]
	item.place().index = -1
	return item
}

func (h *dueHeap[T]) push(item T) { heap.Push(h, item) }

func (h *dueHeap[T]) remove(item T) { heap.Remove(h, item.place().index) }

func (h *dueHeap[T]) move(item T, key time.Duration) {
	item.place().key = key
	heap.Fix(h, item.place().index)
}
