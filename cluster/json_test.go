package cluster

import (
	"encoding/json"
	"fmt"
	"reflect"
	"testing"
	"time"
)

// A plan ID is a hash over the JSON of the change: two builds of one cluster
// have to write the same text.
func TestJSONOfAMemberChange(t *testing.T) {
	priority, eligible, zone, voter, addr, drain := 50, false, "east", Voter, "127.0.0.1:1", true
	for _, c := range []struct {
		change MemberChange
		want   string
	}{
		{MemberChange{ID: "n1", Membership: "m"}, `{"ID":"n1","Add":null,"Patch":null}`},
		{
			MemberChange{ID: "n1", Add: &MemberAdd{
				ID: "n1", RaftAddress: "r", HTTPAddress: "h", Promote: true, ByNode: true,
			}},
			`{"ID":"n1","Add":{"ID":"n1","RaftAddress":"r","HTTPAddress":"h","Promote":true},"Patch":null}`,
		},
		{
			MemberChange{ID: "n1", Patch: &MemberPatch{
				Priority: &priority, Eligible: &eligible, Zone: &zone, Suffrage: &voter, RaftAddress: &addr,
				HTTPAddress: &addr,
				Drain:       &drain, Readmit: true,
			}},
			`{"ID":"n1","Add":null,"Patch":{"Priority":50,"Eligible":false,"Zone":"east","Suffrage":"voter",` +
				`"RaftAddress":"127.0.0.1:1","HTTPAddress":"127.0.0.1:1","Drain":true,"Readmit":true}}`,
		},
		{
			MemberChange{ID: "n1", Patch: &MemberPatch{}},
			`{"ID":"n1","Add":null,"Patch":{"Priority":null,"Eligible":null,"Zone":null,"Suffrage":null,` +
				`"RaftAddress":null,"HTTPAddress":null,"Drain":null,"Readmit":false}}`,
		},
	} {
		if got, err := json.Marshal(c.change); err != nil || string(got) != c.want {
			t.Errorf("got  %s, %v\nwant %s", got, err, c.want)
		}
	}
}

// Every field of a type that nodes exchange or store as JSON has a tag, so that
// renaming the field does not change the format.
func TestJSONFieldsHaveTags(t *testing.T) {
	var check func(reflect.Type) []string
	check = func(typ reflect.Type) (missing []string) {
		switch typ.Kind() {
		case reflect.Pointer, reflect.Slice, reflect.Map:
			return check(typ.Elem())
		case reflect.Struct:
			if typ == reflect.TypeFor[time.Time]() {
				return nil
			}
		default:
			return nil
		}
		for i := range typ.NumField() {
			f := typ.Field(i)
			if f.IsExported() && !f.Anonymous && f.Tag.Get("json") == "" {
				missing = append(missing, fmt.Sprintf("%s.%s", typ, f.Name))
			}
			missing = append(missing, check(f.Type)...)
		}
		return missing
	}
	for _, v := range []any{Claim{}, Peer{}, Identity{}, Roster{}, Server{}, Vote{}, MemberChange{}} {
		for _, name := range check(reflect.TypeOf(v)) {
			t.Errorf("%s has no json tag", name)
		}
	}
}
