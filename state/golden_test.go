package state

import (
	"bytes"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"

	"northstar/cluster"
)

var update = flag.Bool("update", false, "rewrite golden files")

// compareGolden compares got with a file of testdata, or rewrites the file with -update.
func compareGolden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, got, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Equal(got, want) {
		return
	}
	gotLines, wantLines := strings.Split(string(got), "\n"), strings.Split(string(want), "\n")
	for i := range min(len(gotLines), len(wantLines)) {
		if gotLines[i] != wantLines[i] {
			t.Fatalf("%s: line %d has changed:\ngot  %q\nwant %q", name, i+1, gotLines[i], wantLines[i])
		}
	}
	t.Fatalf("%s: %d bytes, want %d", name, len(got), len(want))
}

// fill sets every field of a value to a different value that is not zero.
func fill(v reflect.Value, n *int) {
	*n++
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem(), n)
	case reflect.Struct:
		for i := range v.NumField() {
			f := v.Field(i)
			if v.Type() == reflect.TypeFor[Op]() && f.Type() == reflect.TypeFor[*Txn]() ||
				v.Type() == reflect.TypeFor[OpResult]() && f.Type() == reflect.TypeFor[*TxnResult]() {
				continue // they would not end
			}
			fill(reflect.NewAt(f.Type(), unsafe.Pointer(f.UnsafeAddr())).Elem(), n) // unexported fields, too
		}
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		fill(v.Index(0), n)
		fill(v.Index(1), n)
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		for range 2 {
			key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
			fill(key, n)
			fill(value, n)
			v.SetMapIndex(key, value)
		}
	case reflect.Bool:
		v.SetBool(true)
	case reflect.String:
		v.SetString(fmt.Sprintf("text-%d", *n))
	case reflect.Int, reflect.Int64:
		v.SetInt(int64(*n) * 1001)
	case reflect.Uint8, reflect.Uint32, reflect.Uint64:
		v.SetUint(uint64(*n) * 1001)
	case reflect.Interface: // a wrapped error, which is not encoded
	default:
		panic("no filling for " + v.Type().String())
	}
}

func filledValue[T any]() *T {
	v, n := new(T), 0
	fill(reflect.ValueOf(v).Elem(), &n)
	return v
}

// payloadFields are the fields of Command that hold a payload, by kind.
var payloadFields = map[Kind]string{
	KindPut: "Put", KindDelete: "Delete", KindLeaderStart: "LeaderStart", KindClusterInit: "ClusterInit",
	KindMember:      "Member",
	KindMemberPatch: "MemberPatch", KindMemberRemove: "MemberRemove", KindSettings: "Settings", KindAudit: "AuditBatch",
	KindRecovery: "Recovery", KindLimits: "Limits", KindSessionCreate: "SessionCreate", KindSessionEnd: "SessionEnd",
	KindRoleCampaign: "RoleCampaign",
	KindRoleWithdraw: "RoleWithdraw", KindRoleRelease: "RoleRelease", KindRoleTransfer: "RoleTransfer",
	KindRoleElect:  "RoleElect",
	KindAppNodePut: "AppNodePut", KindAppNodeRemove: "AppNodeRemove",
	KindTxn: "Txn", KindCompact: "Compact", KindFirstRevision: "FirstRevision", KindLeaseGrant: "LeaseGrant",
	KindLeaseRevoke: "LeaseRevoke",
}

// filledCommand sets every field of the kind that the version has.
func filledCommand(kind Kind, version uint32) Command {
	c := Command{Kind: kind}
	v, n := reflect.ValueOf(&c).Elem(), 0
	for _, name := range []string{"Now", "Idempotency", "Fence", "Audit", payloadFields[kind]} {
		fill(v.FieldByName(name), &n)
		if name == "Idempotency" {
			n -= 3 // the numbers of later fields are from before After, Number and AnsweredBelow
		}
	}
	if version < txnVersion {
		c.Idempotency.After = 0
	}
	if version < NumberVersion {
		c.Idempotency.Number, c.Idempotency.AnsweredBelow = 0, 0
	}
	if version < auditVersion {
		c.Audit = nil
	}
	if p := c.RoleTransfer; p != nil {
		p.AwaitPreviousHolder = p.AwaitPreviousHolder && version >= revocationVersion
	}
	if p := c.RoleRelease; p != nil && version < revocationVersion {
		p.Token = 0
	}
	if p := c.SessionCreate; p != nil && version < ownerVersion {
		p.Owner = ""
	}
	if p := c.RoleCampaign; p != nil {
		p.Required = p.Required && version >= requiredVersion
	}
	if p := c.AppNodePut; p != nil {
		p.Node.owner = "" // set by apply
	}
	if p := c.Limits; p != nil && version < BoundsVersion {
		p.KeysPerSession = 0
	}
	if p := c.Limits; p != nil {
		p.RolesVersion = p.RolesVersion && version >= RolesVersion
	}
	if p := c.Recovery; p != nil {
		p.LockDelay = p.LockDelay && version >= lockDelayVersion
	}
	return c
}

