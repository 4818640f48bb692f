package state

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"northstar/cluster"
)

func txnCommand(p Txn) Command { return Command{Kind: KindTxn, Txn: &p} }

func putOp(key, value string) Op { return Op{Put: &TxnPut{Key: key, Value: []byte(value)}} }

func delOp(key, end string) Op { return Op{Delete: &TxnDelete{Key: key, End: end, PrevKV: true}} }

func rangeOp(key, end string) Op { return Op{Range: &RangeQuery{Key: key, End: end}} }

// mustTxn applies one transaction that succeeds.
func mustTxn(t testing.TB, s *State, p Txn) Result {
	t.Helper()
	r := apply(s, txnCommand(p))[0]
	if r.Err != nil {
		t.Fatal(r.Err)
	}
	return r
}

func wantRefusal(t testing.TB, err error, want Refusal) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Fatalf("got %v, want: %v", err, want)
	}
}

// shown writes items as "key=value@revision/create/version", with +lease.
func shown(items []*Item) string {
	var all []string
	for _, it := range items {
		text := fmt.Sprintf("%s=%s@%d/%d/%d", it.Key, it.Value, it.Revision, it.CreateRevision, it.Version)
		if l := it.Lease(); l != 0 {
			text += fmt.Sprintf("+%d", l)
		}
		all = append(all, text)
	}
	return strings.Join(all, " ")
}

