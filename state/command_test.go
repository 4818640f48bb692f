package state

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"northstar/cluster"
)

// everyCommand returns one command of each kind of version 1 with every field set.
func everyCommand() []Command {
	return []Command{
		{
			Kind: KindPut, Now: 1_700_000_000_000_000_000,
			Idempotency: &Idempotency{Key: "k", RequestHash: []byte{1, 2, 3}},
			Fence:       &FencingToken{Role: "r", Token: 9},
			Put: &Put{
				Key: "key/ä", Value: []byte("value"), IfRevision: ptr(uint64(7)), IfAbsent: true,
				Session: "s",
			},
		},
		{Kind: KindPut, Put: &Put{Key: "zero", IfRevision: ptr(uint64(0))}},
		{Kind: KindDelete, Now: 2, Delete: &Delete{Key: "key", IfRevision: ptr(uint64(8))}},
		{Kind: KindPut, Put: &Put{Key: "key", IfPresent: true}},
		{Kind: KindDelete, Delete: &Delete{Key: "key", IfPresent: true}},
		{Kind: KindLeaderStart, Now: 3, LeaderStart: &LeaderStart{
			Term: 4, Node: "n1", Trigger: "timeout", Reason: "why",
			StartedAt: 5, Votes: []byte("v"),
		}},
		{Kind: KindClusterInit, Now: 4, ClusterInit: &ClusterInit{
			ClusterID: "c", Generation: cluster.Generation{Number: 2, RecoveryID: "r"}, AutoFailover: true,
			Members: []cluster.Member{{ID: "n1"}, {ID: "n2", Priority: 5}},
			Roster:  map[cluster.NodeID]string{"n2": "i2", "n1": "i1"},
		}},
		{Kind: KindMember, Now: 5, Member: &cluster.Member{
			ID: "n3", RaftAddress: "ra", HTTPAddress: "ha", Priority: 200, Eligible: true, Zone: "z",
			Incarnation: "i", Lifecycle: cluster.Active, Version: "v", Reads: 1, Removed: true,
		}},
		{Kind: KindMemberPatch, Now: 6, MemberPatch: &MemberPatch{
			ID: "n3", RaftAddress: ptr("ra"), HTTPAddress: ptr("ha"), Priority: ptr(0), Eligible: ptr(false),
			Zone:        ptr(""),
			Incarnation: ptr(""), Lifecycle: ptr(cluster.Draining), Version: ptr("v"), SupportedVersion: ptr(uint32(2)),
		}},
		{Kind: KindMemberPatch, Now: 7, MemberPatch: &MemberPatch{ID: "n3"}},
		{Kind: KindMemberRemove, Now: 8, MemberRemove: &MemberRemove{ID: "n3"}},
		{Kind: KindSettings, Now: 9, Settings: &SettingsChange{AutoFailover: true, PausedUntil: 10}},
		{Kind: KindRecovery, Now: 10, Recovery: &Recovery{
			Generation: cluster.Generation{Number: 3, RecoveryID: "r"}, Voters: []cluster.NodeID{"n2", "n3"},
			Readmit: []cluster.NodeID{"n2"},
		}},
		{Kind: KindSessionCreate, Now: 10, SessionCreate: &SessionCreate{
			Nonce: "abcdefgh", Name: "n", TTL: MinSessionTTL,
			Meta: map[string]string{"a": "1", "b": ""},
		}},
		{Kind: KindSessionEnd, Now: 11, SessionEnd: &SessionEnd{IDs: []string{"s1", "s2"}, Cause: CauseExpired}},
		{Kind: KindRoleCampaign, Now: 12, RoleCampaign: &RoleCampaign{
			Role: "r", Session: "s", Value: "v", Wait: true,
			TakeoverDelay: 1_000_000, Ineligible: true,
		}},
		{Kind: KindRoleWithdraw, Now: 13, RoleWithdraw: &RoleWithdraw{Role: "r", Session: "s"}},
		{Kind: KindRoleRelease, Now: 14, RoleRelease: &RoleRelease{Role: "r", Session: "s"}},
		{Kind: KindRoleTransfer, Now: 15, RoleTransfer: &RoleTransfer{Role: "r", ToSession: "s", IfStateRevision: 9}},
		{Kind: KindRoleElect, Now: 16, RoleElect: &RoleElect{Roles: []ElectableRole{{"r", 9}, {"s", 0}}}},
		{Kind: KindAppNodePut, Now: 17, AppNodePut: &AppNodePut{Node: AppNode{
			ID: "w1", Session: "s", Hostname: "h", Address: "a", HTTPPort: 80, GRPCPort: 81, Roles: []string{"r"},
			Capabilities: []string{"c", "d"}, Version: "v", Status: AppActive,
		}}},
		{Kind: KindAppNodeRemove, Now: 18, AppNodeRemove: &AppNodeRemove{IDs: []string{"w1", "w2"}, DeadSince: 5}},
	}
}

