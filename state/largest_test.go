package state

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"strings"
	"testing"

	"northstar/cluster"
)

// longest returns a text of so many bytes that begins with a name.
func longest(name string, size int) string { return name + strings.Repeat("x", size-len(name)) }

// largestState has the largest record that Apply accepts in every section of a snapshot.
func largestState(t *testing.T) *State {
	t.Helper()
	s := New(Options{})
	text, key := longest("t", maxText), longest("k", MaxKey)
	record := &AuditRecord{
		Class: AuditOperators, Node: cluster.NodeID(longest("n", MaxAuditText)), Who: longest("w", MaxAuditText),
		Role: longest("r", MaxAuditText), From: longest("f", MaxAuditText), What: longest("w", MaxAuditText),
		Request: longest("q", MaxAuditText), Reason: longest("r", MaxAuditText), Detail: longest("d", MaxAuditText),
	}
	mustApply(t, s,
		Command{Kind: KindLeaderStart, Now: 1, Audit: record, LeaderStart: &LeaderStart{
			Term: 1, Node: "n1", Trigger: text, Reason: text, Operator: text, Votes: make([]byte, maxVotes),
		}},
		Command{Kind: KindClusterInit, ClusterInit: &ClusterInit{
			ClusterID: text, Generation: cluster.Generation{Number: 1, RecoveryID: text},
			Members: []cluster.Member{{
				ID: "n1", RaftAddress: text, HTTPAddress: text, Zone: text, Incarnation: text,
				Lifecycle: cluster.Lifecycle(text), Version: text,
			}},
		}},
		Command{Kind: KindSettings, Settings: &SettingsChange{Reason: text, Operator: text}},
		Command{Kind: KindAudit, AuditBatch: &AuditBatch{
			Producer: longest("p", MaxKey), First: 1, Records: []AuditRecord{*record},
		}},
	)
	// A key whose error is recorded with its whole text, as before numbers were known.
	keyed := withIdempotency(put(strings.Repeat("\x01", MaxKey), "v"), longest("client", MaxIdempotencyKey),
		longest("h", MaxRequestHash))
	keyed.Put.IfPresent = true
	apply(s, keyed)
	lease := Command{Kind: KindLeaseGrant, LeaseGrant: &LeaseGrant{ID: -1, TTL: 60, Owner: longest("o", MaxOwner)}}
	mustApply(t, s, lease)
	value := make([]byte, MaxTxnBytes-MaxKey)
	for range 3 { // each but the first replaces a value that is as long
		mustApply(t, s, txnCommand(Txn{Success: []Op{{Put: &TxnPut{Key: key, Value: value, Lease: -1}}}}))
	}
	mustApply(t, s, del(key), put(key, strings.Repeat("v", MaxValue)))
	number := keyed
	number.Idempotency = &Idempotency{
		Key: longest("sender", MaxIdempotencyKey), RequestHash: make([]byte, MaxRequestHash), Number: 1 << 62,
	}
	apply(s, number)
	largestRole(t, s)
	return s
}

// largestRole adds a role with the longest queue and history, sessions with the longest texts, and the largest
// application node, which changes and dies.
func largestRole(t *testing.T, s *State) {
	t.Helper()
	session := func() string {
		c := create(longest("s", MaxSessionName))
		c.SessionCreate.Nonce, c.SessionCreate.TTL = longest("n", 32), MaxSessionTTL
		c.SessionCreate.Owner, c.SessionCreate.Meta = longest("o", MaxOwner), map[string]string{}
		r := apply(s, c)[0]
		if r.Err != nil {
			t.Fatal(r.Err)
		}
		return r.Session.ID
	}
	campaignFor := func(session string) {
		mustApply(t, s, Command{Kind: KindRoleCampaign, RoleCampaign: &RoleCampaign{
			Role: longest("r", 128), Session: session, Value: longest("v", MaxRoleValue), Wait: true,
			TakeoverDelay: MaxTakeoverDelay, Required: true,
		}})
	}
	for range MaxTenures {
		id := session()
		campaignFor(id)
		mustApply(t, s, end(CauseDisconnected, id))
	}
	last := ""
	for range 1 + MaxCandidates {
		last = session()
		campaignFor(last)
	}
	meta := create("meta")
	meta.SessionCreate.Meta = map[string]string{}
	for size, i := 0, 0; size < MaxSessionMeta; i++ {
		name := fmt.Sprintf("%x", i)
		if size += len(name); size <= MaxSessionMeta {
			meta.SessionCreate.Meta[name] = ""
		}
	}
	node := AppNode{
		ID: longest("w", 63), Session: last, Hostname: longest("h", maxAppText), Address: longest("a", maxAppText),
		Version: longest("v", maxAppText), Status: AppDraining, HTTPPort: 65535, GRPCPort: 65535,
	}
	for range maxAppList {
		node.Roles = append(node.Roles, longest("r", maxAppText))
		node.Capabilities = append(node.Capabilities, longest("c", maxAppText))
	}
	mustApply(t, s, meta, Command{Kind: KindAppNodePut, AppNodePut: &AppNodePut{Node: node}})
}