// goldenCommands returns each kind with every field zero, and with every field set for each version.
func goldenCommands() (names []string, cmds []Command) {
	for _, kind := range slices.Sorted(maps.Keys(payloadFields)) {
		zero := Command{Kind: kind}
		payload := reflect.ValueOf(&zero).Elem().FieldByName(payloadFields[kind])
		payload.Set(reflect.New(payload.Type().Elem()))
		names, cmds = append(names, fmt.Sprintf("kind %d zero", kind)), append(cmds, zero)
		for version := uint32(1); version <= CommandVersion; version++ {
			if c := filledCommand(kind, version); c.MinVersion() == version {
				names, cmds = append(names, fmt.Sprintf("kind %d version %d", kind, version)), append(cmds, c)
			}
		}
	}
	return names, cmds
}

// The log outlives the build: the encoding of each command never changes.
func TestCommandsGolden(t *testing.T) {
	t.Parallel()
	var text bytes.Buffer
	names, cmds := goldenCommands()
	for i, c := range cmds {
		raw, err := EncodeBatch([]Command{c})
		if err != nil {
			t.Fatalf("%s: %v", names[i], err)
		}
		fmt.Fprintf(&text, "%s: %x\n", names[i], raw)
		got, err := DecodeBatch(raw)
		if err != nil {
			t.Fatalf("%s: %v", names[i], err)
		}
		if !reflect.DeepEqual(got, []Command{c}) {
			t.Errorf("%s: read differently:\ngot  %+v\nwant %+v", names[i], got[0], c)
		}
	}
	compareGolden(t, "commands.golden", text.Bytes())
}

// goldenRecord encodes and decodes a record with every field zero and with every field set.
type goldenRecord struct {
	name         string
	zero, filled func() []byte
	again        func([]byte) ([]byte, error) // decodes and encodes
}

func recordOf[T any, P recordPointer[T]](name string) goldenRecord {
	return goldenRecord{
		name: name, zero: func() []byte { return encodeRecord(P(new(T))) },
		filled: func() []byte { return encodeRecord(P(filledValue[T]())) },
		again: func(b []byte) ([]byte, error) {
			v := P(new(T))
			err := decodeRecord(b, v)
			return encodeRecord(v), err
		},
	}
}

var goldenRecords = []goldenRecord{
	recordOf[Item]("item"),
	recordOf[memberRecord]("member"),
	recordOf[Election]("election"),
	recordOf[Session]("session"),
	recordOf[Role]("role"),
	recordOf[Candidate]("candidate"),
	recordOf[Tenure]("tenure"),
	recordOf[RoleEvent]("role event"),
	recordOf[AppNode]("application node"),
	recordOf[AuditRecord]("audit record"),
	recordOf[auditProducer]("audit source"),
	recordOf[idempotencyEntry]("idempotency entry"),
	recordOf[errorRecord]("error"),
	recordOf[senderRecord]("sender"),
}

// Snapshots outlive the build: the encoding of each record never changes.
func TestRecordsGolden(t *testing.T) {
	t.Parallel()
	var text bytes.Buffer
	for _, r := range goldenRecords {
		for name, raw := range map[string][]byte{"zero": r.zero(), "filled": r.filled()} {
			again, err := r.again(raw)
			if err != nil || !bytes.Equal(again, raw) {
				t.Errorf("%s %s: read and written differently: %v\ngot  %x\nwant %x", r.name, name, err, again, raw)
			}
		}
		fmt.Fprintf(&text, "%s zero: %x\n%s filled: %x\n", r.name, r.zero(), r.name, r.filled())
	}
	compareGolden(t, "records.golden", text.Bytes())
}

