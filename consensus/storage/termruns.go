package storage

// termRuns is the terms of ascending entries: where each term begins. The zero value is that of no entries.
type termRuns []termRun

type termRun struct{ first, term uint64 }

// add adds an entry behind all others.
func (r *termRuns) add(index, term uint64) {
	if len(*r) == 0 || r.last() != term {
		*r = append(*r, termRun{index, term})
	}
}

// last returns the last entry's term, 0 if there is none.
func (r termRuns) last() uint64 {
	if len(r) == 0 {
		return 0
	}
	return r[len(r)-1].term
}

// cutAfter removes the entries after an index.
func (r *termRuns) cutAfter(index uint64) {
	for len(*r) > 0 && (*r)[len(*r)-1].first > index {
		*r = (*r)[:len(*r)-1]
	}
}
