package telemetry

import (
	"sync"
	"sync/atomic"
)

const (
	maxLabels     = 3   // of one metric
	maxSeries     = 512 // of one metric; later label values count as "other"
	overflowLabel = "other"
)

// limitedVec keeps the children of one labelled metric. A lookup does not allocate, and the number of series is
// bounded, even if a peer sends arbitrary values.
type limitedVec[T any] struct {
	labels int
	make   func(values ...string) T
	known  sync.Map // [maxLabels]string → T
	count  atomic.Int64
}

func newLimitedVec[T any](labels int, child func(values ...string) T) *limitedVec[T] {
	if labels > maxLabels {
		panic("telemetry: more labels than maxLabels")
	}
	return &limitedVec[T]{labels: labels, make: child}
}

// with returns the child for the label values. Their number must match the labels of the metric.
func (b *limitedVec[T]) with(values ...string) T {
	var key [maxLabels]string
	copy(key[:], values)
	if c, ok := b.known.Load(key); ok {
		return c.(T)
	}
	if b.count.Add(1) > maxSeries {
		b.count.Add(-1)
		for i := range b.labels {
			key[i] = overflowLabel
		}
		return b.make(key[:b.labels]...)
	}
	c := b.make(key[:b.labels]...)
	b.known.Store(key, c)
	return c
}
