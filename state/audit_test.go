package state

import (
	"bytes"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"northstar/cluster"
)

func audited(c Command, who string, at int64) Command {
	c.Now = at
	c.Audit = &AuditRecord{Who: who, Role: "client", From: "h:1", What: "PUT /v1/kv/" + who, Node: "n1"}
	return c
}

// calls returns a batch of records as one process sends it.
func calls(source string, first uint64, whos ...string) Command {
	b := &AuditBatch{Producer: source, First: first}
	for _, who := range whos {
		b.Records = append(b.Records, AuditRecord{
			Class: AuditOperators, At: 5, Node: "n2", Who: who,
			What: "POST /admin/transfer", Request: `{"reason":"x"}`, Reason: "x", Status: 403, Code: 4403, Detail: "no",
			DryRun: true, Delayed: true,
		})
	}
	return Command{Kind: KindAudit, Now: 20, AuditBatch: b}
}

func auditOf(v *View) string {
	var all []string
	for r := range v.AuditAfter(0) {
		all = append(all, fmt.Sprintf("%d:%s:%d", r.Seq, r.Who, r.Status))
	}
	return strings.Join(all, " ")
}

// A command's record contains its result, also a rejection. A command repeated for its idempotency key is a call of
// its own.
func TestCommandsAreAudited(t *testing.T) {
	t.Parallel()
	s := New(Options{})
	refused := audited(put("k", "2"), "b", 11)
	refused.Put.IfAbsent = true
	once := audited(put("k", "3"), "c", 12)
	once.Idempotency = &Idempotency{Key: "x"}
	apply(s, audited(put("k", "1"), "a", 10), refused, once, once, put("k", "4"))
	if got := auditOf(s.View()); got != "1:a:200 2:b:412 3:c:200 4:c:200" {
		t.Fatal(got)
	}
	var second *AuditRecord
	for r := range s.View().AuditAfter(1) {
		second = r
		break
	}
	if second.Code != cluster.CodeConditionFailed || second.Detail == "" || second.At != 11 ||
		second.What != "PUT /v1/kv/b" {
		t.Errorf("got %+v", second)
	}
	if v := s.View().version; v != auditVersion {
		t.Errorf("version %d", v)
	}
	if plain := put("k", "v"); plain.MinVersion() != 1 {
		t.Errorf("a command that is not audited needs version %d", plain.MinVersion())
	}
}