// busyState extends richState by every field of version 4: a revoked role, a delayed takeover, dropped history and
// dropped audit records.
func busyState(t *testing.T) *State {
	t.Helper()
	s := New(Options{HistoryRevisions: 6})
	restore(t, s, snapshotOf(t, richState(t)))
	mustApply(t, s, patch(MemberPatch{ID: "n1", SupportedVersion: ptr(uint32(4))}))
	mustApply(t, s, patch(MemberPatch{ID: "n2", SupportedVersion: ptr(uint32(4))}))
	batch := calls("n1/1", 1, "ann", "bob")
	batch.AuditBatch.Lost = 3
	mustApply(t, s, batch, Command{
		Kind:     KindSettings,
		Settings: &SettingsChange{AutoFailover: true, PausedUntil: 5, Reason: "why", Operator: "ann"},
	})
	later := calls("n2/1", 1, "eve")
	later.AuditBatch.Records[0].At = 2 * int64(MaxAuditAge)
	mustApply(t, s, audited(put("x", "1"), "old", 30), audited(put("x", "2"), "new", 30+2*int64(MaxAuditAge)), later)
	holder, next := newSession(t, s, "holder 2"), newSession(t, s, "next 2")
	for _, role := range []string{"taken", "delayed"} {
		campaign(t, s, role, holder)
		mustApply(t, s, Command{Kind: KindRoleCampaign, RoleCampaign: &RoleCampaign{
			Role: role, Session: next, Value: "v", Wait: true, TakeoverDelay: time.Second, Ineligible: role == "taken",
		}})
	}
	mustApply(t, s, Command{Kind: KindRoleTransfer, RoleTransfer: &RoleTransfer{
		Role:                "taken",
		AwaitPreviousHolder: true,
	}})
	lost := newSession(t, s, "lost")
	campaign(t, s, "lost", lost)
	mustApply(t, s, Command{
		Kind:         KindRoleCampaign,
		RoleCampaign: &RoleCampaign{Role: "lost", Session: next, Wait: true, TakeoverDelay: time.Second},
	})
	mustApply(t, s, end(CauseExpired, lost))
	for i := range 6 {
		mustApply(t, s, appNode(fmt.Sprintf("w%d", i+3), next, AppActive), put(fmt.Sprint("key", i), "value"))
	}
	mustApply(t, s, Command{Kind: KindAppNodeRemove, AppNodeRemove: &AppNodeRemove{IDs: []string{"w8"}}}, del("key5"))
	apply(s, withIdempotency(del("absent"), "client/3", "f"))
	return s
}

// recoveredState is busyState after a recovery, during its lock delay.
func recoveredState(t *testing.T) *State {
	t.Helper()
	s := busyState(t)
	mustApply(t, s, Command{Kind: KindRecovery, Recovery: &Recovery{
		Generation: cluster.Generation{Number: 2, RecoveryID: "again"}, Voters: []cluster.NodeID{"n1"},
		Readmit: []cluster.NodeID{"n2"}, LockDelay: true,
	}})
	campaign(t, s, "taken", newSession(t, s, "after"))
	mustApply(t, s, appNode("w1", newSession(t, s, "node"), AppActive))
	return s
}

// The encoding of snapshots and backups of the present version never changes.
func TestSnapshotsGolden(t *testing.T) {
	t.Parallel()
	busy, recovered, limited, bounded := busyState(t), recoveredState(t), limitedState(t), limitedState(t)
	change := limits(1<<30, 5)
	change.Limits.KeysPerSession = 1000
	mustApply(t, bounded, change)
	merged, err := mergeBackup(recovered.Snapshot(), snapshotOf(t, busy))
	if err != nil {
		t.Fatal(err)
	}
	var backup bytes.Buffer
	if _, err := merged.WriteTo(&backup); err != nil {
		t.Fatal(err)
	}
	for name, raw := range map[string][]byte{
		"empty": snapshotOf(t, New(Options{})), "busy": snapshotOf(t, busy), "recovered": snapshotOf(t, recovered),
		"restored": backup.Bytes(), "limited": snapshotOf(t, limited),
		"bounded": snapshotOf(t, bounded),
	} {
		compareGolden(t, "snapshot_"+name+".golden", []byte(hex.Dump(raw)))
		again := New(Options{})
		restore(t, again, raw)
		if !bytes.Equal(snapshotOf(t, again), raw) {
			t.Errorf("%s: read and written differently", name)
		}
	}
	nums := map[int]bool{}
	for _, s := range []*State{busy, recovered, limited, bounded} {
		f := newFrameReader(bytes.NewReader(snapshotOf(t, s)))
		if err := errors.Join(f.start(), f.next()); err != nil {
			t.Fatal(err)
		}
		err := f.records(func(_ section, rec []byte) error {
			c := codec{decoding: true, buf: rec}
			for c.next(); c.num != noField; c.next() {
				nums[c.num] = true
			}
			return c.err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if len(nums) != 37 {
		t.Errorf("the golden snapshots have %d fields of 37 in their first sections: %v", len(nums), nums)
	}
}
