package state

import (
	"bytes"
	"errors"
	"reflect"
	"testing"
)

// A result reaches another node unchanged, with its refusal.
func TestResultRoundTrip(t *testing.T) {
	t.Parallel()
	s := New(Options{})
	mustApply(t, s, put("a", "1"), put("b", ""), grant(3, 10))
	all := mustTxn(t, s, Txn{Success: []Op{
		rangeOp("a", "z"),
		{Put: &TxnPut{Key: "a", PrevKV: true, Lease: 3}},
		delOp("b", ""), delOp("x", ""),
		{Txn: &Txn{Failure: []Op{putOp("no", "")}}},
		{Range: &RangeQuery{Key: "a", End: "z", Limit: 1}},
	}})
	role := campaign(t, s, "r", newSession(t, s, "holder"))
	for name, r := range map[string]Result{
		"nothing": {}, "transaction": all, "lease": apply(s, grant(4, 10))[0], "role": {Role: role, Revision: 7},
	} {
		got, err := DecodeResult(EncodeResult(&r))
		if err != nil || !bytes.Equal(EncodeResult(&got), EncodeResult(&r)) {
			t.Errorf("%s: %v", name, err)
		}
		if r.Txn != nil && resultText(got.Txn) != resultText(r.Txn) {
			t.Errorf("%s: %s, want %s", name, resultText(got.Txn), resultText(r.Txn))
		}
		if r.Session != nil && !reflect.DeepEqual(got.Session, r.Session) {
			t.Errorf("%s: %+v", name, got.Session)
		}
	}
	refused := apply(s, grant(4, 10))[0]
	got, err := DecodeResult(EncodeResult(&refused))
	if err != nil || !errors.Is(got.Err, LeaseExists) || got.Err.Code != refused.Err.Code {
		t.Errorf("%+v, %v", got.Err, err)
	}
	if _, err := DecodeResult([]byte{1}); !errors.Is(err, ErrDamaged) {
		t.Error(err)
	}
}
