package state

// The fields of the commands of txnVersion, and of what they return. See fields.go.

func (p *Txn) fields(c *codec) {
	list(c, 16, &p.Compare)
	list(c, 17, &p.Success)
	list(c, 18, &p.Failure)
	text(c, 19, &p.Caller)
}

func (o *Op) fields(c *codec) {
	variant(c, 1, &o.Range)
	variant(c, 2, &o.Put)
	variant(c, 3, &o.Delete)
	variant(c, 4, &o.Txn)
}

// variant declares a record that is present only if it is not nil.
func variant[T any, P recordPointer[T]](c *codec, num int, v *P) {
	if c.decoding && c.num == num {
		*v = new(T)
	}
	if *v != nil {
		nested(c, num, *v)
	}
}

func (p *Compare) fields(c *codec) {
	textAlways(c, 1, &p.Key)
	text(c, 2, &p.End)
	number(c, 3, &p.Target)
	number(c, 4, &p.Result)
	number(c, 5, &p.Number)
	blob(c, 6, &p.Value)
}

func (q *RangeQuery) fields(c *codec) {
	textAlways(c, 1, &q.Key)
	text(c, 2, &q.End)
	number(c, 3, &q.Revision)
	number(c, 4, &q.Limit)
	number(c, 5, &q.Target)
	number(c, 6, &q.Order)
	number(c, 7, &q.MinRevision)
	number(c, 8, &q.MaxRevision)
	number(c, 9, &q.MinCreateRevision)
	number(c, 10, &q.MaxCreateRevision)
	boolean(c, 11, &q.KeysOnly)
	boolean(c, 12, &q.CountOnly)
}

func (p *TxnPut) fields(c *codec) {
	textAlways(c, 1, &p.Key)
	blob(c, 2, &p.Value)
	number(c, 3, &p.Lease)
	boolean(c, 4, &p.PrevKV)
	boolean(c, 5, &p.IgnoreValue)
	boolean(c, 6, &p.IgnoreLease)
}

func (p *TxnDelete) fields(c *codec) {
	textAlways(c, 1, &p.Key)
	text(c, 2, &p.End)
	boolean(c, 3, &p.PrevKV)
}

func (p *Compact) fields(c *codec) { number(c, 16, &p.Revision) }

func (p *FirstRevision) fields(*codec) {}

func (p *LeaseGrant) fields(c *codec) {
	number(c, 16, &p.ID)
	number(c, 17, &p.TTL)
	text(c, 18, &p.Owner)
}

func (p *LeaseRevoke) fields(c *codec) {
	number(c, 16, &p.ID)
	text(c, 17, &p.Caller)
}

// keyChange is a change of a key in a snapshot.
type keyChange struct {
	change
	current  bool // the rest of the item is that of the key, in sectionKeys
	prevKept bool // the item that was replaced is that of the previous change of the key, in sectionHistory
}

func (k *keyChange) fields(c *codec) {
	if c.decoding || !k.current {
		k.change.fields(c)
	} else {
		textAlways(c, 1, &k.item.Key)
		numberAlways(c, 3, &k.item.Revision)
	}
	boolean(c, 17, &k.current)
	boolean(c, 18, &k.prevKept)
	if c.decoding || !k.prevKept {
		variant(c, 19, &k.prev)
	}
}