// The snapshot of a state with the largest records that Apply accepts can be read, and is written the same again.
func TestLargestRecords(t *testing.T) {
	t.Parallel()
	s := largestState(t)
	raw := snapshotOf(t, s)
	again, third := New(Options{}), New(Options{})
	restore(t, again, raw)
	short := snapshotOf(t, again) // the text of an error that was recorded before numbers is shortened
	restore(t, third, short)
	if len(raw)-len(short) > 4*MaxKey || !bytes.Equal(snapshotOf(t, third), short) {
		t.Error("the snapshot is read and written differently")
	}
	if _, err := Inspect(bytes.NewReader(raw)); err != nil {
		t.Error(err)
	}
	largest := largestFrames(t, raw)
	for sec := sectionMeta; sec <= sectionLast; sec++ {
		if largest[sec] == 0 {
			t.Errorf("the state has nothing in section %d", sec)
		}
	}
	if n := largest[sectionRoles]; n < maxFrame*9/10 || n > maxFrame {
		t.Errorf("the largest frame has %d bytes, and %d are read", n, maxFrame)
	}
}

// largestFrames returns the size of the largest frame of each section.
func largestFrames(t *testing.T, raw []byte) map[section]int {
	t.Helper()
	largest := map[section]int{}
	f := newFrameReader(bytes.NewReader(raw))
	for err := f.start(); f.section != sectionEnd; {
		if err == nil {
			err = f.next()
		}
		if err != nil {
			t.Fatal(err)
		}
		largest[f.section] = max(largest[f.section], len(f.buf)-frameHeader)
	}
	return largest
}

// A change has two values if neither the key nor an earlier change has one of them.
func TestLargestChange(t *testing.T) {
	t.Parallel()
	s, again := New(Options{HistoryRevisions: 2}), New(Options{HistoryRevisions: 2})
	key := longest("k", MaxKey)
	for range 2 {
		mustApply(t, s, txnCommand(Txn{Success: []Op{putOp(key, longest("v", MaxTxnBytes-MaxKey))}}))
	}
	mustApply(t, s, del(key))
	raw := snapshotOf(t, s)
	restore(t, again, raw)
	if n := largestFrames(t, raw)[sectionHistory]; n < 2*MaxTxnBytes || !bytes.Equal(snapshotOf(t, again), raw) {
		t.Errorf("the largest frame of the history has %d bytes", n)
	}
}

// endless is a reader without an end that counts what was read.
type endless struct{ n int }

func (e *endless) Read(b []byte) (int, error) {
	if e.n += len(b); e.n > frameFull {
		return 0, io.EOF
	}
	return len(b), nil
}

// A frame takes memory as its bytes arrive, and not for the size that it announces.
func TestFrameTakesMemoryAsItArrives(t *testing.T) {
	head := binary.LittleEndian.AppendUint32([]byte(snapshotMagic), snapshotFormat)
	head = append(head, byte(sectionMeta))
	head = binary.LittleEndian.AppendUint32(head, maxFrame)
	head = append(head, 0, 0, 0, 0)
	f := newFrameReader(io.MultiReader(bytes.NewReader(head), &endless{}))
	if err := f.start(); err != nil {
		t.Fatal(err)
	}
	if err := f.next(); err == nil || cap(f.buf) > 4*frameFull {
		t.Errorf("%v, with a buffer of %d bytes", err, cap(f.buf))
	}
}