func allKeys(t testing.TB, v *View, revision int64) string {
	t.Helper()
	r, err := v.Range(context.Background(), &RangeQuery{Key: "\x00", End: "\x00", Revision: revision}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return shown(r.Items)
}

// The changes of a transaction share a revision and are in the order of its operations. One without changes takes no
// revision.
func TestTxnRevision(t *testing.T) {
	t.Parallel()
	s := New(Options{})
	mustApply(t, s, put("b", "0"), put("d", "0"))
	c := cursor(t, s, "", 2)
	r := mustTxn(t, s, Txn{Success: []Op{putOp("c", "1"), putOp("a", "1"), delOp("d", "")}})
	if r.Revision != 3 || !r.Created || s.View().Revision() != 3 {
		t.Fatalf("%+v, revision %d", r, s.View().Revision())
	}
	wantNext(t, c, 10, "3:c 3:a 3:d!")
	if got := allKeys(t, s.View(), 0); got != "a=1@3/3/1 b=0@1/1/1 c=1@3/3/1" {
		t.Fatal(got)
	}
	r = mustTxn(t, s, Txn{Success: []Op{delOp("x", "z"), rangeOp("a", "")}})
	if r.Revision != 3 || r.Created || r.Txn.Responses[0].Delete.Revision != 3 {
		t.Fatalf("%+v", r)
	}
}

// An operation sees those before it, comparisons only the state before the transaction.
func TestTxnOrder(t *testing.T) {
	t.Parallel()
	s := New(Options{})
	mustApply(t, s, put("a", "0"))
	isNew := func(key string) []Compare { return []Compare{{Key: key, Target: CompareVersion}} }
	r := mustTxn(t, s, Txn{
		Compare: []Compare{{Key: "a", Target: CompareValue, Value: []byte("0")}},
		Success: []Op{
			rangeOp("a", "c"), putOp("a", "1"), putOp("b", "1"), rangeOp("a", "c"),
			{Txn: &Txn{Compare: isNew("b"), Success: []Op{rangeOp("b", ""), delOp("x", "z")}}},
			{Txn: &Txn{Compare: isNew("a"), Failure: []Op{putOp("c", "1")}}},
			{Range: &RangeQuery{Key: "a", Revision: 1}},
			{Put: &TxnPut{Key: "d", PrevKV: true}},
		},
		Failure: []Op{putOp("no", "")},
	})
	got := r.Txn.Responses
	for i, want := range map[int]string{0: "a=0@1/1/1", 3: "a=1@2/1/2 b=1@2/2/1", 6: "a=0@1/1/1"} {
		if text := shown(got[i].Range.Items); text != want {
			t.Errorf("response %d: %q, want %q", i, text, want)
		}
	}
	nested := got[4].Txn
	if !r.Txn.Succeeded || !nested.Succeeded || shown(nested.Responses[0].Range.Items) != "b=1@2/2/1" ||
		nested.Responses[1].Delete.Revision != 2 || got[5].Txn.Succeeded || got[7].Put.Prev != nil {
		t.Errorf("%+v", r.Txn)
	}
	if got[0].Range.Revision != 1 || got[3].Range.Revision != 2 || got[6].Range.Revision != 2 {
		t.Error("revisions of ranges differ from those of etcd")
	}
	if keys := allKeys(t, s.View(), 0); keys != "a=1@2/1/2 b=1@2/2/1 c=1@2/2/1 d=@2/2/1" {
		t.Error(keys)
	}
}

func TestCompare(t *testing.T) {
	t.Parallel()
	s := New(Options{})
	mustApply(t, s, put("a", "1"), put("b", "5"), put("a", "2"), grant(9, 10))
	mustTxn(t, s, Txn{Success: []Op{{Put: &TxnPut{Key: "l", Value: []byte("5"), Lease: 9}}}})
	for _, c := range []struct {
		key, end string
		target   CompareTarget
		result   CompareResult
		number   int64
		value    string
		want     bool
	}{
		{"a", "", CompareVersion, CompareEqual, 2, "", true},
		{"a", "", CompareVersion, CompareNotEqual, 2, "", false},
		{"a", "", CompareCreateRevision, CompareLess, 2, "", true},
		{"a", "", CompareRevision, CompareGreater, 2, "", true},
		{"a", "", CompareRevision, CompareGreater, 3, "", false},
		{"a", "", CompareValue, CompareEqual, 0, "2", true},
		{"a", "", CompareValue, CompareLess, 0, "10", false},
		{"l", "", CompareLease, CompareEqual, 9, "", true},
		{"a", "", CompareLease, CompareEqual, 0, "", true},
		{"x", "", CompareVersion, CompareEqual, 0, "", true},
		{"x", "", CompareRevision, CompareGreater, -1, "", true},
		{"x", "", CompareLease, CompareEqual, 0, "", true},
		{"x", "", CompareValue, CompareEqual, 0, "", false},
		{"x", "", CompareValue, CompareNotEqual, 0, "1", false},
		{"b", "m", CompareValue, CompareEqual, 0, "5", true},
		{"a", "m", CompareValue, CompareEqual, 0, "5", false},
		{"a", "\x00", CompareVersion, CompareGreater, 0, "", true},
		{"m", "n", CompareVersion, CompareEqual, 0, "", true},
		{"m", "n", CompareValue, CompareNotEqual, 0, "", false},
		{"a", "", CompareTarget(9), CompareEqual, 7, "", true},
		{"a", "", CompareVersion, CompareResult(9), 7, "", true},
	} {
		p := Txn{Compare: []Compare{{
			Key: c.key, End: c.end, Target: c.target, Result: c.result, Number: c.number, Value: []byte(c.value),
		}}}
		if got := mustTxn(t, s, p).Txn.Succeeded; got != c.want {
			t.Errorf("%+v: %v", c, got)
		}
	}
	both := Txn{Compare: []Compare{{Key: "x"}, {Key: "a"}}}
	if mustTxn(t, s, both).Txn.Succeeded {
		t.Error("one comparison of two is enough")
	}
}

func TestTxnPut(t *testing.T) {
	t.Parallel()
	s := New(Options{})
	mustApply(t, s, grant(7, 10), grant(8, 10))
	write := func(p TxnPut) (string, *cluster.Error) {
		r := apply(s, txnCommand(Txn{Success: []Op{putOp("other", ""), {Put: &p}}}))[0]
		if r.Err != nil {
			return "", r.Err
		}
		prev := r.Txn.Responses[1].Put.Prev
		it, _ := s.View().Get(p.Key)
		if prev == nil {
			return shown([]*Item{&it}), nil
		}
		return shown([]*Item{prev, &it}), nil
	}
	for _, c := range []struct {
		p    TxnPut
		want string
		err  Refusal
	}{
		{TxnPut{Key: "a", Value: []byte("1"), Lease: 7, PrevKV: true}, "a=1@1/1/1+7", 0},
		{TxnPut{Key: "a", Value: []byte("2"), IgnoreLease: true}, "a=2@2/1/2+7", 0},
		{TxnPut{Key: "a", IgnoreValue: true, Lease: 8, PrevKV: true}, "a=2@2/1/2+7 a=2@3/1/3+8", 0},
		{TxnPut{Key: "a", IgnoreValue: true, IgnoreLease: true}, "a=2@4/1/4+8", 0},
		{TxnPut{Key: "a", Value: []byte("3")}, "a=3@5/1/5", 0},
		{TxnPut{Key: "b", IgnoreValue: true}, "", KeyNotFound},
		{TxnPut{Key: "b", IgnoreLease: true}, "", KeyNotFound},
		{TxnPut{Key: "b", Lease: 99}, "", LeaseNotFound},
		{TxnPut{Key: "b", Value: []byte("1"), IgnoreValue: true}, "", ValueProvided},
		{TxnPut{Key: "b", Lease: 7, IgnoreLease: true}, "", LeaseProvided},
		{TxnPut{}, "", EmptyKey},
		{TxnPut{Key: "\xff"}, "", InvalidKey},
		{TxnPut{Key: strings.Repeat("k", MaxKey+1)}, "", InvalidKey},
	} {
		revision := s.View().Revision()
		got, err := write(c.p)
		if got != c.want || refusalOf(err) != c.err {
			t.Errorf("%+v: %q, %v", c.p, got, err)
		}
		if c.err != 0 && s.View().Revision() != revision {
			t.Errorf("%+v: refused, and took a revision", c.p)
		}
	}
	if keys := s.View().LeaseKeys(7); keys != nil {
		t.Errorf("%q are still attached", keys)
	}
}

// A key is changed once in a transaction. The two branches of a nested one exclude each other.
func TestTxnDuplicateKeys(t *testing.T) {
	t.Parallel()
	nest := func(then, otherwise []Op) Op { return Op{Txn: &Txn{Success: then, Failure: otherwise}} }
	a, b := []Op{putOp("a", "1")}, []Op{putOp("b", "1")}
	for name, c := range map[string]struct {
		ops []Op
		err Refusal
	}{
		"two puts":                 {[]Op{a[0], a[0]}, DuplicateKey},
		"put and delete":           {[]Op{a[0], delOp("a", "")}, DuplicateKey},
		"delete and put":           {[]Op{delOp("a", ""), a[0]}, DuplicateKey},
		"put in a deleted range":   {[]Op{delOp("a", "c"), b[0]}, DuplicateKey},
		"put at its end":           {[]Op{delOp("a", "b"), b[0]}, 0},
		"two deletions":            {[]Op{delOp("a", "c"), delOp("a", "")}, 0},
		"deletion from a key":      {[]Op{delOp("a", "\x00"), b[0]}, 0}, // etcd does not see it
		"two branches":             {[]Op{nest(a, a)}, 0},
		"nested and around":        {[]Op{nest(a, b), b[0]}, DuplicateKey},
		"two nested":               {[]Op{nest(a, nil), nest(nil, a)}, DuplicateKey},
		"nested deletion":          {[]Op{nest([]Op{delOp("a", "")}, nil), a[0]}, DuplicateKey},
		"deletion around nested":   {[]Op{nest(a, nil), delOp("a", "")}, DuplicateKey},
		"deletion in a later one":  {[]Op{nest(a, nil), nest([]Op{delOp("a", "")}, nil)}, 0},
		"deletion in an earlier":   {[]Op{nest([]Op{delOp("a", "")}, nil), nest(a, nil)}, DuplicateKey},
		"other branch of no nest":  {[]Op{nest(nil, b), a[0]}, 0},
		"nothing":                  {[]Op{{}}, KeyNotFound},
		"range without key":        {[]Op{rangeOp("", "")}, EmptyKey},
		"deletion without key":     {[]Op{delOp("", "")}, EmptyKey},
		"sort target":              {[]Op{{Range: &RangeQuery{Key: "a", Target: 5}}}, InvalidSortOption},
		"sort order":               {[]Op{{Range: &RangeQuery{Key: "a", Order: -1}}}, InvalidSortOption},
		"compare without key":      {[]Op{{Txn: &Txn{Compare: []Compare{{}}}}}, EmptyKey},
		"many":                     {make([]Op, MaxTxnOps+1), TooManyOps},
		"many nested, with others": {append(make([]Op, 0), nest(make([]Op, MaxTxnOps), nil)), TooManyOps},
		"large":                    {[]Op{putOp("a", strings.Repeat("x", MaxTxnBytes))}, RequestTooLarge},
	} {
		for branch, p := range map[string]*Txn{"success": {Success: c.ops}, "failure": {Failure: c.ops}} {
			if err := p.Check(); c.err == 0 && err != nil || c.err != 0 && !errors.Is(err, c.err) {
				t.Errorf("%s in %s: %v", name, branch, err)
			}
		}
	}
}

// The deepest transaction that Check accepts reaches the other nodes, and a deeper one is damage.
func TestTxnDepth(t *testing.T) {
	t.Parallel()
	deep := func(n int) Command {
		p := &Txn{Success: []Op{putOp("a", "1")}}
		for range n {
			p = &Txn{Success: []Op{{Txn: p}}}
		}
		return Command{Kind: KindTxn, Txn: p}
	}
	for n, want := range map[int]error{MaxTxnOps - 1: nil, 100_000: ErrDamaged} {
		c := deep(n)
		if err := c.Txn.Check(); (err == nil) != (want == nil) {
			t.Errorf("%d levels: %v", n, err)
		}
		if n > MaxTxnOps {
			c = deep(2 * MaxTxnOps)
		}
		raw, err := EncodeBatch([]Command{c})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := DecodeBatch(raw); !errors.Is(err, want) {
			t.Errorf("%d levels: %v", n, err)
		}
	}
}

// The number of operations is bounded with the nested ones: each level may have many, and together more.
func TestTxnTotalOps(t *testing.T) {
	t.Parallel()
	p := &Txn{}
	for range MaxTxnOps / 2 {
		p.Success = append(p.Success, Op{Txn: &Txn{Success: make([]Op, MaxTxnOps/2)}})
	}
	for i, op := range p.Success {
		for j := range op.Txn.Success {
			op.Txn.Success[j] = putOp(fmt.Sprint(i, j), "")
		}
	}
	wantRefusal(t, p.Check(), TooManyOps)
	p.Success = p.Success[:MaxTxnTotalOps/(MaxTxnOps/2)-1]
	if err := p.Check(); err != nil {
		t.Fatal(err)
	}
}

// A transaction may hold a put and a deletion from a key on, as in etcd. A key then may have two changes of one
// revision.
func TestTxnChangesAKeyTwice(t *testing.T) {
	t.Parallel()
	s := New(Options{})
	mustApply(t, s, grant(1, 10), put("a", "0"))
	mustTxn(t, s, Txn{Success: []Op{delOp("a", "\x00"), putOp("a", "1"), {Put: &TxnPut{Key: "b", Lease: 1}}}})
	mustTxn(t, s, Txn{Success: []Op{putOp("a", "2"), delOp("b", "\x00")}})
	again := New(Options{})
	restore(t, again, snapshotOf(t, s))
	for _, s := range []*State{s, again} {
		for revision, want := range []string{1: "a=0@1/1/1", 2: "a=1@2/2/1 b=@2/2/1+1", 3: "a=2@3/2/2"} {
			if got := allKeys(t, s.View(), int64(revision)); revision > 0 && got != want {
				t.Errorf("at %d: %q, want %q", revision, got, want)
			}
		}
		wantNext(t, cursor(t, s, "", 1), 10, "2:a! 2:a 2:b 3:a 3:b!")
	}
}

// A transaction that is refused after it has changed something leaves no trace.
func TestTxnRollBack(t *testing.T) {
	t.Parallel()
	s := New(Options{})
	mustApply(t, s, limits(MinStateBytes, 10), put("a", "0"), put("b", "0"))
	before := snapshotOf(t, s)
	r := apply(s, txnCommand(Txn{Success: []Op{
		putOp("new", "1"), putOp("a", "1"), delOp("b", ""), putOp("c", strings.Repeat("x", MinStateBytes)),
	}}))[0]
	if r.Err == nil || s.View().Revision() != 2 || allKeys(t, s.View(), 0) != "a=0@1/1/1 b=0@2/2/1" {
		t.Fatalf("%+v, %s", r, allKeys(t, s.View(), 0))
	}
	mustApply(t, s, put("b", "1"))
	plain := New(Options{})
	restore(t, plain, before)
	mustApply(t, plain, put("b", "1"))
	if a, b := allKeys(t, s.View(), 0), allKeys(t, plain.View(), 0); a != b ||
		s.View().StateBytes() != plain.View().StateBytes() || s.View().Keys() != plain.View().Keys() {
		t.Errorf("%q and %q", a, b)
	}
}

// A transaction that looks at, changes or returns too much is refused: it would occupy every node.
func TestTxnLimits(t *testing.T) {
	t.Parallel()
	s := New(Options{})
	var cmds []Command
	for i := range MaxTxnChanges + 1 {
		cmds = append(cmds, put(fmt.Sprintf("k%06d", i), "v"))
	}
	cmds[0] = numbered(cmds[0], 1, 1, 1) // with the limits of NumberVersion
	mustApply(t, s, cmds...)
	every := Op{Range: &RangeQuery{Key: "k", End: "l", CountOnly: true}}
	many := Txn{Success: []Op{putOp("a", "")}}
	for range MaxTxnExamined/len(cmds) + 1 {
		many.Success = append(many.Success, every)
	}
	for name, p := range map[string]Txn{"deletion": {Success: []Op{delOp("k", "l")}}, "ranges": many} {
		if err := apply(s, txnCommand(p))[0].Err; !errors.Is(err, TooManyOps) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if n := s.View().Keys(); n != len(cmds) {
		t.Errorf("%d keys", n)
	}
	mustTxn(t, s, Txn{Success: []Op{delOp("k", fmt.Sprintf("k%06d", MaxTxnChanges-1))}})
	big := strings.Repeat("x", MaxValue)
	for i := range MaxTxnReadBytes/MaxValue + 1 {
		mustApply(t, s, put(fmt.Sprint("big", i), big))
	}
	p := Txn{Success: []Op{rangeOp("big", "bih"), delOp("x", "")}}
	if err := apply(s, txnCommand(p))[0].Err; !errors.Is(err, RequestTooLarge) {
		t.Errorf("big answer: %v", err)
	}
	if _, err := s.View().ReadTxn(t.Context(), &Txn{Success: p.Success[:1]}, nil); err != nil {
		t.Errorf("a transaction without writes: %v", err)
	}
}

// A retried transaction has the result of the first attempt, though the keys have changed since.
func TestTxnReplay(t *testing.T) {
	t.Parallel()
	s := New(Options{HistoryRevisions: 100})
	mustApply(t, s, put("a", "1"), put("b", "1"), grant(5, 10))
	p := txnCommand(Txn{
		Compare: []Compare{{Key: "b", Target: CompareVersion, Number: 1}},
		Success: []Op{
			{Put: &TxnPut{Key: "a", Value: []byte("2"), PrevKV: true, Lease: 5}},
			rangeOp("a", "z"), delOp("b", ""),
			{Txn: &Txn{Failure: []Op{putOp("no", "")}}},
		},
	})
	p.Idempotency = &Idempotency{Key: "k"}
	first := apply(s, p)[0]
	read := txnCommand(Txn{Success: []Op{rangeOp("a", "z"), delOp("x", "")}})
	read.Idempotency = &Idempotency{Key: "read"}
	unchanged := apply(s, read)[0]
	if first.Err != nil || unchanged.Err != nil {
		t.Fatal(first.Err, unchanged.Err)
	}
	mustApply(t, s, put("a", "3"), del("a"), put("b", "9"), Command{Kind: KindLeaseRevoke, LeaseRevoke: &LeaseRevoke{ID: 5}})
	again := New(Options{HistoryRevisions: 100})
	restore(t, again, snapshotOf(t, s))
	same := func(a, b *Item) bool { return shown([]*Item{a}) == shown([]*Item{b}) }
	for name, s := range map[string]*State{"same": s, "restored": again} {
		got := apply(s, p)[0]
		one, other := got.Txn.Responses, first.Txn.Responses
		if got.Revision != first.Revision || !got.Txn.Succeeded || !same(one[0].Put.Prev, other[0].Put.Prev) ||
			shown(one[1].Range.Items) != shown(other[1].Range.Items) || one[2].Delete.Deleted != 1 ||
			shown(one[2].Delete.Prev) != shown(other[2].Delete.Prev) || !one[3].Txn.Succeeded {
			t.Errorf("%s: got %+v, want %+v", name, got, first)
		}
		got = apply(s, read)[0]
		if !reflect.DeepEqual(shown(got.Txn.Responses[0].Range.Items), "a=2@3/1/2+5") || got.Revision != 3 {
			t.Errorf("%s: %+v", name, got.Txn.Responses[0].Range)
		}
		if v := s.View(); v.Revision() != first.Revision+3 {
			t.Errorf("%s: applied again: revision %d", name, v.Revision())
		}
	}
	for i := range 100 {
		mustApply(t, s, put("x", fmt.Sprint(i)))
	}
	wantCode(t, apply(s, p)[0].Err, 4010)
}
