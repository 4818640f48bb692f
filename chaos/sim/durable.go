package sim

import "github.com/hashicorp/raft"

// What the checks of a run look at on a disk.

// Entry returns the durable entry at index, which must not be changed; nil where there is none. compacted says that a
// snapshot stands for it: what the log then still holds there means nothing.
func (d *Disk) Entry(index uint64) (entry *raft.Log, compacted bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.data.snapshots) > 0 && index <= d.data.snapshots[0].meta.Index {
		return nil, true
	}
	return d.data.logs[index], false
}

// restoredTo reports whether the newest snapshot ends at index or after it, and the log does not have its last entry.
func (d *Disk) restoredTo(index uint64) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.data.snapshots) == 0 || d.data.snapshots[0].meta.Index < index {
		return false
	}
	newest := d.data.snapshots[0].meta
	e := d.data.logs[newest.Index]
	return e == nil || e.Term != newest.Term
}

// Last returns the term and index of the last durable entry, or of the snapshot that stands for it.
func (d *Disk) Last() (term, index uint64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.data.snapshots) > 0 {
		term, index = d.data.snapshots[0].meta.Term, d.data.snapshots[0].meta.Index
	}
	if e := d.data.logs[d.data.last]; e != nil && e.Index > index {
		term, index = e.Term, e.Index
	}
	return term, index
}

// CurrentTerm is the newest term on disk.
func (d *Disk) CurrentTerm() uint64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return getUint64(d.data.stable[keyTerm])
}

// Vote returns the term of the newest vote on disk, and its candidate.
func (d *Disk) Vote() (term uint64, candidate string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return getUint64(d.data.stable[keyVoteTerm]), string(d.data.stable[keyVoteCand])
}

// Wipes returns how often the disk was emptied.
func (d *Disk) Wipes() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.wipes
}