func TestBatchRoundTrip(t *testing.T) {
	t.Parallel()
	want := everyCommand()
	raw, err := EncodeBatch(want)
	if err != nil {
		t.Fatal(err)
	}
	got, err := DecodeBatch(raw)
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, want) {
		t.Fatalf("got  %+v\nwant %+v", got, want)
	}
	clear(raw) // the commands must not alias the log entry
	if !reflect.DeepEqual(got, want) {
		t.Fatal("decoded commands share memory with the batch")
	}
}

// The log outlives the build: this build must read the bytes of any earlier build.
func TestBatchGolden(t *testing.T) {
	t.Parallel()
	path := filepath.Join("testdata", "batch_v1.hex")
	raw, err := EncodeBatch(everyCommand())
	if err != nil {
		t.Fatal(err)
	}
	if *update {
		if err := os.WriteFile(path, []byte(hex.EncodeToString(raw)+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	golden, err := hex.DecodeString(strings.TrimSpace(string(text)))
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(raw, golden) {
		t.Errorf("the encoding has changed:\ngot  %x\nwant %x", raw, golden)
	}
	got, err := DecodeBatch(golden)
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, everyCommand()) {
		t.Error("the golden batch is read differently")
	}
}

// noteBatch is what a build of the next version writes for a put and a Note. TestNextVersionNote checks that.
const noteBatch = "0102010106000000210161230178e8070a0400000021026869"

func noteBytes(t *testing.T) []byte {
	t.Helper()
	raw, err := hex.DecodeString(noteBatch)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

// rawBatch frames one command by hand, as a build of another version might.
func rawBatch(kind Kind, version uint32, body []byte) []byte {
	b := []byte{batchFormat, 1}
	b = binary.AppendUvarint(b, uint64(kind))
	b = binary.AppendUvarint(b, uint64(version))
	b = binary.LittleEndian.AppendUint32(b, uint32(len(body)))
	return append(b, body...)
}

func TestDecodeUnknownCommand(t *testing.T) {
	t.Parallel()
	body := codec{}
	body.putText(16, "key")
	for name, c := range map[string]struct {
		kind    Kind
		version uint32
	}{
		"kind":               {4711, CommandVersion + 1},
		"kind of no version": {4711, 1},
		"version":            {KindPut, CommandVersion + 1},
	} {
		_, err := DecodeBatch(rawBatch(c.kind, c.version, body.buf))
		var unknown *UnknownCommandError
		if !errors.As(err, &unknown) {
			t.Errorf("%s: want UnknownCommandError, got %v", name, err)
		} else if unknown.Kind != c.kind || unknown.Version != c.version {
			t.Errorf("%s: got %+v", name, unknown)
		}
	}
}

func TestDecodeSkipsUnknownFields(t *testing.T) {
	t.Parallel()
	body := codec{}
	body.putNumber(15, 3)
	body.putText(16, "key")
	body.putText(77, "of a later build")
	body.putNumber(78, 1)
	body.putText(17, "value")
	cmds, err := DecodeBatch(rawBatch(KindPut, 1, body.buf))
	if err != nil {
		t.Fatal(err)
	}
	want := []Command{{Kind: KindPut, Put: &Put{Key: "key", Value: []byte("value")}}}
	if !reflect.DeepEqual(cmds, want) {
		t.Fatalf("got %+v", cmds)
	}
}

func TestDecodeDamaged(t *testing.T) {
	t.Parallel()
	raw, err := EncodeBatch(everyCommand())
	if err != nil {
		t.Fatal(err)
	}
	for n := range raw {
		if _, err := DecodeBatch(raw[:n]); !errors.Is(err, ErrDamaged) {
			t.Fatalf("cut after %d bytes: %v", n, err)
		}
	}
	if _, err := DecodeBatch(append(bytes.Clone(raw), 0)); !errors.Is(err, ErrDamaged) {
		t.Fatalf("trailing byte: %v", err)
	}
	if _, err := DecodeBatch(rawBatch(KindPut, 1, []byte{16 << 1, 1})); !errors.Is(err, ErrDamaged) {
		t.Fatalf("a number for a key: %v", err)
	}
	if _, err := DecodeBatch(rawBatch(KindPut, 1, []byte{16<<1 | 1, 9, 'a'})); !errors.Is(err, ErrDamaged) {
		t.Fatalf("a key longer than the command: %v", err)
	}
	huge := binary.AppendUvarint([]byte{batchFormat}, 1<<40)
	if _, err := DecodeBatch(huge); !errors.Is(err, ErrDamaged) {
		t.Fatalf("absurd count: %v", err)
	}
}

func TestEncodeRefuses(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]Command{
		"no payload":    {Kind: KindPut},
		"other payload": {Kind: KindPut, Delete: &Delete{Key: "a"}},
		"unknown kind":  {Kind: 4711},
		"zero":          {},
	} {
		if _, err := EncodeBatch([]Command{c}); err == nil {
			t.Errorf("%s: encoded", name)
		}
		if r := apply(New(Options{}), c)[0]; !cluster.IsCode(r.Err, cluster.CodeBadRequest) {
			t.Errorf("%s: result %+v", name, r)
		}
	}
}

func TestEveryKindHasAVersion(t *testing.T) {
	t.Parallel()
	for _, c := range everyCommand() {
		if v := c.MinVersion(); v != 1 {
			t.Errorf("kind %d: version %d", c.Kind, v)
		}
	}
}

// FuzzDecodeBatch: garbage never panics, neither in decoding nor in Apply. A decoded batch is encoded to one that
// reads the same.
func FuzzDecodeBatch(f *testing.F) {
	raw, err := EncodeBatch(everyCommand())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(raw)
	for _, c := range everyCommand() {
		one, err := EncodeBatch([]Command{c})
		if err != nil {
			f.Fatal(err)
		}
		f.Add(one)
		f.Add(one[:len(one)/2])
	}
	_, golden := goldenCommands()
	for _, c := range golden {
		one, err := EncodeBatch([]Command{c, grant(1, 1), leasePut("k", 1)})
		if err != nil {
			f.Fatal(err)
		}
		f.Add(one)
	}
	f.Add(rawBatch(1000, 2, []byte{33, 2, 'h', 'i'}))
	f.Add([]byte{batchFormat, 255, 255, 255, 255, 15})
	f.Fuzz(func(t *testing.T, raw []byte) {
		cmds, err := DecodeBatch(raw)
		if err != nil {
			return
		}
		again, err := EncodeBatch(cmds)
		if err != nil {
			t.Fatalf("decoded, but cannot be encoded: %v", err)
		}
		back, err := DecodeBatch(again)
		if err != nil || !reflect.DeepEqual(cmds, back) {
			t.Fatalf("changed on the way: %v\n%+v\n%+v", err, cmds, back)
		}
		s := New(Options{HistoryRevisions: 4, HistoryBytes: 64})
		if got := len(s.Apply(1, 1, cmds)); got != len(cmds) {
			t.Fatalf("%d results for %d commands", got, len(cmds))
		}
		restore(t, New(Options{}), snapshotOf(t, s))
	})
}