// A command that a node proposes again for one call, because it does not know the outcome, has one record.
func TestCommandsOfNodesAreAuditedOnce(t *testing.T) {
	t.Parallel()
	s := New(Options{})
	mustApply(t, s, txnCommand(Txn{Success: []Op{putOp("a", "1")}}), numbered(put("a", "2"), 1, 1, 1))
	compaction := func(key string, revision int64) Command {
		c := audited(Command{Kind: KindCompact, Compact: &Compact{Revision: revision}}, key, 10)
		c.Idempotency = &Idempotency{Key: NodeIdempotencyPrefix + key}
		return c
	}
	done, refused := compaction("a", 2), compaction("b", 9)
	apply(s, done, done, refused, refused, compaction("c", 2))
	if got, want := auditOf(s.View()), "1:a:200 2:b:400 3:c:410"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// A batch that is repeated, fully or in part, adds nothing twice. The records that a process lost are counted once.
func TestAuditBatchesCountOnce(t *testing.T) {
	t.Parallel()
	s := New(Options{})
	first := calls("boot1", 1, "a", "b")
	first.AuditBatch.Lost = 3
	more := calls("boot1", 2, "b", "c")
	more.AuditBatch.Lost = 4
	mustApply(t, s, first, first, more, calls("boot2", 1, "d"), first)
	if got := auditOf(s.View()); got != "1:a:403 2:b:403 3:c:403 4:d:403" {
		t.Fatal(got)
	}
	if c := s.View().AuditCounts(); c.Lost != 4 || c.Records != [2]uint64{0, 4} {
		t.Errorf("counts %+v", c)
	}
	raw := snapshotOf(t, s)
	back := New(Options{})
	restore(t, back, raw)
	if !bytes.Equal(snapshotOf(t, back), raw) {
		t.Error("the snapshot of what was restored differs")
	}
	mustApply(t, back, more, calls("boot2", 1, "d", "e"), audited(put("k", "v"), "f", 30))
	if got := auditOf(back.View()); got != "1:a:403 2:b:403 3:c:403 4:d:403 5:e:403 6:f:200" {
		t.Errorf("after a restart: %s", got)
	}
	var newest []string
	for r := range back.View().AuditBackward {
		newest = append(newest, r.Who)
	}
	if got := strings.Join(newest, ""); got != "fedcba" {
		t.Errorf("backward: %s", got)
	}
	if got := auditOf(s.View()); strings.Contains(got, "e:") {
		t.Error("an older state has changed")
	}
}

func TestAuditIsBounded(t *testing.T) {
	t.Parallel()
	s := New(Options{})
	mustApply(t, s, calls("op", 1, "kept"))
	batch := make([]Command, 0, 500)
	for i := range MaxAuditRecords + 500 {
		if batch = append(batch, audited(put("k", "v"), "w", int64(i))); len(batch) == cap(batch) {
			mustApply(t, s, batch...)
			batch = batch[:0]
		}
	}
	c := s.View().AuditCounts()
	if c.Records != [2]uint64{MaxAuditRecords, 1} || c.Dropped != [2]uint64{500, 0} {
		t.Fatalf("by number: %+v", c)
	}
	late := audited(put("k", "v"), "late", int64(MaxAuditAge)+int64(MaxAuditRecords)+100)
	mustApply(t, s, late)
	if c = s.View().AuditCounts(); c.Records[AuditClients] != 401 ||
		c.Dropped[AuditClients] != 500+MaxAuditRecords+1-401 {
		t.Errorf("by age: %+v", c)
	}
	for range 3000 {
		big := audited(put("k", "v"), "big", late.Now)
		big.Audit.What = strings.Repeat("x", MaxAuditText)
		mustApply(t, s, big)
	}
	if ring := s.View().audit.rings[AuditClients]; ring.bytes > MaxAuditBytes ||
		ring.bytes < MaxAuditBytes-2*MaxAuditText || ring.records.len() > 2000 {
		t.Errorf("by size: %d records of %d bytes", ring.records.len(), ring.bytes)
	}
	raw := snapshotOf(t, s)
	back := New(Options{})
	restore(t, back, raw)
	if !bytes.Equal(snapshotOf(t, back), raw) || !reflect.DeepEqual(back.View().AuditCounts(), s.View().AuditCounts()) {
		t.Error("restored differently")
	}
}

// A restarted node keeps the same log as the others, also after a clock jump.
func TestAudit_EvictionIsDeterministicAfterRestart(t *testing.T) {
	t.Parallel()
	s := New(Options{})
	year := int64(365 * 24 * time.Hour)
	mustApply(t, s, audited(put("k", "1"), "future", 9*year), audited(put("k", "2"), "old", 1),
		audited(put("k", "3"), "new", 2*year))
	back := New(Options{})
	restore(t, back, snapshotOf(t, s))
	for _, x := range []*State{s, back} {
		mustApply(t, x, audited(put("k", "4"), "next", 2*year))
	}
	if s.View().Fingerprint() != back.View().Fingerprint() {
		t.Errorf("%s against %s", auditOf(s.View()), auditOf(back.View()))
	}
}

func TestAuditProducersAreBounded(t *testing.T) {
	t.Parallel()
	s := New(Options{})
	for i := range maxAuditProducers + 10 {
		c := calls(fmt.Sprintf("boot%04d", (i*7919)%9973), 1, "x")
		c.Now = int64(i + 1)
		mustApply(t, s, c)
	}
	if n := len(s.View().audit.producers); n != maxAuditProducers {
		t.Errorf("%d sources", n)
	}
	if !slices.IsSortedFunc(s.View().audit.producers,
		func(a, b auditProducer) int { return strings.Compare(a.name, b.name) }) {
		t.Error("sources are out of order")
	}
	restore(t, New(Options{}), snapshotOf(t, s))
}

// Neither a restore nor a recovery removes records from the audit log.
func TestAuditOutlivesRestoreAndRecovery(t *testing.T) {
	t.Parallel()
	other := richState(t)
	mustApply(t, other, calls("boot9", 1, "theirs"))
	s := richState(t)
	upgraded(t, s)
	mustApply(t, s, calls("boot1", 1, "a"))
	merged, err := mergeBackup(s.Snapshot(), snapshotOf(t, other))
	if err != nil {
		t.Fatal(err)
	}
	if got := auditOf(merged.view); got != "1:a:403" {
		t.Errorf("after a restore: %s", got)
	}
	mustApply(t, s, Command{
		Kind: KindRecovery, Now: 40,
		Recovery: &Recovery{Generation: cluster.Generation{Number: 2, RecoveryID: "q"}},
	}, calls("boot1", 2, "b"))
	if got := auditOf(s.View()); got != fmt.Sprintf("1:a:403 %d:b:403", firstRevision(2)+1) {
		t.Errorf("after a recovery: %s", got)
	}
}

func TestAuditCodec(t *testing.T) {
	t.Parallel()
	b := calls("boot1", 7, "a")
	b.AuditBatch.Lost = 9
	cmds := []Command{audited(put("k", "v"), "x", 3), b}
	raw, err := EncodeBatch(cmds)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := DecodeBatch(raw); err != nil || !reflect.DeepEqual(got, cmds) {
		t.Fatalf("read %+v, %v", got, err)
	}
	long := audited(put("k", "v"), "x", 3)
	long.Audit.Detail = strings.Repeat("x", MaxAuditText+1)
	if long.Validate() == nil {
		t.Error("a text that is too long is accepted")
	}
	for name, bad := range map[string]AuditBatch{
		"no source": {First: 1, Records: make([]AuditRecord, 1)},
		"no place":  {Producer: "b", Records: make([]AuditRecord, 1)},
		"too many":  {Producer: "b", First: 1, Records: make([]AuditRecord, MaxAuditBatch+1)},
		"class":     {Producer: "b", First: 1, Records: []AuditRecord{{Class: 2}}},
		"not UTF-8": {Producer: "b", First: 1, Records: []AuditRecord{{Who: "\xff"}}},
	} {
		if (&Command{Kind: KindAudit, AuditBatch: &bad}).Validate() == nil {
			t.Errorf("%s is accepted", name)
		}
	}
}
