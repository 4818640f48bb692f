package etcd

import "math/rand/v2"

// ranges are the watches of ranges of keys, in an interval tree. It is a treap in the order of the first keys, in which
// each node knows how far the ranges below it reach. A change finds the ranges that have its key and a clean watch.
// Each of them costs the logarithm of the number of ranges, and the others cost nothing.
type ranges struct{ root *span }

// span is the watches of one range.
type span struct {
	places
	key, end string // "\x00" is no end

	left, right *span
	weight      uint64 // random, and at least those of the nodes below
	reach       string // last end of the spans with a clean watch here and below, "" without one
}

// noEnd is the end of a range that has none.
const noEnd = "\x00"

// endsAfter reports whether a key is before an end.
func endsAfter(end, key string) bool { return end == noEnd || key < end }

// get returns the span of a range, nil if there is none.
func (r *ranges) get(key, end string) *span {
	s := r.root
	for s != nil && (s.key != key || s.end != end) {
		s = *s.child(key, end)
	}
	return s
}

// child returns the side of a span on which another range is.
func (s *span) child(key, end string) **span {
	if key < s.key || key == s.key && end < s.end {
		return &s.left
	}
	return &s.right
}

// add adds a span of a range that has none.
func (r *ranges) add(key, end string) *span {
	s := &span{key: key, end: end, weight: rand.Uint64()}
	r.root = r.root.insert(s)
	return s
}

func (s *span) insert(add *span) *span {
	if s == nil {
		return add
	}
	side := s.child(add.key, add.end)
	*side = (*side).insert(add)
	if (*side).weight > s.weight {
		return s.rotate(*side)
	}
	s.update()
	return s
}

// rotate puts a child above its parent.
func (s *span) rotate(child *span) *span {
	if child == s.left {
		s.left, child.right = child.right, s
	} else {
		s.right, child.left = child.left, s
	}
	s.update()
	child.update()
	return child
}

// remove removes a span.
func (r *ranges) remove(s *span) { r.root = r.root.without(s) }

func (s *span) without(gone *span) *span {
	if s == gone {
		return join(s.left, s.right)
	}
	side := s.child(gone.key, gone.end)
	*side = (*side).without(gone)
	s.update()
	return s
}

// join returns a tree of two, of which one is before the other.
func join(a, b *span) *span {
	switch {
	case a == nil:
		return b
	case b == nil:
		return a
	case a.weight > b.weight:
		a.right = join(a.right, b)
		a.update()
		return a
	}
	b.left = join(a, b.left)
	b.update()
	return b
}

// changed is called when a span has got its first clean watch, or has lost the last one.
func (r *ranges) changed(s *span) { r.root.refresh(s) }

func (s *span) refresh(changed *span) {
	if s != changed {
		(*s.child(changed.key, changed.end)).refresh(changed)
	}
	s.update()
}

// update finds out how far a span and those below it reach.
func (s *span) update() {
	s.reach = ""
	if len(s.clean) > 0 {
		s.reach = s.end
	}
	for _, below := range [...]*span{s.left, s.right} {
		if below != nil && s.reach != noEnd && endsAfter(below.reach, s.reach) {
			s.reach = below.reach
		}
	}
}

// visit calls visit for each span that has a key and a clean watch. That may mark the watches.
func (s *span) visit(key string, visit func(*span)) {
	if s == nil || !endsAfter(s.reach, key) {
		return
	}
	s.left.visit(key, visit)
	if key < s.key {
		return
	}
	if len(s.clean) > 0 && endsAfter(s.end, key) {
		visit(s)
	}
	s.right.visit(key, visit)
}

// each calls visit for each span, which may mark its watches.
func (s *span) each(visit func(*span)) {
	if s != nil {
		s.left.each(visit)
		visit(s)
		s.right.each(visit)
	}
}
