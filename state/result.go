package state

import "northstar/cluster"

// EncodeResult encodes the result of a command for another node.
func EncodeResult(r *Result) []byte { return encodeRecord(r) }

// DecodeResult decodes what EncodeResult has encoded. An error wraps ErrDamaged.
func DecodeResult(b []byte) (Result, error) {
	var r Result
	err := decodeRecord(b, &r)
	return r, err
}

func (r *Result) fields(c *codec) {
	if c.decoding && c.num == 1 {
		r.Err = new(cluster.Error)
	}
	if r.Err != nil {
		nested(c, 1, (*errorRecord)(r.Err))
	}
	number(c, 2, &r.Revision)
	boolean(c, 3, &r.Created)
	variant(c, 4, &r.Session)
	variant(c, 5, &r.Role)
	variant(c, 6, &r.Txn)
}

func (r *TxnResult) fields(c *codec) {
	boolean(c, 1, &r.Succeeded)
	list(c, 2, &r.Responses)
}

func (r *OpResult) fields(c *codec) {
	variant(c, 1, &r.Range)
	variant(c, 2, &r.Put)
	variant(c, 3, &r.Delete)
	variant(c, 4, &r.Txn)
}

func (r *RangeResult) fields(c *codec) {
	number(c, 1, &r.Revision)
	itemList(c, 2, &r.Items)
	number(c, 3, &r.Count)
	boolean(c, 4, &r.More)
}

func (r *PutResult) fields(c *codec) {
	number(c, 1, &r.Revision)
	variant(c, 2, &r.Prev)
}

func (r *DeleteResult) fields(c *codec) {
	number(c, 1, &r.Revision)
	number(c, 2, &r.Deleted)
	itemList(c, 3, &r.Prev)
}

// itemList declares a list of items. Each element is a field.
func itemList(c *codec, num int, all *[]*Item) {
	if !c.decoding {
		for _, it := range *all {
			nested(c, num, it)
		}
		return
	}
	for c.num == num {
		it := new(Item)
		*all = append(*all, it)
		nested(c, num, it)
	}
}
